"""Winograd's convolutions must be torch's, to rounding, and be used only where they are."""

import copy
import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from reluctant import errors, linearize
from reluctant._native import NotCompiledError, compiled
from reluctant.recipes import Recipe
from reluctant.train import Objective, Trainer, winograd

CPU = torch.device("cpu")


def can_be_had():
    try:
        return winograd.available(True, CPU, torch.float32)
    except errors.OptionError:
        return False


needs_it = pytest.mark.skipif(not can_be_had(), reason="needs a CPU with AVX2 and a C compiler")


def operands(images, channels, filters, height, width, *, bias=True, layout=torch.channels_last):
    torch.manual_seed(0)
    x = torch.randn(images, channels, height, width).to(memory_format=torch.channels_last).requires_grad_()
    weight = (torch.randn(filters, channels, 3, 3) / (3 * channels**0.5)).to(memory_format=layout).requires_grad_()
    return x, weight, torch.randn(filters, requires_grad=True) if bias else None


def by_winograd(function, *args, **kwargs):
    with winograd.Winograd():
        out = function(*args, **kwargs)
    return out, "_Convolution" in type(out.grad_fn).__name__


def with_gradients(out, wanted):
    grad = torch.ones_like(out).cumsum(1).cumsum(2).sin()
    return out, *torch.autograd.grad(out, [tensor for tensor in wanted if tensor is not None], grad)


@needs_it
@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "sizes",
    [
        (4, 16, 16, 16, 16),  # whole tiles
        (20, 16, 32, 7, 9),  # tiles that stand out at two sides
        (64, 64, 48, 4, 4),  # one tile an image, with a border at each side
        (70, 32, 16, 3, 3),  # less than a tile
        (3, 48, 112, 31, 30),  # blocks that do not come out even
    ],
)
def test_outputs_and_gradients_are_torchs(sizes, bias, layout):
    given = operands(*sizes, bias=bias, layout=layout)
    out, is_ours = by_winograd(F.conv2d, *given, padding=1)
    assert is_ours
    exact = [None if tensor is None else tensor.detach().double().requires_grad_() for tensor in given]
    for ours, theirs in zip(with_gradients(out, given), with_gradients(F.conv2d(*exact, padding=1), exact), strict=True):
        assert ours.dtype == torch.float32
        assert float((ours - theirs).detach().abs().max() / theirs.detach().abs().max()) < 3e-5


@needs_it
def test_the_number_of_threads_changes_no_bit():
    given, threads, seen = operands(5, 32, 48, 13, 18), torch.get_num_threads(), []
    try:
        for number in (1, 2, 3):
            torch.set_num_threads(number)
            seen.append(with_gradients(by_winograd(F.conv2d, *given, padding=1)[0], given))
    finally:
        torch.set_num_threads(threads)
    for other in seen[1:]:
        assert all(torch.equal(one, two) for one, two in zip(seen[0], other, strict=True))


@needs_it
@pytest.mark.parametrize(
    ("options", "sizes", "ours"),
    [
        ({"padding": 1}, (8, 16, 16, 32, 32), True),
        ({"padding": (1, 1), "stride": (1, 1), "dilation": (1, 1), "groups": 1}, (8, 16, 16, 32, 32), True),
        ({"padding": 0}, (8, 16, 16, 32, 32), False),
        ({"padding": "same"}, (8, 16, 16, 32, 32), False),
        ({"padding": 1, "stride": 2}, (8, 16, 16, 32, 32), False),
        ({"padding": 1, "dilation": 2}, (8, 16, 16, 32, 32), False),
        ({"padding": 1}, (8, 3, 16, 32, 32), False),  # channels that fill no vector
        ({"padding": 1}, (8, 16, 10, 32, 32), False),
        ({"padding": 1}, (200, 16, 16, 2, 2), False),  # tiles that are empty for the most part
        ({"padding": 1}, (4, 16, 16, 4, 4), False),  # filters take longer to transform than to use
    ],
)
def test_it_computes_what_it_is_faster_at_and_torch_the_rest(options, sizes, ours):
    x, weight, bias = operands(*sizes)
    out, is_ours = by_winograd(F.conv2d, x, weight, bias, **options)
    assert is_ours == ours
    torch.testing.assert_close(out, F.conv2d(x, weight, bias, **options), rtol=1e-4, atol=1e-4)


