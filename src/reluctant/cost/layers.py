"""The layers of a network as private inference sees them: linear ones with multiplications, and sites with ReLUs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import FlopCounterMode

from reluctant import sites
from reluctant._example import Example, arguments, batch_size
from reluctant.slopes import FixedReLU, SlopedReLU, attach


@dataclass(frozen=True)
class Layer:
    """One step of a query; all figures are of one example."""

    name: str
    kind: str
    """`linear` or `relu`."""
    relus: int = 0
    macs: int = 0
    """Multiplications and additions of a linear layer."""
    inputs: int = 0
    outputs: int = 0


def layers(model: nn.Module, example: Example) -> tuple[list[Layer], sites.Sites]:
    """Return the layers in the order in which they run, and what was counted.

    Raises:
        ModelError, ExampleError: as `count`.
    """
    found = sites.count(model, example)
    relus = found.by_site()
    student = attach(model, example).eval()
    batch = batch_size(example)
    seen: list[tuple[str, nn.Module, int, int, int]] = []
    args, kwargs = arguments(example)
    with torch.no_grad(), FlopCounterMode(display=False) as counter, _observed(student, counter, seen):
        student(*args, **kwargs)
    ordered = []
    for name, module, flops, inputs, outputs in seen:
        if isinstance(module, SlopedReLU | FixedReLU):
            ordered.append(Layer(module.site, "relu", relus=relus.get(module.site, 0)))
        elif flops:
            ordered.append(Layer(name, "linear", 0, flops // 2 // batch, inputs // batch, outputs // batch))
    shown = {layer.name for layer in ordered}
    beyond = [Layer(site, "relu", relus=n) for site, n in relus.items() if site not in shown]
    return ordered + beyond, found


@contextmanager
def _observed(root: nn.Module, counter: FlopCounterMode, seen: list[Any]) -> Iterator[None]:
    """Note every module as it ends, with the operations that are its own and not those of modules inside it."""
    open_calls: list[list[int]] = []
    names = {module: name or type(module).__name__ for name, module in root.named_modules()}

    def before(module: nn.Module, args: Any) -> None:
        open_calls.append([counter.get_total_flops(), 0])

    def after(module: nn.Module, args: Any, out: Any) -> None:
        began, inside = open_calls.pop()
        all_of_it = counter.get_total_flops() - began
        if open_calls:
            open_calls[-1][1] += all_of_it
        seen.append((names[module], module, all_of_it - inside, _elements(args), _elements(out)))

    handles = [m.register_forward_pre_hook(before) for m in root.modules()]
    handles += [m.register_forward_hook(after) for m in root.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _elements(values: Any) -> int:
    return sum(prod(leaf.shape) for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor))
