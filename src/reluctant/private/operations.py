"""How each operation of torch becomes steps of a plan."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from reluctant.mask import MaskedReLU
from reluctant.private.builder import Builder, shape_of


def _conv(made: Builder, node: Any, module: nn.Conv2d) -> int:
    if module.padding_mode != "zeros":
        raise made.cannot(node, f"padding of mode '{module.padding_mode}'")
    padding = _padding(module)
    return made.affine(
        "conv", node, module.weight, module.bias, node.args[0],
        stride=list(module.stride), padding=padding, dilation=list(module.dilation), groups=module.groups,
    )  # fmt: skip


def _padding(module: nn.Conv2d) -> list[list[int]]:
    if isinstance(module.padding, str):
        reach = [
            d * (k - 1) if module.padding == "same" else 0 for d, k in zip(module.dilation, module.kernel_size, strict=True)
        ]
        return [[each // 2, each - each // 2] for each in reach]
    return [[int(each), int(each)] for each in module.padding]


def _linear(made: Builder, node: Any, module: nn.Linear) -> int:
    return made.affine("linear", node, module.weight, module.bias, node.args[0])


def _batch_norm(made: Builder, node: Any, module: _BatchNorm) -> int:
    """One that could not be folded: a factor and a summand for every channel, as a 1×1 convolution of groups."""
    shape = shape_of(node)
    if module.running_mean is None or module.running_var is None or len(shape) != 3:
        raise made.cannot(node, "a BatchNorm of vectors, or without running statistics,")
    factor = torch.rsqrt(module.running_var.double() + module.eps)
    if module.weight is not None:
        factor = factor * module.weight.double()
    bias = -module.running_mean.double() * factor
    if module.bias is not None:
        bias = bias + module.bias.double()
    return made.affine(
        "conv", node, factor[:, None, None, None], bias, node.args[0],
        stride=[1, 1], padding=[[0, 0], [0, 0]], dilation=[1, 1], groups=shape[0],
    )  # fmt: skip


def _identity(made: Builder, node: Any, *_: Any) -> int:
    return made.value(node, node.args[0])


def _relu_function(made: Builder, node: Any, *_: Any) -> int:
    return made.relu(node, torch.ones(shape_of(node), dtype=torch.bool), False)


def _sum_of_two(made: Builder, node: Any) -> int:
    left, right = node.args[:2]
    if node.kwargs.get("alpha", 1) != 1 or shape_of(left) != shape_of(right):
        raise made.cannot(node, "an addition with broadcasting or a factor")
    return made.add("add", [left, right], node)


def _reshape(made: Builder, node: Any, *_: Any) -> int:
    source = node.args[0]
    kept = isinstance(source, fx.Node) and source.meta["tensor_meta"].shape[0] == node.meta["tensor_meta"].shape[0]
    if not kept:
        raise made.cannot(node, "a reshape that mixes the batch with something else")
    if shape_of(source) == shape_of(node):
        return made.value(node, source)
    return made.add("reshape", source, node)


def _concat(made: Builder, node: Any) -> int:
    parts = node.args[0]
    axis = int(node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0))
    axis = axis if axis >= 0 else axis + len(shape_of(node)) + 1
    if axis == 0:
        raise made.cannot(node, "a concatenation along the batch")
    return made.add("concat", list(parts), node, axis=axis - 1)


def _slice(made: Builder, node: Any) -> int:
    source, index = node.args[0], node.args[1]
    index = index if isinstance(index, tuple) else (index,)
    shape = shape_of(source)
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index = (*index[:at], *[slice(None)] * (len(shape) + 2 - len(index)), *index[at + 1 :])
    index = (*index, *[slice(None)] * (len(shape) + 1 - len(index)))
    whole = index[0] == slice(None)
    if not whole or not all(isinstance(each, slice) and (each.step or 1) > 0 for each in index):
        raise made.cannot(node, "an index that is not a slice, or a slice of the batch,")
    ranges = [each.indices(size) for each, size in zip(index[1:], shape, strict=True)]
    return made.add("slice", source, node, start=[r[0] for r in ranges], step=[r[2] for r in ranges])


def _pad(made: Builder, node: Any) -> int:
    widths = list(node.args[1] if len(node.args) > 1 else node.kwargs["pad"])
    mode = node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")
    value = node.args[3] if len(node.args) > 3 else node.kwargs.get("value", 0.0)
    if mode != "constant" or value not in (None, 0, 0.0) or min(widths) < 0:
        raise made.cannot(node, "padding with anything but zeros")
    shape = shape_of(node.args[0])
    before = [0] * len(shape)
    for position, width in enumerate(widths[::2]):
        before[len(shape) - 1 - position] = int(width)
    return made.add("pad", node.args[0], node, before=before)


def _zero_pad(made: Builder, node: Any, module: nn.ZeroPad2d) -> int:
    left, _, top, _ = module.padding
    return made.add("pad", node.args[0], node, before=[0, int(top), int(left)])


def _average(
    made: Builder, node: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, include_pad: bool, divisor: Any
) -> int:
    kernel, padding = _pair(kernel), _pair(padding)
    stride = _pair(stride) if stride not in (None, ()) else kernel
    if any(padding) and not include_pad:
        raise made.cannot(node, "average pooling that does not count its padding")
    if ceil:
        raise made.cannot(node, "average pooling in ceil mode")
    return made.add(
        "pool", node.args[0], node, kernel=list(kernel), stride=list(stride),
        padding=[[p, p] for p in padding], divisor=int(divisor or math.prod(kernel)),
    )  # fmt: skip


def _average_module(made: Builder, node: Any, module: nn.AvgPool2d) -> int:
    return _average(
        made, node, module.kernel_size, module.stride, module.padding, module.ceil_mode, module.count_include_pad,
        module.divisor_override,
    )  # fmt: skip


def _average_function(made: Builder, node: Any) -> int:
    given = _arguments(node, "kernel_size stride padding ceil_mode count_include_pad divisor_override")
    return _average(
        made, node, given["kernel_size"], given.get("stride"), given.get("padding", 0), given.get("ceil_mode", False),
        given.get("count_include_pad", True), given.get("divisor_override"),
    )  # fmt: skip


def _adaptive(made: Builder, node: Any, *_: Any) -> int:
    """Adaptive average pooling whose windows are all alike."""
    size, result = shape_of(node.args[0])[1:], shape_of(node)[1:]
    if any(n % m for n, m in zip(size, result, strict=True)):
        raise made.cannot(node, f"adaptive pooling from {size} to {result}, whose windows overlap,")
    kernel = [n // m for n, m in zip(size, result, strict=True)]
    if kernel == [1, 1]:
        return made.value(node, node.args[0])
    return made.add(
        "pool", node.args[0], node, kernel=kernel, stride=kernel, padding=[[0, 0], [0, 0]], divisor=math.prod(kernel)
    )


def _mean(made: Builder, node: Any) -> int:
    """A mean over height and width."""
    given = _arguments(node, "dim keepdim")
    dims = given.get("dim", ())
    dims = [dims] if isinstance(dims, int) else list(dims)
    shape = shape_of(node.args[0])
    if len(shape) != 3 or sorted(d % 4 for d in dims) != [2, 3]:
        raise made.cannot(node, "a mean over anything but height and width")
    kernel = list(shape[1:])
    pooled = made.add(
        "pool", node.args[0], node, (shape[0], 1, 1), kernel=kernel, stride=kernel, padding=[[0, 0], [0, 0]],
        divisor=math.prod(kernel),
    )  # fmt: skip
    return pooled if given.get("keepdim") else made.add("reshape", pooled, node)


def _max(made: Builder, node: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> int:
    kernel, padding = _pair(kernel), _pair(padding)
    stride = _pair(stride) if stride not in (None, ()) else kernel
    if _pair(dilation) != (1, 1):
        raise made.cannot(node, "max-pooling with dilation")
    size, result = shape_of(node.args[0])[1:], shape_of(node)[1:]
    after = [
        max(p, (m - 1) * s + k - n - p) if ceil else p
        for n, m, k, s, p in zip(size, result, kernel, stride, padding, strict=True)
    ]
    return made.add(
        "max_pool", node.args[0], node, kernel=list(kernel), stride=list(stride),
        padding=[[p, a] for p, a in zip(padding, after, strict=True)],
    )  # fmt: skip


def _max_module(made: Builder, node: Any, module: nn.MaxPool2d) -> int:
    return _max(made, node, module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)


def _max_function(made: Builder, node: Any) -> int:
    given = _arguments(node, "kernel_size stride padding dilation ceil_mode")
    return _max(
        made, node, given["kernel_size"], given.get("stride"), given.get("padding", 0), given.get("dilation", 1),
        given.get("ceil_mode", False),
    )  # fmt: skip


def _arguments(node: Any, names: str) -> dict[str, Any]:
    return dict(zip(names.split(), node.args[1:], strict=False)) | dict(node.kwargs)


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _masked_relu(made: Builder, node: Any, module: MaskedReLU) -> int:
    return made.relu(node, module.mask, module.zero_out)


MODULES: dict[type[nn.Module], Callable[..., int]] = {
    MaskedReLU: _masked_relu,
    nn.ReLU: _relu_function,
    nn.Conv2d: _conv,
    nn.Linear: _linear,
    nn.BatchNorm2d: _batch_norm,
    nn.Identity: _identity,
    nn.Dropout: _identity,
    nn.Dropout2d: _identity,
    nn.Flatten: _reshape,
    nn.Unflatten: _reshape,
    nn.AvgPool2d: _average_module,
    nn.AdaptiveAvgPool2d: _adaptive,
    nn.MaxPool2d: _max_module,
    nn.ZeroPad2d: _zero_pad,
}

FUNCTIONS: dict[Any, Callable[..., int]] = {
    torch.relu: _relu_function,
    F.relu: _relu_function,
    "relu": _relu_function,
    operator.add: _sum_of_two,
    operator.iadd: _sum_of_two,
    torch.add: _sum_of_two,
    "add": _sum_of_two,
    "add_": _sum_of_two,
    torch.flatten: _reshape,
    torch.reshape: _reshape,
    torch.squeeze: _reshape,
    "flatten": _reshape,
    "reshape": _reshape,
    "view": _reshape,
    "squeeze": _reshape,
    "unsqueeze": _reshape,
    "contiguous": _identity,
    F.dropout: _identity,
    torch.cat: _concat,
    torch.concat: _concat,
    operator.getitem: _slice,
    F.pad: _pad,
    F.avg_pool2d: _average_function,
    F.adaptive_avg_pool2d: _adaptive,
    F.max_pool2d: _max_function,
    torch.max_pool2d: _max_function,
    torch.mean: _mean,
    "mean": _mean,
}
