"""What makes a step fast must not change what it computes."""

import copy
import json
import logging
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations

from reluctant import attach, count, errors, linearize
from reluctant._fold import folded
from reluctant.methods import snl
from reluctant.recipes import Search
from reluctant.slopes import SlopedReLU, sloped
from reluctant.train import Objective, Teacher, Trainer, distillation, layout, precision
from tests import nets, toys

PENALTY = 1e-3


class FourOps(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        return F.relu(x) * self.slope + (1 - self.slope) * x


def network():
    """Like the toy, without chance: BatchNorm twice, a residual, a head."""
    torch.manual_seed(0)
    model = toys.toy()
    model.drop = nn.Identity()
    with torch.no_grad():
        model.bn.running_mean.normal_()
        model.bn.running_var.uniform_(0.5, 2)
    return model.double()


def reference_steps(model, batches):
    """The search as it is usually written: the formula, L1 sums in the loss, a teacher with its graph, plain Adam."""
    student = attach(model, batches[0][0]).train()
    for module in list(student.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, SlopedReLU):
                module._modules[name] = FourOps(child.slope)
    slopes = [module.slope for module in student.modules() if isinstance(module, FourOps)]
    teacher = copy.deepcopy(model).eval()
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    losses = []
    for x, y in batches:
        out = student(x)
        task = F.cross_entropy(out, y) + distillation(out, teacher(x))
        loss = task + PENALTY * sum(slope.abs().sum() for slope in slopes)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(task.detach()))
    return student, losses


def product_steps(model, batches, trainer):
    rows = []
    student = attach(model, batches[0][0])
    options = Search(schedule="paper", epochs=len(batches), lr=1e-3, penalty=PENALTY, growth=1.0, stop=False)
    one_by_one = iter(batches)

    class EachOnce(list):
        def __iter__(self):
            return iter([next(one_by_one)])

    snl.search(
        student, teacher=model, train=EachOnce([None]), budget=0, options=options, trainer=trainer, on_epoch=rows.append
    )
    return student, [row["loss"] for row in rows]


def fifty_batches(dtype=torch.float64):
    batches = [toys.examples(16, seed) for seed in range(50)]
    return [(x.to(dtype), y) for x, y in batches]


@pytest.mark.parametrize("channels_last", [False, True])
def test_fifty_steps_are_those_of_the_formula(channels_last):
    expected, losses = reference_steps(network(), fifty_batches())
    student, mine = product_steps(network(), fifty_batches(), Trainer(channels_last=channels_last))
    torch.testing.assert_close(torch.tensor(mine), torch.tensor(losses), rtol=1e-6, atol=1e-7)
    theirs = dict(expected.named_parameters())
    moved = 0.0
    for name, parameter in student.named_parameters():
        torch.testing.assert_close(parameter, theirs[name], rtol=1e-8, atol=1e-9)
        moved = max(moved, float((1 - parameter.detach()).abs().max()) if name.endswith("slope") else 0.0)
    assert moved > 0.01


def test_fifty_steps_in_single_precision_stay_close():
    _, losses = reference_steps(network(), fifty_batches())
    _, mine = product_steps(network().float(), fifty_batches(torch.float32), Trainer(precision="float32"))
    torch.testing.assert_close(torch.tensor(mine), torch.tensor(losses), rtol=1e-3, atol=1e-4)


def test_the_ops_are_the_same_in_every_layout():
    x = torch.randn(3, 4, 5, 6, dtype=torch.float64)
    slope = torch.rand(4, 5, 6, dtype=torch.float64)
    results = []
    for images in (x, x.to(memory_format=torch.channels_last), x.transpose(2, 3).contiguous().transpose(2, 3)):
        module = SlopedReLU("relu", 0, (4, 5, 6)).double()
        module.slope.data.copy_(slope)
        leaf = images.clone().requires_grad_()
        out = module(leaf)
        out.square().sum().backward()
        results.append((out, leaf.grad, module.slope.grad))
    for other in results[1:]:
        for mine, first in zip(other, results[0], strict=True):
            torch.testing.assert_close(mine, first)


def test_batchnorm_becomes_part_of_the_layer_before_it():
    model = network()
    made = folded(model.eval(), toys.examples(2)[0].double())
    x = toys.examples(5)[0].double()
    torch.testing.assert_close(made(x), model(x))
    assert not any(isinstance(module, nn.BatchNorm2d) for module in made.modules())
    assert any(isinstance(module, nn.BatchNorm2d) for module in model.modules())


