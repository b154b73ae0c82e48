"""The element-wise operations of Reluctant, each with a backward pass of its own.

Autograd would keep the intermediates of every step of the formula. These keep the input and what governs it, and nothing
else, and they give back the input's dtype: slopes stay float32 while features may be bfloat16.

Everything is computed on rows: an example is one row, in the order in which memory has its elements, and slopes are one row
that is broadcast. On CPUs with AVX2 `_ops.c` does it in one pass over float32 features. Elsewhere torch does, at the speed
of memory, whichever layout the images have; its operations are chosen by measurement: `torch.where`, `clamp(max=…)`,
`lerp`, `maximum` and 4-d broadcasting or summing in channels_last each took 3 to 30 times as long there.
"""

from __future__ import annotations

import logging
from ctypes import CDLL, c_int, c_long, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from reluctant._native import NotCompiledError, compiled

log = logging.getLogger(__name__)


def sloped_relu(x: Tensor, slope: Tensor) -> Tensor:
    """Compute c·relu(x) + (1−c)·x for slopes c that broadcast over the batch."""
    out: Tensor = _Sloped.apply(x, slope)
    return out


def zeroing_relu(x: Tensor, slope: Tensor) -> Tensor:
    """Compute c·relu(x): what is not kept becomes zero."""
    out: Tensor = _Zeroing.apply(x, slope)
    return out


def masked_relu(x: Tensor, mask: Tensor) -> Tensor:
    """Compute relu(x) where the mask is True and x elsewhere; the gradient at exactly 0 is that of relu."""
    out: Tensor = _Masked.apply(x, mask)
    return out


class _Sloped(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, slope: Tensor) -> Tensor:
        rows = _Rows(x)
        if rows.in_one_pass:
            return rows.forward("sloped", x, rows.row(slope))
        below = torch.minimum(rows.of(x), x.new_zeros(()))
        return rows.back(torch.addcmul(rows.of(x), below, rows.row(slope), value=-1, out=below))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, slope = ctx.saved_tensors
        rows = _Rows(x)
        if rows.in_one_pass:
            return rows.backward("sloped", grad, x, rows.row(slope), like=slope if ctx.needs_input_grad[1] else None)
        features, g = rows.of(x), rows.of(grad)
        below = g - _relu_backward(g, features)
        to_slope = rows.summed(below * features, slope).neg_() if ctx.needs_input_grad[1] else None
        to_x = rows.back(torch.addcmul(g, below, rows.row(slope), value=-1)) if ctx.needs_input_grad[0] else None
        return to_x, to_slope


