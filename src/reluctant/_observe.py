"""What a network does beside its sites: the non-linear operations that also cost something under private inference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from reluctant._tracer import line_of_user_code

# aten operation → the name people know it by. An operation that is not here is affine, or moves data, or multiplies.
_KINDS = {
    name: name
    for name in (
        "relu threshold clamp clamp_min clamp_max hardtanh leaky_relu elu gelu silu mish hardswish hardsigmoid sigmoid "
        "tanh softplus softshrink hardshrink glu adaptive_max_pool2d adaptive_max_pool3d fractional_max_pool2d "
        "fractional_max_pool3d amax amin max min maximum minimum abs sign exp log sqrt rsqrt reciprocal erf sin cos "
        "where sort topk argmax gt lt ge le celu selu logsumexp std var log1p log2 log10 xlogy atan atan2 round floor ceil "
        "median cummax cummin heaviside erfc expm1 sinh cosh asin acos tan remainder fmod lgamma digamma"
    ).split()
} | {
    "_prelu_kernel": "prelu",
    "rrelu_with_noise": "rrelu",
    "log_sigmoid_forward": "logsigmoid",
    "_softmax": "softmax",
    "_log_softmax": "log_softmax",
    "max_pool2d_with_indices": "max_pool2d",
    "max_pool3d_with_indices": "max_pool3d",
    "native_layer_norm": "layer_norm",
    "native_group_norm": "group_norm",
    "linalg_vector_norm": "norm",
    "_cdist_forward": "cdist",
    "mkldnn_rnn_layer": "lstm",
    "lstm": "lstm",
    "gru": "gru",
    "rnn_tanh": "rnn",
    "rnn_relu": "relu",
    "std_mean": "std",
    "var_mean": "var",
}


@dataclass(frozen=True)
class Place:
    """Where an operation runs: inside the leaf module of this path, or in the forward of the module of this path."""

    path: str
    leaf: bool = False


@dataclass(frozen=True)
class Observed:
    """One non-linear operation as it ran."""

    place: Place
    kind: str
    count: int
    """Elements of its result for one example; for attention, the elements that the softmax inside it normalises."""
    line: str = ""


class Observer(TorchDispatchMode):
    """Notes every non-linear operation that runs under it, at the place that is current then."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.observed: list[Observed] = []
        self._batch = batch
        self._places: list[Place | None] = [Place("")]

    @contextmanager
    def at(self, place: Place | None) -> Iterator[None]:
        """Attribute what happens in the block to `place`; None: do not look."""
        self._places.append(place)
        try:
            yield
        finally:
            self._places.pop()

    def note(self, place: Place, kind: str, elements: int) -> None:
        """Note one operation whose result has so many elements for the whole batch."""
        self.observed.append(Observed(place, kind, -(-elements // self._batch), line_of_user_code(skip=1)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and note it if it is non-linear."""
        out = func(*args, **(kwargs or {}))
        place = self._places[-1]
        if place is None:
            return out
        name = func.overloadpacket.__name__
        if "scaled_dot_product" in name:
            self.note(place, "softmax", prod(args[0].shape[:-1]) * args[1].shape[-2])
        elif kind := _KINDS.get(name) or _KINDS.get(name.removesuffix("_")) or _by_arguments(name, args):
            first = next((leaf for leaf in pytree.tree_leaves(out) if isinstance(leaf, Tensor)), None)
            if first is not None:
                self.note(place, _precise(kind, args), first.numel())
        return out


def _by_arguments(name: str, args: tuple[Any, ...]) -> str | None:
    """Name the operations that are non-linear for some arguments only."""
    name = name.removesuffix("_")
    second = args[1] if len(args) > 1 else None
    if name == "div" and isinstance(second, Tensor) and second.numel() > 1:
        return "div"
    if name == "pow" and not (isinstance(second, int | float) and second >= 0 and second == int(second)):
        return "pow"
    if name == "native_batch_norm" and args[5]:
        return "instance_norm"  # by the statistics of this very input
    return None


def _precise(kind: str, args: tuple[Any, ...]) -> str:
    """Call a clamp what it is: torch runs ReLU6 as a hardtanh, and some write a ReLU as a clamp."""
    bounds = tuple(args[1:3])
    if kind == "hardtanh" and bounds == (0, 6):
        return "relu6"
    if kind in ("clamp", "clamp_min") and bounds in ((0,), (0, None)):
        return "relu"
    return kind


@contextmanager
def visible_attention() -> Iterator[None]:
    """Keep nn.MultiheadAttention from its fused path, inside which nothing can be observed."""
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
