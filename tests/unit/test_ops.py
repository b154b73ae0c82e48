"""What `_ops.c` computes in one pass must be what torch computes in several."""

import pytest
import torch

from reluctant import _ops
from reluctant._native import NotCompiledError

needs_it = pytest.mark.skipif(_ops._library() is None, reason="needs a CPU with AVX2 and a C compiler")

FORMULAS = {
    _ops.sloped_relu: lambda x, c: c * x.relu() + (1 - c) * x,
    _ops.zeroing_relu: lambda x, c: c * x.relu(),
    _ops.masked_relu: lambda x, kept: torch.where(kept, x.relu(), x),
}


def features(shape, layout):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    x.view(-1)[:: max(1, x.numel() // 7)] = 0  # at exactly 0 the gradient is that of relu
    if layout == "channels_last" and x.dim() == 4:
        return x.to(memory_format=torch.channels_last)
    return x.transpose(0, -1).contiguous().transpose(0, -1) if layout == "strided" else x


def governed(operation, shape):
    by = torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 1.5 - 0.25
    return by > 0.5 if operation is _ops.masked_relu else by


def with_gradients(operation, x, by):
    x = x.clone(memory_format=torch.preserve_format).requires_grad_()
    by = by.clone().requires_grad_(by.dtype != torch.bool)
    out = operation(x, by)
    wanted = [x, by] if by.requires_grad else [x]
    return out, *torch.autograd.grad(out, wanted, torch.ones_like(out).cumsum(0).sin())


@needs_it
@pytest.mark.parametrize("layout", ["contiguous", "channels_last", "strided"])
@pytest.mark.parametrize("shape", [(5, 16, 8, 8), (3, 4, 5, 7), (2, 9, 6), (4, 3), (7,), (1, 1, 1, 1)])
@pytest.mark.parametrize("operation", FORMULAS, ids=lambda operation: operation.__name__)
def test_outputs_and_gradients_are_those_of_the_formula(operation, shape, layout):
    x, by = features(shape, layout), governed(operation, shape[1:])
    assert _ops._takes(x) is False, "gradients are recorded here"
    with torch.no_grad():
        assert _ops._takes(x)
    exact = with_gradients(FORMULAS[operation], x.double(), by if by.dtype == torch.bool else by.double())
    for ours, theirs in zip(with_gradients(operation, x, by), exact, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


@needs_it
@pytest.mark.parametrize("operation", [_ops.sloped_relu, _ops.zeroing_relu], ids=lambda operation: operation.__name__)
def test_one_slope_may_govern_a_channel_or_a_layer(operation):
    x = features((4, 8, 5, 5), "channels_last")
    for shape in ((8, 1, 1), (1, 1, 1)):
        by = governed(operation, shape)
        exact = with_gradients(FORMULAS[operation], x.double(), by.double())
        for ours, theirs in zip(with_gradients(operation, x, by), exact, strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)


@needs_it
@pytest.mark.parametrize("operation", FORMULAS, ids=lambda operation: operation.__name__)
def test_the_number_of_threads_changes_no_bit(operation):
    x, threads, seen = features((6, 16, 9, 7), "channels_last"), torch.get_num_threads(), []
    try:
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            seen.append(with_gradients(operation, x, governed(operation, (16, 9, 7))))
    finally:
        torch.set_num_threads(threads)
    for other in seen[1:]:
        assert all(torch.equal(one, two) for one, two in zip(seen[0], other, strict=True))


@needs_it
def test_a_kept_relu_is_a_relu_also_of_what_is_not_finite():
    x = torch.tensor([[-torch.inf, torch.inf, torch.nan, -0.0, -torch.inf]])
    with torch.no_grad():
        out = _ops.masked_relu(x, torch.tensor([True, True, True, True, False]))
    torch.testing.assert_close(out, torch.tensor([[0, torch.inf, torch.nan, 0, -torch.inf]]), equal_nan=True)


@needs_it
def test_gradients_can_be_differentiated_again():
    x, slope = features((3, 4), "contiguous").requires_grad_(), torch.rand(4, requires_grad=True)
    [first] = torch.autograd.grad(_ops.sloped_relu(x, slope).square().sum(), [x], create_graph=True)
    [second] = torch.autograd.grad(first.sum(), [x])
    left = torch.where(x > 0, torch.ones(()), 1 - slope)
    torch.testing.assert_close(second, 2 * left.detach() ** 2)


@pytest.mark.parametrize("capability", ["DEFAULT", "AVX2"])
def test_without_avx2_or_a_compiler_torch_computes(monkeypatch, capability):
    def fails(source):
        raise NotCompiledError("there is no C compiler")

    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    monkeypatch.setattr(_ops, "compiled", fails)
    monkeypatch.setattr(_ops, "_library", _ops._library.__wrapped__)
    assert _ops._library() is None
    for operation, formula in FORMULAS.items():
        x, by = features((3, 4, 5, 6), "channels_last"), governed(operation, (4, 5, 6))
        for ours, theirs in zip(with_gradients(operation, x, by), with_gradients(formula, x, by), strict=True):
            torch.testing.assert_close(ours, theirs)