class Awkward(nn.Module):
    """Layers of which none can be folded but the linear one."""

    def __init__(self):
        super().__init__()
        self.shared, self.first, self.second = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.tapped, self.third = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        self.normed, self.fourth = parametrizations.weight_norm(nn.Conv2d(3, 3, 1)), nn.BatchNorm2d(3)
        self.stateless, self.fifth = nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3, track_running_stats=False)
        self.linear, self.sixth = nn.Linear(3, 4), nn.BatchNorm1d(4)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d) and module.track_running_stats:
                module.running_mean.normal_()
                module.running_var.uniform_(0.5, 2)

    def forward(self, x):
        x = torch.relu(self.first(self.shared(x)))
        x = torch.relu(self.second(self.shared(x)))
        tapped = self.tapped(x)
        x = self.third(tapped) + tapped
        x = self.fifth(self.stateless(self.fourth(self.normed(x))))
        return self.sixth(self.linear(x.mean((2, 3))))


def test_what_cannot_be_folded_stays():
    torch.manual_seed(0)
    model = Awkward().eval()
    made = folded(model, nets.images())
    torch.testing.assert_close(made(nets.images(5, 1)), model(nets.images(5, 1)))
    left = {name for name, module in made.named_modules() if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d)}
    assert left == {"first", "second", "third", "fourth", "fifth"}


class DecidesByValue(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x):
        return self.fc(x) if float(x.sum()) > -1e9 else x


@pytest.mark.parametrize("model", [toys.toy, DecidesByValue])
def test_a_teacher_says_what_the_network_says(model):
    network = model()
    x = toys.examples(6)[0] if isinstance(network, toys.Toy) else torch.randn(6, 4)
    state = copy.deepcopy(network.state_dict())
    teacher = Teacher(network, Trainer())
    for _ in range(2):
        said = teacher(x)
        torch.testing.assert_close(said.clone(), network.eval()(x))
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())


def test_a_teacher_that_folds_wrongly_runs_as_it_is(monkeypatch):
    monkeypatch.setattr("reluctant.train.teacher.folded", lambda network, example: toys.toy(1).eval())
    network = toys.toy().eval()
    x = toys.examples(6)[0]
    torch.testing.assert_close(Teacher(network, Trainer())(x).clone(), network(x))


def losses(trainer):
    model = toys.toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    epochs = trainer.epochs(model, toys.batches(), optimizer=optimizer, objective=Objective(), epochs=2, phase="test")
    return [epoch.loss for epoch in epochs]


class BreaksBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        raise RuntimeError("no kernel for the backward pass")


def breaks_forward(network):
    def run(*args):
        raise RuntimeError("no C++ compiler\nin 100 places")

    return run


def breaks_backward(network):
    return lambda *args: BreaksBackward.apply(network(*args))


@pytest.mark.parametrize("broken", [breaks_forward, breaks_backward])
def test_where_compilation_fails_training_goes_on_with_one_warning(monkeypatch, caplog, broken):
    expected = losses(Trainer())
    monkeypatch.setattr(torch, "compile", broken)
    with caplog.at_level(logging.WARNING):
        mine = losses(Trainer(compile=True))
    assert mine == pytest.approx(expected, rel=0.1)  # BatchNorm has seen one batch twice where the backward pass broke
    (warning,) = caplog.messages
    assert "torch.compile does not work here (no " in warning
    assert "in 100 places" not in warning


