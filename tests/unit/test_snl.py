import copy

import pytest
import torch
from torch import nn

from reluctant import attach, binarize, errors, finetune, sloped
from reluctant._binarize import count_slopes
from reluctant.mask import MaskedReLU
from reluctant.methods import snl
from reluctant.methods.anneal import Steering
from reluctant.recipes import Finetune, Search
from reluctant.train import Penalty, Trainer
from tests import toys


def search(options, budget=60, student=None, **more):
    model = toys.toy()
    student = student or attach(model, toys.examples(2)[0])
    return snl.search(
        student, teacher=model, train=toys.batches(), budget=budget, options=options, trainer=Trainer(), **more
    )


def paper(**options):
    return Search(**({"schedule": "paper", "epochs": 60, "lr": 1e-3, "slope_lr": 3e-2, "penalty": 1e-2} | options))


@pytest.fixture
def counts(monkeypatch):
    """Let the counts that the search sees be given by a test."""

    def give(sequence):
        values = iter(sequence)
        monkeypatch.setattr(snl, "count_slopes", lambda student, threshold: next(values))

    return give


@pytest.mark.parametrize(
    ("rule", "first", "seen", "grown"),
    [
        ("lowest", 0, [120, 120, 110, 115, 109, 90, 20], [0, 1, 0, 1, 0, 0, 0]),
        ("previous", 0, [120, 120, 110, 115, 114, 90, 20], [0, 1, 0, 1, 0, 0, 0]),
        ("lowest", 0, [120, 120, 110, 115, 114, 90, 20], [0, 1, 0, 1, 1, 0, 0]),
        ("lowest", 3, [127, 127, 127, 127, 127, 90, 20], [0, 0, 0, 1, 1, 0, 0]),
    ],
    ids=["lowest", "previous", "lowest is stricter", "only from an epoch on"],
)
def test_the_penalty_grows_exactly_when_the_rule_says(counts, rule, first, seen, grown):
    counts(seen)
    found = search(paper(grow_unless=rule, grow_from=first, growth=2.0, penalty=1.0), budget=60)
    used = [row["penalty"] for row in found.history]
    expected = [1.0]
    for growth in grown[:-1]:
        expected.append(expected[-1] * (2.0 if growth else 1.0))
    assert used == expected
    assert [row["count"] for row in found.history] == seen


def test_the_loop_stops_at_the_budget():
    found = search(paper())
    reached = [row["count"] for row in found.history]
    assert reached[-1] <= 60
    assert all(count > 60 for count in reached[:-1])
    assert found.mask.count == 60


def test_a_budget_that_is_met_needs_no_search():
    assert search(paper(), budget=127).history == []


def test_a_budget_not_reached_says_the_count():
    with pytest.raises(
        errors.BudgetError, match=r"after 2 epochs 127 ReLUs are left and the budget is 60; go on with more"
    ):
        search(paper(epochs=2, penalty=0.0))


def test_the_constant_run_tracks_the_count_to_the_end():
    found = search(paper(stop=False, growth=1.0, epochs=12))
    assert len(found.history) == 12
    assert {row["penalty"] for row in found.history} == {1e-2}
    assert found.mask.count == 60


def test_the_papers_threshold_can_be_had():
    student = attach(toys.toy(), toys.examples(2)[0])
    found = search(paper(exact=False), student=student)
    assert found.mask.count == count_slopes(student) <= 60


def test_weights_and_slopes_are_moved_by_one_optimizer_with_the_penalty_before_its_moments():
    model = toys.toy().double()  # in float32 a bias before BatchNorm has noise for a gradient, and Adam makes steps of it
    x, y = toys.examples(16)
    x = x.double()
    student, reference = attach(model, x[:2]), attach(model, x[:2]).train()
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-2)
    for _ in range(3):
        penalty = 0.1 * sum(module.slope.abs().sum() for module in sloped(reference).values())
        torch.manual_seed(0)
        loss = nn.functional.cross_entropy(reference(x), y) + penalty
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    class SameDropout(Trainer):
        def _seed(self, phase, number):
            torch.manual_seed(0)

    options = Search(schedule="paper", epochs=3, lr=1e-2, penalty=0.1, growth=1.0, stop=False)
    snl.search(student, teacher=None, train=[(x, y)], budget=60, options=options, trainer=SameDropout())
    expected = dict(reference.named_parameters())
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(parameter, expected[name], rtol=1e-6, atol=1e-7)


def test_found_carries_the_searched_weights():
    student = attach(toys.toy(), toys.examples(2)[0])
    found = search(toys.recipe().search, student=student)
    assert not torch.equal(found.model.a.weight, toys.toy().a.weight)
    assert torch.equal(found.model.a.weight, student.a.weight)
    assert torch.equal(found.model.bn.running_mean, student.bn.running_mean)
    assert not any(isinstance(module, nn.Module) and hasattr(module, "slope") for module in found.model.modules())