@needs_it
@pytest.mark.parametrize("change", ["contiguous", "double", "one image", "groups"])
def test_other_operands_are_torchs(change):
    x, weight, bias = operands(8, 16, 16, 32, 32)
    options = {"padding": 1}
    if change == "contiguous":
        x = x.detach().contiguous().requires_grad_()
    elif change == "double":
        x, weight, bias = (tensor.detach().double().requires_grad_() for tensor in (x, weight, bias))
    elif change == "one image":
        x = x[0]
    else:
        weight, options = torch.randn(16, 1, 3, 3, requires_grad=True), {"padding": 1, "groups": 16}
    out, is_ours = by_winograd(F.conv2d, x, weight, bias, **options)
    assert not is_ours
    assert torch.equal(out, F.conv2d(x, weight, bias, **options))


@needs_it
def test_modules_use_it_and_only_within_the_mode():
    x, *_ = operands(8, 16, 16, 32, 32)
    module = nn.Conv2d(16, 32, 3, padding=1)
    out, is_ours = by_winograd(module, x)
    assert is_ours
    assert "_Convolution" not in type(module(x).grad_fn).__name__
    torch.testing.assert_close(out, module(x), rtol=1e-4, atol=1e-4)


class Wide(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.bn, self.head = nn.BatchNorm2d(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(F.relu(self.two(F.relu(self.bn(self.one(x))))).mean((2, 3)))


def losses(model, **options):
    torch.manual_seed(1)
    batches = [(torch.randn(16, 3, 12, 12), torch.randint(0, 4, (16,))) for _ in range(4)]
    trainer = Trainer(precision="float32", channels_last=True, **options)
    trainer.place_(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    epochs = trainer.epochs(model, batches, optimizer=optimizer, objective=Objective(), epochs=5, phase="test")
    return [epoch.loss for epoch in epochs]


@needs_it
def test_training_goes_as_with_torchs_convolutions():
    torch.manual_seed(0)
    model = Wide()
    other = copy.deepcopy(model)
    with_it, without = losses(model, winograd=True), losses(other, winograd=False)
    assert with_it != without  # it was used
    assert with_it == pytest.approx(without, rel=1e-4)
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)


@needs_it
def test_a_run_says_whether_it_was_used(tmp_path):
    loader = [(torch.randn(16, 3, 12, 12), torch.arange(16) % 4) for _ in range(2)]
    short = {"search.epochs": 1, "finetune.epochs": 1, "winograd": True}
    linearize(Wide(), budget="50%", train=loader, val=loader, recipe=Recipe().override(short), run_dir=tmp_path / "run")
    assert json.loads((tmp_path / "run" / "environment.json").read_text())["winograd"] is True


@pytest.mark.parametrize(
    ("device", "dtype", "said"),
    [("cuda", torch.float32, "for CPUs and float32"), ("cpu", torch.bfloat16, "for CPUs and float32")],
)
def test_where_it_cannot_be_had_it_is_refused_or_left_out(device, dtype, said):
    with pytest.raises(errors.OptionError, match=said):
        winograd.available(True, torch.device(device), dtype)
    assert winograd.available(None, torch.device(device), dtype) is False
    assert winograd.available(False, torch.device(device), dtype) is False


@pytest.mark.parametrize(
    ("compiler", "said"), [("no-such-compiler", "no-such-compiler"), ("false", "false fails: exit code 1")]
)
def test_without_a_compiler_torch_computes(tmp_path, monkeypatch, compiler, said):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", compiler)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX2")
    monkeypatch.setattr(winograd, "_library", winograd._library.__wrapped__)
    assert winograd.available(None, CPU, torch.float32) is False
    with pytest.raises(errors.OptionError, match=said):
        winograd.available(True, CPU, torch.float32)
    assert not [*tmp_path.rglob("*.so")], "nothing half-written"


def test_there_may_be_no_compiler_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    (tmp_path / "some.c").write_text("int one(void) { return 1; }")
    with pytest.raises(NotCompiledError, match="no C compiler"):
        compiled(tmp_path / "some.c")


@needs_it
def test_a_library_is_compiled_once_and_anew_where_its_source_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = tmp_path / "some.c"
    source.write_text("int number(void) { return 1; }")
    assert compiled(source).number() == 1
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.so")}
    assert compiled(source).number() == 1
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.so")} == made
    source.write_text("int number(void) { return 2; }")
    assert compiled(source).number() == 2


def test_a_cpu_without_avx2_does_without(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "DEFAULT")
    assert winograd.available(None, CPU, torch.float32) is False
    with pytest.raises(errors.OptionError, match="no AVX2"):
        winograd.available(True, CPU, torch.float32)


@needs_it
@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
def test_left_open_it_is_for_cpus_where_it_was_measured(monkeypatch, capability):
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert winograd.available(None, CPU, torch.float32) is True


def test_it_is_not_for_compiled_networks():
    with pytest.raises(errors.OptionError, match=r"torch\.compile brings its own convolutions"):
        Trainer(compile=True, winograd=True)
    assert Trainer(compile=True).winograd is False