def test_an_error_of_the_network_itself_is_not_blamed_on_compilation(monkeypatch, caplog):
    monkeypatch.setattr(torch, "compile", lambda network: network)
    model = toys.toy()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrong = [(torch.zeros(4, 9, 4, 3), torch.zeros(4, dtype=torch.long))]
    with pytest.raises(RuntimeError, match="channels"):
        list(Trainer(compile=True).epochs(model, wrong, optimizer=optimizer, objective=Objective(), epochs=1, phase="test"))
    assert not caplog.messages


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch's own, when it loads its compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_training_computes_the_same():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 2))

    def searched(**options):
        student = attach(model, toys.examples(2)[0])
        search = Search(schedule="paper", epochs=2, penalty=PENALTY, stop=False)
        trainer = Trainer(precision="float32", **options)
        snl.search(student, teacher=model, train=toys.batches(), budget=0, options=search, trainer=trainer)
        return student

    for mine, expected in zip(searched(compile=True).parameters(), searched().parameters(), strict=True):
        torch.testing.assert_close(mine, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("announces", "works", "asked", "chosen"),
    [
        (True, True, "auto", torch.bfloat16),
        (True, False, "auto", torch.float32),
        (False, True, "auto", torch.float32),
        (True, True, "float32", torch.float32),
        (False, True, "bfloat16", torch.bfloat16),
        (True, False, "bfloat16", None),
    ],
)
def test_precision_follows_the_hardware(monkeypatch, announces, works, asked, chosen):
    monkeypatch.setattr(precision, "_announces_amx", lambda: announces)
    monkeypatch.setattr(precision, "_works_on_this_cpu", lambda: works)
    if chosen is None:
        with pytest.raises(errors.OptionError, match=r"does not work on this CPU.*ONEDNN_MAX_CPU_ISA"):
            precision.choose(asked, torch.device("cpu"))
    else:
        assert precision.choose(asked, torch.device("cpu")) == chosen


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(2, 3, 1), nn.Linear(36, 2)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).view(len(x), -1))


def test_channels_go_last_only_where_the_network_takes_it():
    x = toys.examples(4)[0]
    assert layout.takes_channels_last(toys.toy(), x)
    assert not layout.takes_channels_last(Views(), x)
    assert not layout.takes_channels_last(nn.Sequential(nn.Flatten(), nn.Linear(24, 2)), x)
    narrow, wide = (nn.Sequential(nn.Conv2d(2, c, 3, padding=1), nn.Conv2d(c, 8, 1, stride=2)) for c in (15, 16))
    assert not layout.takes_channels_last(narrow, x)  # oneDNN may write beyond its memory there
    assert layout.takes_channels_last(wide, x)
    with pytest.raises(errors.OptionError, match=r"leave training\.channels_last out"):
        Trainer(channels_last=True).settle(narrow, x)
    trainer = Trainer()
    trainer.settle(Views(), x)
    assert trainer.channels_last is False
    chosen = Trainer(channels_last=True)
    chosen.settle(Views(), x)
    assert chosen.channels_last is True


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
@pytest.mark.parametrize(("setting", "expected"), [({}, "True"), ({"MALLOC_TRIM_THRESHOLD_": "1000000"}, "False")])
def test_memory_is_kept_unless_somebody_has_decided_otherwise(setting, expected):
    code = "from reluctant.train.memory import keep_freed_memory; print(keep_freed_memory())"
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "LD_PRELOAD"))}
    ran = subprocess.run(
        [sys.executable, "-c", code], env=environment | setting, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == expected


class Chance(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.relu = nn.Linear(4, 4), nn.ReLU()

    def forward(self, x):
        return self.relu(self.fc(x)) * (1 + random.random() + np.random.rand() + float(torch.rand(())))


def test_looking_at_a_network_moves_nobodys_random_numbers(caplog):
    model = Chance()
    states = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    count(model, torch.zeros(2, 4))
    attach(model, torch.zeros(2, 4))
    assert random.getstate() == states[0]
    assert str(np.random.get_state()) == states[1]
    assert torch.equal(torch.get_rng_state(), states[2])


def test_nobodys_network_changes_its_layout(tmp_path):
    model = toys.toy()
    result = linearize(
        model, budget=40, train=toys.batches(), val=toys.batches(seed=1), recipe=toys.recipe(), run_dir=tmp_path / "run"
    )
    assert model.a.weight.is_contiguous()
    assert result.model.a.weight.is_contiguous()
    environment = json.loads((tmp_path / "run" / "environment.json").read_text())
    assert environment["channels_last"] is True
    assert environment["precision"] in ("float32", "bfloat16")


def test_slopes_learn_at_their_own_rate():
    student = attach(toys.toy(), toys.examples(2)[0])
    optimizer = snl.make_optimizer(student, Search(lr=1e-3, slope_lr=5e-2), 100)
    weights, slopes = optimizer.param_groups
    assert (weights["lr"], slopes["lr"]) == (1e-3, 5e-2)
    assert {id(p) for p in slopes["params"]} == {id(module.slope) for module in sloped(student).values()}
