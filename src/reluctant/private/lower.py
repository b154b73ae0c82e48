"""From a masked network to a plan and the weights that go with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp

from reluctant._fold import folded
from reluctant.errors import PlanError, TraceError
from reluctant.private.builder import Builder, Weights, shape_of
from reluctant.private.operations import FUNCTIONS, MODULES
from reluctant.private.plan import Plan


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
    made = Builder()
    for node in graph.graph.nodes:
        _lower(made, node, graph)
    plan = Plan(tuple(made.steps), tuple(input_shape), made.kept, mean=mean, std=std, classes=classes, data=data)
    plan.check()
    return plan, made.weights


def _lower(made: Builder, node: Any, graph: fx.GraphModule) -> None:
    """Lower one node of a graph."""
    if node.op == "placeholder":
        if made.values:
            raise PlanError("the network takes several inputs; private inference has one")
        made.values[node] = 0
    elif node.op == "output":
        result = node.args[0]
        if not isinstance(result, fx.Node) or result not in made.values:
            raise PlanError("the network returns more than one tensor; private inference has one result")
        if made.values[result] != len(made.steps):  # the result is the last value, whatever came after it
            made.add("reshape", result, node, shape_of(result))
    elif node.op == "call_module":
        made.values[node] = _module(made, node, graph.get_submodule(str(node.target)))
    elif node.op != "get_attr":  # a constant: whoever uses it will say whether that is possible
        made.values[node] = _function(made, node)


def _module(made: Builder, node: Any, module: nn.Module) -> int:
    operation = next((each for kind, each in MODULES.items() if isinstance(module, kind)), None)
    if operation is None:
        raise made.cannot(node, f"the module {type(module).__name__}")
    return operation(made, node, module)


def _function(made: Builder, node: Any) -> int:
    operation = FUNCTIONS.get(node.target)
    if operation is None:
        raise made.cannot(node, f"the operation '{getattr(node.target, '__name__', node.target)}'")
    return operation(made, node)
