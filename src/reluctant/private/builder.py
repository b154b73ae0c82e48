"""A plan in the making: steps, kept indices and weights, and the value that every node of a graph has become."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx

from reluctant.errors import PlanError
from reluctant.private.plan import Step

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Weights:
    """What the server keeps: a weight and a bias for each affine step, by its number."""

    weight: dict[int, Floats] = field(default_factory=dict)
    bias: dict[int, Floats] = field(default_factory=dict)


class Builder:
    """Takes steps; knows for every node the value that it has become."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.kept: dict[int, NDArray[np.int64]] = {}
        self.weights = Weights()
        self.values: dict[fx.Node, int] = {}

    def cannot(self, node: Any, what: str) -> PlanError:
        """Make the error that says what cannot be lowered, and where it is."""
        where = node.meta.get("caller") or node.name
        return PlanError(
            f"{what} at '{where}' cannot be lowered to a plan; replace it, or leave private inference to others"
        )

    def value(self, node: Any, argument: Any) -> int:
        """Return the value that an argument of a node has become."""
        if not isinstance(argument, fx.Node) or argument not in self.values:
            raise self.cannot(node, f"a constant or a number ({argument}) in an operation")
        return self.values[argument]

    def add(self, kind: str, source: Any, node: Any, shape: tuple[int, ...] | None = None, **options: Any) -> int:
        """Take a step of one source or several: nodes, or numbers of values."""
        sources = source if isinstance(source, list | tuple) else [source]
        inputs = tuple(each if isinstance(each, int) else self.value(node, each) for each in sources)
        self.steps.append(Step(kind, inputs, shape or shape_of(node), str(node.meta.get("caller") or node.name), options))
        return len(self.steps)

    def relu(self, node: Any, mask: Tensor, zero_out: bool) -> int:
        """Take a ReLU step of what a mask keeps; without anything kept there is none."""
        if zero_out:
            raise self.cannot(node, "a mask that makes what it does not keep zero")
        source = self.value(node, node.all_input_nodes[0])
        indices = mask.expand(shape_of(node)).flatten().nonzero().flatten().numpy()
        if not len(indices):
            return source  # the site vanishes
        value = self.add("relu", source, node)
        self.kept[value - 1] = indices.astype(np.int64)
        return value

    def affine(self, kind: str, node: Any, weight: Tensor, bias: Tensor | None, source: Any, **options: Any) -> int:
        """Take an affine step, and keep its weights."""
        value = self.add(kind, source, node, weight=list(weight.shape), **options)
        outputs = weight.shape[0]
        self.weights.weight[value - 1] = weight.detach().double().numpy()
        self.weights.bias[value - 1] = np.zeros(outputs) if bias is None else bias.detach().double().numpy()
        return value


def shape_of(node: Any) -> tuple[int, ...]:
    """Return the shape of a node's result, without the batch."""
    meta = node.meta.get("tensor_meta")
    if meta is None or not isinstance(getattr(meta, "shape", None), torch.Size):
        raise PlanError(f"'{node.name}' is not one tensor and cannot be lowered to a plan")
    return tuple(meta.shape[1:])
