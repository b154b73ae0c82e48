"""3×3 convolutions in training with a quarter of the multiplications, on CPUs.

torch's convolutions run at the limit of what a CPU without matrix units multiplies; Winograd's algorithm multiplies less.
`winograd.c` has the arithmetic, this file says where it is used. It rounds otherwise than torch, by some 1e-6 of the
largest value: networks are trained with it, and evaluated without.
"""

from __future__ import annotations

from ctypes import CDLL, c_int, c_long, c_void_p
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from reluctant._native import NotCompiledError, compiled
from reluctant.errors import OptionError

_POINTS, _MULTIPLE, _FEWEST_TILES = 36, 16, 32


def available(wanted: bool | None, device: torch.device, dtype: torch.dtype) -> bool:
    """Tell whether to use it: where that is wanted, or is left open and it can be had.

    Raises:
        OptionError: it is wanted and cannot be had.
    """
    if wanted is False:
        return False
    widest = torch.backends.cpu.get_cpu_capability()
    reason = None
    if device.type != "cpu" or dtype != torch.float32:
        reason = "it is for CPUs and float32"
    elif widest not in ("AVX2", "AVX512"):
        reason = "this CPU has no AVX2"
    else:
        try:
            _library()
        except NotCompiledError as error:
            reason = str(error)
    if wanted and reason:
        raise OptionError(f"Winograd's convolutions cannot be had here: {reason}; leave training.winograd out")
    return reason is None


class Winograd(TorchFunctionMode):
    """Within it, convolutions that are faster by Winograd's algorithm are computed so, and the others by torch."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Compute what is called."""
        kwargs = kwargs or {}
        if function is torch.conv2d and _is_ours(*args, **kwargs):
            return _Convolution.apply(*_operands(*args, **kwargs))
        return function(*args, **kwargs)


def _operands(input: Tensor, weight: Tensor, bias: Tensor | None = None, *_: Any, **__: Any) -> tuple[Any, ...]:
    return input, weight, bias


def _is_ours(
    input: Tensor, weight: Tensor, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1
) -> bool:
    """Tell whether a convolution, called like torch's, is one that `winograd.c` can compute, and faster."""
    if input.dim() != 4 or weight.shape[2:] != (3, 3) or groups != 1:
        return False
    if _pair(stride) != (1, 1) or _pair(padding) != (1, 1) or _pair(dilation) != (1, 1):
        return False
    if any(channels % _MULTIPLE for channels in weight.shape[:2]):
        return False
    given = [input, weight] if bias is None else [input, weight, bias]
    if any(tensor.dtype != torch.float32 or tensor.device.type != "cpu" for tensor in given):
        return False
    images, _, height, width = input.shape
    tiles = -(-height // 4) * -(-width // 4)
    halved = 2 * _POINTS * tiles <= 9 * height * width
    return halved and images * tiles >= _FEWEST_TILES and input.is_contiguous(memory_format=torch.channels_last)


def _pair(value: Any) -> Any:
    return (value, value) if isinstance(value, int) else tuple(value)


class _Convolution(torch.autograd.Function):
    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return _convolve(x, _filters(weight.permute(1, 2, 3, 0)), weight.shape[0], bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        grad = grad.contiguous(memory_format=torch.channels_last)
        to_x, to_weight, to_bias = ctx.needs_input_grad
        return (
            _convolve(grad, _filters(weight.permute(0, 2, 3, 1), turned=True), x.shape[1]) if to_x else None,
            _filter_gradient(x, grad, weight) if to_weight else None,
            grad.sum((0, 2, 3)) if to_bias else None,
        )


def _filters(weight: Tensor, *, turned: bool = False) -> Tensor:
    """Transform filters, given with what is summed over first and what comes out last."""
    weight = weight.contiguous()
    summed, _, _, out = weight.shape
    points = weight.new_empty(_POINTS * summed * out)
    _library().reluctant_filters(_at(weight), _at(points), summed, out, turned, torch.get_num_threads())
    return points


def _convolve(x: Tensor, points: Tensor, filters: int, bias: Tensor | None = None) -> Tensor:
    images, channels, height, width = x.shape
    y = torch.empty((images, filters, height, width), memory_format=torch.channels_last)
    bias = None if bias is None else bias.contiguous()
    sizes = (images, height, width, channels, filters, torch.get_num_threads())
    _checked(_library().reluctant_convolve(_at(x), _at(points), None if bias is None else _at(bias), _at(y), *sizes))
    return y


def _filter_gradient(x: Tensor, grad: Tensor, weight: Tensor) -> Tensor:
    images, channels, height, width = x.shape
    to_weight = torch.empty_like(weight, memory_format=torch.channels_last)
    sizes = (images, height, width, channels, len(weight), torch.get_num_threads())
    _checked(_library().reluctant_filter_gradient(_at(x), _at(grad), _at(to_weight), *sizes))
    return to_weight


def _at(tensor: Tensor) -> int:
    return tensor.data_ptr()


def _checked(worked: int) -> None:
    if not worked:
        raise MemoryError("there is no memory left for a convolution; use smaller batches")


@cache
def _library() -> CDLL:
    library = compiled(Path(__file__).with_name("winograd.c"))
    library.reluctant_filters.argtypes = [c_void_p] * 2 + [c_long] * 2 + [c_int] * 2
    library.reluctant_filters.restype = None
    library.reluctant_convolve.argtypes = [c_void_p] * 4 + [c_long] * 5 + [c_int]
    library.reluctant_filter_gradient.argtypes = [c_void_p] * 3 + [c_long] * 5 + [c_int]
    return library
