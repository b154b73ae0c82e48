"""The example input that comes with a model: one tensor, a tuple of arguments, or a dict of keyword arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from reluctant.errors import ExampleError

Example = Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]


def arguments(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Turn an example into `(args, kwargs)`, every tensor cloned so that in-place operations cannot reach it."""
    if isinstance(example, Tensor):
        args: tuple[Any, ...] = (example,)
        kwargs: dict[str, Any] = {}
    elif isinstance(example, Mapping):
        args, kwargs = (), dict(example)
    elif isinstance(example, tuple | list):
        args, kwargs = tuple(example), {}
    else:
        raise ExampleError(
            f"the example input is a {type(example).__name__}; pass a tensor with a batch dimension, "
            "a tuple of arguments or a dict of keyword arguments"
        )
    if not any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves((args, kwargs))):
        raise ExampleError("the example input holds no tensor; pass at least one, with a batch dimension")
    cloned: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_map_only(Tensor, torch.clone, (args, kwargs))
    return cloned


def batch_size(example: Example) -> int:
    """Return the first dimension of the first tensor."""
    first = next(leaf for leaf in pytree.tree_leaves(arguments(example)) if isinstance(leaf, Tensor))
    if first.dim() == 0:
        raise ExampleError("the example input is a scalar; pass a tensor with a batch dimension, such as 1×3×32×32")
    if first.shape[0] == 0:
        raise ExampleError(f"the example input is an empty batch of shape {spell(first.shape)}; pass at least one example")
    return int(first.shape[0])


def describe(example: Example) -> str:
    """Spell the shapes of an example.

    >>> describe((torch.zeros(1, 3, 32, 32), torch.zeros(1, 5)))
    '1×3×32×32, 1×5'
    """
    leaves = [leaf for leaf in pytree.tree_leaves(arguments(example)) if isinstance(leaf, Tensor)]
    return ", ".join(spell(leaf.shape) for leaf in leaves)


def spell(shape: tuple[int, ...]) -> str:
    """Write a shape as people do.

    >>> spell((64, 32, 32)), spell(())
    ('64×32×32', 'scalar')
    """
    return "×".join(str(size) for size in shape) or "scalar"
