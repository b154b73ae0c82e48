"""A teacher that has answered is not asked again, and nothing else changes."""

import pytest
import torch
from torch import nn

from reluctant import errors, linearize
from reluctant.train import Teacher, Trainer
from reluctant.train.answers import Answers
from tests import toys


class Counting(nn.Module):
    """A network that knows how often it was called."""

    def __init__(self, weight=1.0):
        super().__init__()
        self.linear, self.calls = nn.Linear(3, 2), []
        nn.init.constant_(self.linear.weight, weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        self.calls.append(len(x))
        return self.linear(x)


def asked(teacher, *batches):
    """Return what it says, and whether it had to be asked for each."""
    teacher(batches[0][:1] * 0 - 7)  # the first batch folds it, which runs it a few times
    calls, said = teacher._network.calls, []
    teacher._fast = teacher._network
    for batch in batches:
        before = len(calls)
        said.append((teacher(batch), len(calls) > before))
    return said


def test_a_teacher_is_asked_once_by_any_process(tmp_path):
    x, other = torch.randn(4, 3), torch.randn(4, 3)
    first = Teacher(Counting(), Trainer(answers=tmp_path / "new" / "answers"))
    (plain, was_asked), (again, was_asked_again) = asked(first, x, x.clone())
    assert (was_asked, was_asked_again) == (True, False)
    assert torch.equal(plain, again)
    later = Teacher(Counting(), Trainer(answers=tmp_path / "new" / "answers"))
    (known, was_asked), (_, new) = asked(later, x, other)
    assert (was_asked, new) == (False, True)
    assert torch.equal(plain, known)


@pytest.mark.parametrize("change", ["weights", "one pixel", "fewer", "layout"])
def test_another_question_is_another_question(tmp_path, change):
    trainer = Trainer(answers=tmp_path / "answers")
    x = torch.randn(6, 3)
    asked(Teacher(Counting(), trainer), x)
    others = {"weights": x, "one pixel": x.clone(), "fewer": x[:3], "layout": x.reshape(2, 3, 3)}
    others["one pixel"][5, 2] += 1e-6
    [(said, was_asked)] = asked(Teacher(Counting(2.0 if change == "weights" else 1.0), trainer), others[change])
    assert was_asked
    assert said.shape[:-1] == others[change].shape[:-1]


def test_training_with_answers_is_bit_for_bit_training_without(tmp_path):
    results = [
        linearize(
            toys.toy(),
            budget="50%",
            train=toys.batches(64),
            val=toys.batches(32, seed=1),
            recipe=toys.recipe(),
            answers=answers,
        )
        for answers in (None, tmp_path / "answers", tmp_path / "answers")
    ]
    for other in results[1:]:
        assert [row["loss"] for row in other.history] == [row["loss"] for row in results[0].history]
        for one, two in zip(other.model.parameters(), results[0].model.parameters(), strict=True):
            assert torch.equal(one, two)


def test_a_file_that_is_something_else_is_refused_in_a_sentence(tmp_path):
    (tmp_path / "answers").write_text("these are not answers, and there are enough of them to see that" * 20)
    with pytest.raises(errors.OptionError, match=r"cannot be kept in .*answers: file is not a database; pass another file"):
        Answers(tmp_path / "answers")
    with pytest.raises(errors.OptionError, match="cannot be kept in"):
        Answers(tmp_path)
