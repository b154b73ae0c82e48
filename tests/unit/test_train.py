import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from reluctant import attach, data, errors, sloped
from reluctant.train import Objective, Penalty, Trainer, distillation, evaluate, learning_rate
from reluctant.train.losses import logits
from tests import nets, toys


def test_distillation_is_the_formula():
    student, teacher = torch.randn(5, 3), torch.randn(5, 3)
    p, q = (teacher / 4).softmax(1), (student / 4).softmax(1)
    expected = 16 * (p * (p / q).log()).sum(1).mean()
    torch.testing.assert_close(distillation(student, teacher, 4.0), expected)


def test_the_objective_adds_what_it_says():
    model, teacher = nn.Linear(4, 3), nn.Linear(4, 3)
    x, y = torch.randn(6, 4), torch.arange(6) % 3
    plain = F.cross_entropy(model(x), y)
    torch.testing.assert_close(Objective()(model, x, y), plain)
    expected = plain + 0.5 * distillation(model(x), teacher(x), 2.0)
    loss = Objective(teacher=teacher, temperature=2.0, weight=0.5)(model, x, y)
    torch.testing.assert_close(loss, expected)
    loss.backward()
    assert model.weight.grad is not None
    assert teacher.weight.grad is None
    mine = Objective(loss=lambda out, target: (out - 1).square().mean())(model, x, y)
    torch.testing.assert_close(mine, (model(x) - 1).square().mean())


@pytest.mark.parametrize("outputs", [torch.ones(2, 3), (torch.ones(2, 3), 5), {"logits": torch.ones(2, 3)}])
def test_logits_are_found(outputs):
    assert torch.equal(logits(outputs), torch.ones(2, 3))


def test_no_logits_is_an_error():
    with pytest.raises(errors.ModelError, match="no logits can be found"):
        logits({"boxes": 1})


@pytest.mark.parametrize("by_relus", [False, True])
def test_the_penalty_has_the_gradient_of_the_norm(by_relus):
    student = attach(nets.Modules(), nets.images(), granularity="channel")
    modules = sloped(student)
    with torch.no_grad():
        for module in modules.values():
            module.slope.uniform_(-1, 1)
    penalty = Penalty(modules, 0.3, by_relus=by_relus)
    penalty.add_gradient_()
    ours = [module.slope.grad.clone() for module in modules.values()]
    for module in modules.values():
        module.slope.grad = None
    value = 0.3 * sum(module.slope.abs().sum() * (36 if by_relus else 1) for module in modules.values())
    value.backward()
    for mine, module in zip(ours, modules.values(), strict=True):
        torch.testing.assert_close(mine, module.slope.grad)
    assert penalty.value() == pytest.approx(value.item())


def test_learning_rates():
    assert learning_rate("constant")(0.7) == 1
    assert learning_rate("cosine")(0.25) == pytest.approx((1 + math.cos(math.pi / 4)) / 2)
    steps = learning_rate("steps", milestones=[0.5, 0.75])
    assert [round(steps(p), 4) for p in (0.0, 0.49, 0.5, 0.8)] == [1, 1, 0.1, 0.01]
    assert max(learning_rate("onecycle")(p / 100) for p in range(101)) == 1
    with pytest.raises(errors.OptionError, match="did you mean 'cosine'"):
        learning_rate("cosin")


def trained(epochs=3, start=0, state=None, seed=0, loader=None):
    model = toys.toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if state:
        model.load_state_dict(state[0])
        optimizer.load_state_dict(state[1])
    rows, states = [], []
    for epoch in Trainer(seed=seed).epochs(
        model,
        loader or toys.batches(shuffle=True),
        optimizer=optimizer,
        objective=Objective(),
        epochs=epochs,
        phase="test",
        start=start,
        rate=learning_rate("cosine"),
    ):
        rows.append(epoch)
        states.append(copy.deepcopy((model.state_dict(), optimizer.state_dict())))
    return model, rows, states


def test_training_goes_on_exactly_as_it_would_have():
    whole, rows, states = trained()
    resumed, later, _ = trained(start=1, state=states[0])
    assert [row.number for row in rows] == [0, 1, 2]
    assert [row.loss for row in later] == [row.loss for row in rows[1:]]
    state = resumed.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in whole.state_dict().items())
    assert rows[-1].loss < rows[0].loss


def test_another_seed_gives_other_batches():
    assert trained(seed=1)[1][0].loss != trained()[1][0].loss


def test_batches_of_dicts_are_fine():
    dicts = [{"image": x, "label": y} for x, y in toys.batches()]
    assert trained(loader=dicts)[1][0].loss > 0


def test_a_loss_that_is_not_a_number_stops_training():
    model = toys.toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=float("inf"))
    with pytest.raises(errors.TrainingError, match="in epoch 0 of test; lower the learning rate"):
        list(Trainer().epochs(model, toys.batches(), optimizer=optimizer, objective=Objective(), epochs=2, phase="test"))


def test_an_empty_loader_is_an_error():
    model = toys.toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(errors.TrainingError, match="yields no batch"):
        list(Trainer().epochs(model, [], optimizer=optimizer, objective=Objective(), epochs=1, phase="test"))
    with pytest.raises(errors.DataError, match="yields no examples"):
        evaluate(model, [])


def test_unknown_precision():
    with pytest.raises(errors.OptionError, match="did you mean 'float32'"):
        Trainer(precision="float3")


def test_evaluate_computes_in_the_precision_of_the_network_whatever_it_is_trained_in(monkeypatch):
    monkeypatch.setattr(Trainer, "dtype", torch.bfloat16)
    trainer, seen = Trainer(), []
    with trainer.autocast():
        assert torch.is_autocast_enabled("cpu")

    def metric(out, target):
        seen.append(out.dtype)
        return 1.0

    evaluate(toys.toy(), toys.batches(20), metric=metric, trainer=trainer)
    assert set(seen) == {torch.float32}


def test_evaluate_is_the_mean_over_examples_and_leaves_the_mode():
    model = toys.toy().train()
    x, y = toys.examples(20)
    expected = 100 * (model.eval()(x).argmax(1) == y).float().mean()
    model.train()
    assert evaluate(model, toys.batches(20, batch_size=16)) == pytest.approx(float(expected), abs=1e-4)
    assert model.training
    assert evaluate(model, toys.batches(20), metric=lambda out, target: 7.0) == 7.0


def test_channels_last_and_our_loader():
    splits = data.load("digits")
    torch.manual_seed(0)
    from reluctant import models

    model = models.create("small", input_shape=(1, 16, 16))
    trainer = Trainer(channels_last=True)
    trainer.place_(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = data.Loader(
        splits.train.pixels[:128], splits.train.labels[:128], batch_size=64, mean=splits.mean, std=splits.std, shuffle=True
    )
    (epoch,) = trainer.epochs(model, loader, optimizer=optimizer, objective=Objective(), epochs=1, phase="test")
    assert epoch.loss > 0
    assert model.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
