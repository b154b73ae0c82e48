"""From a masked network to a plan and the weights that go with it."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

from reluctant._fold import folded
from reluctant.errors import PlanError, TraceError
from reluctant.mask import MaskedReLU
from reluctant.private.plan import Plan, Step

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Weights:
    """What the server keeps: a weight and a bias for each affine step, by its number."""

    weight: dict[int, Floats] = field(default_factory=dict)
    bias: dict[int, Floats] = field(default_factory=dict)


def lower(
    model: nn.Module,
    input_shape: tuple[int, ...],
    *,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    classes: tuple[str, ...] = (),
    data: str = "",
) -> tuple[Plan, Weights]:
    """Turn a network, masked or not, into a plan and its weights.

    Args:
        model: the network; it is not changed.
        input_shape: of one input, without a batch.
        mean: of each channel, that images are normalised with.
        std: and their standard deviation.
        classes: the names of its outputs.
        data: the name of its data set.

    Returns:
        The plan, public, with scales still to be calibrated; and the weights, the server's own.

    Raises:
        PlanError: an operation cannot be lowered; it is named.
        TraceError: torch.fx cannot follow the network.
    """
    example = torch.zeros(2, *input_shape)
    try:
        graph = folded(model, example)
    except TraceError as error:
        raise PlanError(f"the network cannot become a plan: {error}") from error
    with torch.no_grad():
        ShapeProp(graph).propagate(example)
    made = _Lowering(graph)
    for node in graph.graph.nodes:
        made.lower(node)
    plan = Plan(tuple(made.steps), tuple(input_shape), made.kept, mean=mean, std=std, classes=classes, data=data)
    plan.check()
    return plan, made.weights


class _Lowering:
    """Walks a graph; knows for every node the value that it has become."""

    def __init__(self, graph: fx.GraphModule) -> None:
        self.graph = graph
        self.steps: list[Step] = []
        self.kept: dict[int, NDArray[np.int64]] = {}
        self.weights = Weights()
        self.values: dict[fx.Node, int] = {}
        self.done = False

    def lower(self, node: Any) -> None:
        if node.op == "placeholder":
            if self.values:
                raise PlanError("the network takes several inputs; private inference has one")
            self.values[node] = 0
        elif node.op == "output":
            result = node.args[0]
            if not isinstance(result, fx.Node) or result not in self.values:
                raise PlanError("the network returns more than one tensor; private inference has one result")
            if self.values[result] != len(self.steps):  # the result is the last value, whatever came after it
                self._add("reshape", result, node, _shape(result))
        elif node.op == "get_attr":
            return  # a constant: whoever uses it will say whether that is possible
        else:
            self.values[node] = self._call(node)

    def _call(self, node: Any) -> int:
        if node.op == "call_module":
            return self._module(node, self.graph.get_submodule(str(node.target)))
        function = _FUNCTIONS.get(node.target)
        if function is None:
            name = getattr(node.target, "__name__", node.target)
            raise self._cannot(node, f"the operation '{name}'")
        return function(self, node)

    def _module(self, node: Any, module: nn.Module) -> int:
        if isinstance(module, MaskedReLU):
            return self._relu(node, module.mask, module.zero_out)
        if isinstance(module, nn.ReLU):
            return self._relu(node, torch.ones(_shape(node), dtype=torch.bool), False)
        lowering = next((each for kind, each in _MODULES.items() if isinstance(module, kind)), None)
        if lowering is None:
            raise self._cannot(node, f"the module {type(module).__name__}")
        return lowering(self, node, module)

    def _cannot(self, node: Any, what: str) -> PlanError:
        where = node.meta.get("caller") or node.name
        return PlanError(
            f"{what} at '{where}' cannot be lowered to a plan; replace it, or leave private inference to others"
        )

    def _value(self, node: Any, argument: Any) -> int:
        if not isinstance(argument, fx.Node) or argument not in self.values:
            raise self._cannot(node, f"a constant or a number ({argument}) in an operation")
        return self.values[argument]

    def _add(self, kind: str, source: Any, node: Any, shape: tuple[int, ...] | None = None, **options: Any) -> int:
        sources = source if isinstance(source, list | tuple) else [source]
        inputs = tuple(each if isinstance(each, int) else self._value(node, each) for each in sources)
        self.steps.append(Step(kind, inputs, shape or _shape(node), str(node.meta.get("caller") or node.name), options))
        return len(self.steps)

    def _relu(self, node: Any, mask: Tensor, zero_out: bool) -> int:
        if zero_out:
            raise self._cannot(node, "a mask that makes what it does not keep zero")
        source = self._value(node, node.all_input_nodes[0])
        indices = mask.expand(_shape(node)).flatten().nonzero().flatten().numpy()
        if not len(indices):
            return source  # the site vanishes
        value = self._add("relu", source, node)
        self.kept[value - 1] = indices.astype(np.int64)
        return value

    def _affine(self, kind: str, node: Any, weight: Tensor, bias: Tensor | None, source: Any, **options: Any) -> int:
        value = self._add(kind, source, node, weight=list(weight.shape), **options)
        outputs = weight.shape[0]
        self.weights.weight[value - 1] = weight.detach().double().numpy()
        self.weights.bias[value - 1] = np.zeros(outputs) if bias is None else bias.detach().double().numpy()
        return value


def _conv(self: _Lowering, node: Any, module: nn.Conv2d) -> int:
    if module.padding_mode != "zeros":
        raise self._cannot(node, f"padding of mode '{module.padding_mode}'")
    padding = _padding(module)
    return self._affine(
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


def _linear(self: _Lowering, node: Any, module: nn.Linear) -> int:
    return self._affine("linear", node, module.weight, module.bias, node.args[0])


def _batch_norm(self: _Lowering, node: Any, module: _BatchNorm) -> int:
    """One that could not be folded: a factor and a summand for every channel, as a 1×1 convolution of groups."""
    shape = _shape(node)
    if module.running_mean is None or module.running_var is None or len(shape) != 3:
        raise self._cannot(node, "a BatchNorm of vectors, or without running statistics,")
    factor = torch.rsqrt(module.running_var.double() + module.eps)
    if module.weight is not None:
        factor = factor * module.weight.double()
    bias = -module.running_mean.double() * factor
    if module.bias is not None:
        bias = bias + module.bias.double()
    return self._affine(
        "conv", node, factor[:, None, None, None], bias, node.args[0],
        stride=[1, 1], padding=[[0, 0], [0, 0]], dilation=[1, 1], groups=shape[0],
    )  # fmt: skip


def _identity(self: _Lowering, node: Any, *_: Any) -> int:
    return self._value(node, node.args[0])


def _relu_function(self: _Lowering, node: Any) -> int:
    return self._relu(node, torch.ones(_shape(node), dtype=torch.bool), False)


def _sum_of_two(self: _Lowering, node: Any) -> int:
    left, right = node.args[:2]
    if node.kwargs.get("alpha", 1) != 1 or _shape(left) != _shape(right):
        raise self._cannot(node, "an addition with broadcasting or a factor")
    return self._add("add", [left, right], node)


def _reshape(self: _Lowering, node: Any, *_: Any) -> int:
    source = node.args[0]
    kept = isinstance(source, fx.Node) and source.meta["tensor_meta"].shape[0] == node.meta["tensor_meta"].shape[0]
    if not kept:
        raise self._cannot(node, "a reshape that mixes the batch with something else")
    if _shape(source) == _shape(node):
        return self._value(node, source)
    return self._add("reshape", source, node)


def _concat(self: _Lowering, node: Any) -> int:
    parts = node.args[0]
    axis = int(node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0))
    axis = axis if axis >= 0 else axis + len(_shape(node)) + 1
    if axis == 0:
        raise self._cannot(node, "a concatenation along the batch")
    return self._add("concat", list(parts), node, axis=axis - 1)


def _slice(self: _Lowering, node: Any) -> int:
    source, index = node.args[0], node.args[1]
    index = index if isinstance(index, tuple) else (index,)
    shape = _shape(source)
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index = (*index[:at], *[slice(None)] * (len(shape) + 2 - len(index)), *index[at + 1 :])
    index = (*index, *[slice(None)] * (len(shape) + 1 - len(index)))
    whole = index[0] == slice(None)
    if not whole or not all(isinstance(each, slice) and (each.step or 1) > 0 for each in index):
        raise self._cannot(node, "an index that is not a slice, or a slice of the batch,")
    ranges = [each.indices(size) for each, size in zip(index[1:], shape, strict=True)]
    return self._add("slice", source, node, start=[r[0] for r in ranges], step=[r[2] for r in ranges])


def _pad(self: _Lowering, node: Any) -> int:
    widths = list(node.args[1] if len(node.args) > 1 else node.kwargs["pad"])
    mode = node.args[2] if len(node.args) > 2 else node.kwargs.get("mode", "constant")
    value = node.args[3] if len(node.args) > 3 else node.kwargs.get("value", 0.0)
    if mode != "constant" or value not in (None, 0, 0.0) or min(widths) < 0:
        raise self._cannot(node, "padding with anything but zeros")
    shape = _shape(node.args[0])
    before = [0] * len(shape)
    for position, width in enumerate(widths[::2]):
        before[len(shape) - 1 - position] = int(width)
    return self._add("pad", node.args[0], node, before=before)


def _zero_pad(self: _Lowering, node: Any, module: nn.ZeroPad2d) -> int:
    left, _, top, _ = module.padding
    return self._add("pad", node.args[0], node, before=[0, int(top), int(left)])


def _average(
    self: _Lowering, node: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, include_pad: bool, divisor: Any
) -> int:
    kernel, padding = _pair(kernel), _pair(padding)
    stride = _pair(stride) if stride not in (None, ()) else kernel
    if any(padding) and not include_pad:
        raise self._cannot(node, "average pooling that does not count its padding")
    if ceil:
        raise self._cannot(node, "average pooling in ceil mode")
    return self._add(
        "pool", node.args[0], node, kernel=list(kernel), stride=list(stride),
        padding=[[p, p] for p in padding], divisor=int(divisor or math.prod(kernel)),
    )  # fmt: skip


def _average_module(self: _Lowering, node: Any, module: nn.AvgPool2d) -> int:
    return _average(
        self, node, module.kernel_size, module.stride, module.padding, module.ceil_mode, module.count_include_pad,
        module.divisor_override,
    )  # fmt: skip


def _average_function(self: _Lowering, node: Any) -> int:
    given = _arguments(node, "kernel_size stride padding ceil_mode count_include_pad divisor_override")
    return _average(
        self, node, given["kernel_size"], given.get("stride"), given.get("padding", 0), given.get("ceil_mode", False),
        given.get("count_include_pad", True), given.get("divisor_override"),
    )  # fmt: skip


def _adaptive(self: _Lowering, node: Any, *_: Any) -> int:
    """Adaptive average pooling whose windows are all alike."""
    size, result = _shape(node.args[0])[1:], _shape(node)[1:]
    if any(n % m for n, m in zip(size, result, strict=True)):
        raise self._cannot(node, f"adaptive pooling from {size} to {result}, whose windows overlap,")
    kernel = [n // m for n, m in zip(size, result, strict=True)]
    if kernel == [1, 1]:
        return self._value(node, node.args[0])
    return self._add(
        "pool", node.args[0], node, kernel=kernel, stride=kernel, padding=[[0, 0], [0, 0]], divisor=math.prod(kernel)
    )


def _mean(self: _Lowering, node: Any) -> int:
    """A mean over height and width."""
    given = _arguments(node, "dim keepdim")
    dims = given.get("dim", ())
    dims = [dims] if isinstance(dims, int) else list(dims)
    shape = _shape(node.args[0])
    if len(shape) != 3 or sorted(d % 4 for d in dims) != [2, 3]:
        raise self._cannot(node, "a mean over anything but height and width")
    kernel = list(shape[1:])
    pooled = self._add(
        "pool", node.args[0], node, (shape[0], 1, 1), kernel=kernel, stride=kernel, padding=[[0, 0], [0, 0]],
        divisor=math.prod(kernel),
    )  # fmt: skip
    return pooled if given.get("keepdim") else self._add("reshape", pooled, node)


def _max(self: _Lowering, node: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> int:
    kernel, padding = _pair(kernel), _pair(padding)
    stride = _pair(stride) if stride not in (None, ()) else kernel
    if _pair(dilation) != (1, 1):
        raise self._cannot(node, "max-pooling with dilation")
    size, result = _shape(node.args[0])[1:], _shape(node)[1:]
    after = [
        max(p, (m - 1) * s + k - n - p) if ceil else p
        for n, m, k, s, p in zip(size, result, kernel, stride, padding, strict=True)
    ]
    return self._add(
        "max_pool", node.args[0], node, kernel=list(kernel), stride=list(stride),
        padding=[[p, a] for p, a in zip(padding, after, strict=True)],
    )  # fmt: skip


def _max_module(self: _Lowering, node: Any, module: nn.MaxPool2d) -> int:
    return _max(self, node, module.kernel_size, module.stride, module.padding, module.dilation, module.ceil_mode)


def _max_function(self: _Lowering, node: Any) -> int:
    given = _arguments(node, "kernel_size stride padding dilation ceil_mode")
    return _max(
        self, node, given["kernel_size"], given.get("stride"), given.get("padding", 0), given.get("dilation", 1),
        given.get("ceil_mode", False),
    )  # fmt: skip


def _arguments(node: Any, names: str) -> dict[str, Any]:
    return dict(zip(names.split(), node.args[1:], strict=False)) | dict(node.kwargs)


def _pair(value: Any) -> tuple[int, int]:
    return (int(value), int(value)) if isinstance(value, int) else (int(value[0]), int(value[-1]))


def _shape(node: Any) -> tuple[int, ...]:
    meta = node.meta.get("tensor_meta")
    if meta is None or not isinstance(getattr(meta, "shape", None), torch.Size):
        raise PlanError(f"'{node.name}' is not one tensor and cannot be lowered to a plan")
    return tuple(meta.shape[1:])


_MODULES: dict[type[nn.Module], Callable[..., int]] = {
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

_FUNCTIONS: dict[Any, Callable[..., int]] = {
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