class _Zeroing(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, slope: Tensor) -> Tensor:
        rows = _Rows(x)
        if rows.in_one_pass:
            return rows.forward("zeroing", x, rows.row(slope))
        return rows.back(rows.of(x).relu().mul_(rows.row(slope)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        x, slope = ctx.saved_tensors
        rows = _Rows(x)
        if rows.in_one_pass:
            return rows.backward("zeroing", grad, x, rows.row(slope), like=slope if ctx.needs_input_grad[1] else None)
        features = rows.of(x)
        above = _relu_backward(rows.of(grad), features)
        to_slope = rows.summed(above * features, slope) if ctx.needs_input_grad[1] else None
        return rows.back(above * rows.row(slope)) if ctx.needs_input_grad[0] else None, to_slope


class _Masked(torch.autograd.Function):
    """Raises x to a floor, 0 where a ReLU is kept and −∞ elsewhere: the cost of a ReLU."""

    @staticmethod
    def forward(x: Tensor, mask: Tensor) -> Tensor:
        rows = _Rows(x)
        floor = _floor(rows, mask, x.dtype)
        return rows.forward("masked", x, floor) if rows.in_one_pass else rows.back(rows.of(x).clamp_min(floor))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output, inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, None]:
        out, mask = ctx.saved_tensors
        rows = _Rows(out)
        floor = _floor(rows, mask, out.dtype)
        if rows.in_one_pass:
            return rows.backward("masked", grad, out, floor)[0], None
        return rows.back(_relu_backward(rows.of(grad), rows.of(out) - floor)), None


def _floor(rows: _Rows, mask: Tensor, dtype: torch.dtype) -> Tensor:
    kept = rows.row(mask)
    return torch.zeros_like(kept, dtype=dtype).masked_fill_(~kept, -torch.inf)


class _Rows:
    """A batch as a matrix of one example a row, in the order of memory: a view, where the batch is dense."""

    def __init__(self, x: Tensor) -> None:
        self._dtype, self._shape = x.dtype, x.shape
        last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
        self._last = last is not None and not x.is_contiguous() and x.is_contiguous(memory_format=last)
        self.in_one_pass = _takes(x) and _library() is not None

    def of(self, batch: Tensor) -> Tensor:
        """Return a batch of the same shape as rows."""
        return (batch.movedim(1, -1) if self._last else batch).reshape(len(batch), -1)

    def row(self, values: Tensor) -> Tensor:
        """Return what governs an example as one row, broadcast to its elements, in the batch's precision or as a mask."""
        full = values.expand(self._shape[1:])
        flat = (full.movedim(0, -1) if self._last else full).reshape(-1)
        return flat if values.dtype == torch.bool else flat.to(self._dtype)

    def forward(self, operation: str, x: Tensor, by: Tensor) -> Tensor:
        """Compute an operation of `_ops.c` in one pass."""
        features, by = self.of(x).contiguous(), by.contiguous()
        out = torch.empty_like(features)
        getattr(_library(), f"reluctant_{operation}")(*_at(features, by, out), *out.shape, torch.get_num_threads())
        return self.back(out)

    def backward(
        self, operation: str, grad: Tensor, x: Tensor, by: Tensor, like: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Compute its gradients: that of the features, and that of the slopes where they are given to be like."""
        g, features, by = self.of(grad).contiguous(), self.of(x).contiguous(), by.contiguous()
        to_x = torch.empty_like(features)
        sums = None if like is None else torch.empty_like(by)
        call = getattr(_library(), f"reluctant_{operation}_backward")
        call(*_at(g, features, by, to_x, sums), *to_x.shape, torch.get_num_threads())
        return self.back(to_x), None if like is None or sums is None else self.summed(sums[None], like)

    def back(self, rows: Tensor) -> Tensor:
        """Give rows the shape and the layout of the batch."""
        return self._shaped(rows, self._shape)

    def summed(self, rows: Tensor, like: Tensor) -> Tensor:
        """Sum rows over the batch and over what one slope governs, in the slope's precision."""
        summed = self._shaped(rows.sum(0, keepdim=True), (1, *self._shape[1:])).squeeze(0).to(like.dtype)
        return summed.sum_to_size(like.shape)

    def _shaped(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        if not self._last:
            return rows.reshape(shape)
        return rows.reshape(shape[0], *shape[2:], shape[1]).movedim(-1, 1)


def _relu_backward(grad: Tensor, x: Tensor) -> Tensor:
    """Let the gradient through where x > 0."""
    return torch.ops.aten.threshold_backward(grad, x, 0)  # type: ignore[no-any-return]


def _takes(x: Tensor) -> bool:
    """Tell whether `_ops.c` can compute with it: floats in the memory of a CPU, and nobody records what is done to them."""
    recorded = torch.is_grad_enabled() or torch.compiler.is_compiling()
    return type(x) in (Tensor, torch.nn.Parameter) and x.device.type == "cpu" and x.dtype == torch.float32 and not recorded


@cache
def _library() -> CDLL | None:
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return None
    try:
        library = compiled(Path(__file__).with_name("_ops.c"))
    except NotCompiledError as error:
        log.info("torch computes what slopes and masks do: %s", error)
        return None
    for operation in ("sloped", "zeroing", "masked"):
        getattr(library, f"reluctant_{operation}").argtypes = [c_void_p] * 3 + [c_long] * 2 + [c_int]
        getattr(library, f"reluctant_{operation}").restype = None
        getattr(library, f"reluctant_{operation}_backward").argtypes = [c_void_p] * 5 + [c_long] * 2 + [c_int]
        getattr(library, f"reluctant_{operation}_backward").restype = None
    return library


def _at(*tensors: Tensor | None) -> list[int | None]:
    return [None if tensor is None else tensor.data_ptr() for tensor in tensors]