@pytest.mark.parametrize("granularity", ["pixel", "channel", "layer"])
@pytest.mark.parametrize("by_relus", [False, True])
def test_budgets_are_in_relus_for_every_granularity(granularity, by_relus):
    student = attach(toys.toy(), toys.examples(2)[0], granularity=granularity)
    found = search(toys.recipe(penalty_by_relus=by_relus).search, budget=70, student=student)
    assert found.history[-1]["count"] <= 70
    assert found.mask.count <= 70
    smallest = {"pixel": 1, "channel": 1, "layer": 7}[granularity]
    assert found.mask.count > 70 - 60 or smallest == 7


@pytest.mark.parametrize("epochs", [1, 3, 7])
@pytest.mark.parametrize("budget", [0, 13, 100])
@pytest.mark.parametrize("may_return", [False, True])
def test_anneal_ends_at_its_epoch_and_its_budget(epochs, budget, may_return):
    found = search(toys.recipe(epochs=epochs, may_return=may_return).search, budget=budget)
    assert len(found.history) == epochs
    assert found.history[-1]["count"] <= budget
    assert found.mask.count == budget


@pytest.mark.parametrize("every", [None, 1, 1000])
def test_anneal_keeps_the_count_at_its_falling_target(every):
    options = toys.recipe(epochs=6, steer_every=every).search
    student = attach(toys.toy(), toys.examples(2)[0])
    steering = Steering(student, Penalty(sloped(student), 1e-5), 20, options)
    assert [steering.target(progress) for progress in (0, 0.5, 1)] == [127, 20 + 107 // 8, 20]
    found = search(options, budget=20)
    for row in found.history:
        assert row["count"] <= steering.target((row["epoch"] + 1) / 6)


def test_a_sweep_passes_its_budgets_where_epochs_end():
    student = attach(toys.toy(), toys.examples(2)[0])
    options = toys.recipe(epochs=6).search
    steering = Steering(student, Penalty(sloped(student), 1e-5), 20, options, passing=[200, 127, 90, 40, 38, 21])
    targets = [steering.target(step / 600) for step in range(601)]
    assert targets == sorted(targets, reverse=True)
    ends = targets[::100]
    assert (ends[0], ends[1], ends[-1]) == (127, 90, 20)
    assert 38 in ends  # 40 would have been passed in the same epoch; it is filled from below
    assert 21 in ends[:-1]
    assert steering.target(2 / 6 - 1e-6) < 90


def test_anneal_takes_the_lowest_slopes_first():
    student = attach(toys.toy(), toys.examples(2)[0])
    options = toys.recipe(steer_every=1, curve=1.0).search
    with torch.no_grad():
        for module in sloped(student).values():
            module.slope.uniform_(0.1, 1.0)
    before = torch.cat([module.slope.detach().flatten() for module in sloped(student).values()])
    Steering(student, Penalty(sloped(student), 1e-5), 27, options)(1, 0.5)
    after = torch.cat([module.slope.detach().flatten() for module in sloped(student).values()])
    assert (after <= 0).sum() == 50
    assert after.min() > -1e-5
    assert before[after <= 0].max() <= before[after > 0].min()
    assert torch.equal(before[after <= 0].argsort(), after[after <= 0].argsort())


@pytest.mark.parametrize("granularity", ["pixel", "channel", "layer"])
def test_what_went_last_comes_back_first(granularity):
    """Where the count has fallen below a budget, the budget is filled by what was linearized latest."""
    student = attach(toys.toy(), toys.examples(2)[0], granularity=granularity)
    options = toys.recipe(steer_every=1, curve=1.0).search
    steering = Steering(student, Penalty(sloped(student), 1e-5), 0, options)
    order = []
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in sloped(student).values():
            module.slope.copy_(torch.rand(module.slope.shape, generator=generator) * 0.8 + 0.2)
    for step in range(1, 101):
        alive = count_slopes(student)
        steering(step, step / 100)
        if count_slopes(student) < alive:
            order.append(count_slopes(student))
    assert order[-1] == 0
    for budget in order[:-1][::7] or order[:-1]:
        mask = binarize(student, budget)
        kept = torch.cat([mask[site].flatten() for site in mask])
        assert kept.sum() == budget
        slopes = torch.cat([m.slope.detach().flatten().repeat_interleave(m.governs) for m in sloped(student).values()])
        assert slopes[kept].min() >= slopes[~kept].max()


@pytest.mark.parametrize(("full_at", "full"), [(0.0, 0.2), (0.5, 0.6), (0.9, 0.82), (1.0, 0.9), (None, None)])
def test_what_is_full_follows_the_slopes_that_are_left(full_at, full):
    student = attach(nn.Sequential(nn.Linear(2, 12), nn.ReLU()), torch.zeros(1, 2))
    with torch.no_grad():
        sloped(student)["1"].slope.copy_(torch.tensor([0.0, -1.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.82, 0.9]))
    steering = Steering(student, Penalty(sloped(student), 0.0), 9, toys.recipe(full_at=full_at).search)
    steering(10, 1.0)  # 0.1 goes
    assert sloped(student)["1"].full == pytest.approx(full)


@pytest.mark.parametrize("slope", [0.0, 2.0])
def test_what_is_full_is_never_above_one_and_there_for_an_empty_mask(slope):
    student = attach(toys.toy(), toys.examples(2)[0])
    with torch.no_grad():
        for module in sloped(student).values():
            module.slope.fill_(slope)
    Steering(student, Penalty(sloped(student), 0.0), 0, toys.recipe().search)
    assert {module.full for module in sloped(student).values()} == {1.0 if slope else None}
    assert student(toys.examples(2)[0]).isfinite().all()


def test_the_paper_computes_with_slopes_as_they_are():
    student = attach(toys.toy(), toys.examples(2)[0])
    search(paper(), student=student)
    assert {module.full for module in sloped(student).values()} == {None}


def test_linear_slopes_return_only_where_they_may():
    def lowest_counts(may_return):
        student = attach(toys.toy(), toys.examples(2)[0])
        options = toys.recipe(may_return=may_return, steer_every=100, penalty=0.0).search
        steering = Steering(student, Penalty(sloped(student), 0.0), 0, options)
        with torch.no_grad():
            for module in sloped(student).values():
                module.slope.zero_()
        steering(1, 0.1)
        with torch.no_grad():
            for module in sloped(student).values():
                module.slope.add_(0.5)
        steering(2, 0.2)
        return count_slopes(student)

    assert lowest_counts(may_return=False) == 0
    assert lowest_counts(may_return=True) == 127


class Memory:
    """A checkpoint in memory."""

    def __init__(self):
        self.states = {}

    def load(self, phase):
        return copy.deepcopy(self.states.get(phase))

    def save(self, phase, state):
        self.states[phase] = copy.deepcopy(state)


@pytest.mark.parametrize("rows", [1, 2, 4, 5])
def test_what_was_passed_before_an_interruption_stays_as_it_was(rows):
    def told_by(checkpoint, on_epoch=None):
        options = toys.recipe(epochs=5).search
        search(options, 5, passing=[127, 90, 60, 20], on_pass=told.__setitem__, checkpoint=checkpoint, on_epoch=on_epoch)

    told = {}
    told_by(Memory())
    whole, told = told, {}
    memory, seen = Memory(), []

    def kill(row):
        seen.append(row)
        if len(seen) == rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        told_by(memory, kill)
    told_by(memory)
    assert list(told) == list(whole) == [127, 90, 60, 20]
    for budget, found in whole.items():
        assert found.mask == told[budget].mask
        assert torch.equal(found.model.a.weight, told[budget].model.a.weight)


def test_unknown_schedule():
    with pytest.raises(errors.OptionError, match="did you mean 'anneal'"):
        search(Search(schedule="aneal"))


def test_zero_out_makes_what_is_left_zero():
    student = attach(toys.toy(), toys.examples(2)[0], zero_out=True)
    found = search(toys.recipe().search, budget=30, student=student)
    assert found.mask.zero_out
    features = found.model.relu(torch.randn(3, 5, 4, 3))
    assert torch.equal(features != 0, (features > 0) & found.mask["relu"])


def test_frozen_masks_do_not_move_by_a_bit():
    found = search(toys.recipe().search, budget=30)
    before = {site: tensor.clone() for site, tensor in found.model.state_dict().items() if site.endswith("mask")}
    assert before
    options = Finetune(epochs=3, lr=0.1, weight_decay=0.5)
    tuned = finetune(found.model, teacher=toys.toy(), train=toys.batches(), val=toys.batches(seed=1), options=options)
    for name, value in tuned.state_dict().items():
        if name in before:
            assert torch.equal(value, before[name])
    kinds = [type(tuned.get_submodule(site)) for site in found.mask]
    assert MaskedReLU in kinds
    assert not torch.equal(tuned.a.weight, found.model.a.weight)


def test_finetuning_returns_the_best_epoch_by_validation():
    found = search(toys.recipe().search, budget=30)
    scores = iter([10.0, 30.0, 20.0, 5.0])
    seen = []

    def on_epoch(row):
        seen.append(row["val"])

    last = []
    options = Finetune(epochs=4, lr=1e-2)
    tuned = finetune(
        found.model,
        teacher=None,
        train=toys.batches(),
        val=[toys.examples(8)],
        options=options,
        metric=lambda out, target: next(scores),
        on_epoch=on_epoch,
    )
    assert seen == [10.0, 30.0, 20.0, 5.0]
    two = finetune(
        found.model,
        teacher=None,
        train=toys.batches(),
        options=options,
        on_epoch=lambda row: last.append(row["loss"]),
    )
    assert not torch.equal(tuned.a.weight, two.a.weight)
    assert len(last) == 4
