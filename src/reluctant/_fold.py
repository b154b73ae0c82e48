"""A network for evaluation in which BatchNorm has become part of the layer before it."""

from __future__ import annotations

import copy
from collections import Counter

import torch
from torch import fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from reluctant._example import Example
from reluctant._randomness import undisturbed
from reluctant._rewired import Rewired
from reluctant._trace import trace

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


def folded(model: nn.Module, example: Example) -> fx.GraphModule:
    """Return the evaluation graph of a copy of the model, with every BatchNorm folded that directly follows a layer.

    Args:
        model: any network that torch.fx can follow; it is not changed.
        example: an input it accepts, with a batch dimension.

    Raises:
        TraceError: torch.fx cannot follow it.
    """
    root = copy.deepcopy(model)
    with undisturbed():
        traced = root.copied_trace() if isinstance(root, Rewired) else trace(root, example)
    graph = traced.graphs[False]
    made = fx.GraphModule(root.eval(), graph, type(model).__name__)
    calls = Counter(str(node.target) for node in graph.nodes if node.op == "call_module")
    with torch.no_grad():
        for node in list(made.graph.nodes):
            _fold_into_the_layer_before(made, node, calls)
    made.recompile()
    made.delete_all_unused_submodules()
    return made.eval()


def _fold_into_the_layer_before(made: fx.GraphModule, node: fx.Node, calls: Counter[str]) -> None:
    """Fold one call of a BatchNorm, if its layer has no other use and neither of the two is called twice."""
    if node.op != "call_module" or not isinstance(norm := made.get_submodule(str(node.target)), _BatchNorm):
        return
    before = node.args[0]
    if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
        return
    layer = made.get_submodule(str(before.target))
    fixed = norm.running_mean is not None
    if not fixed or calls[str(before.target)] > 1 or _has_hooks(layer) or _has_hooks(norm):
        return
    if type(layer) in _CONVOLUTIONS:
        made.set_submodule(str(before.target), fuse_conv_bn_eval(layer, norm))  # type: ignore[type-var]
    elif type(layer) is nn.Linear and type(norm) is nn.BatchNorm1d:
        made.set_submodule(str(before.target), fuse_linear_bn_eval(layer, norm))
    else:
        return
    node.replace_all_uses_with(before)
    made.graph.erase_node(node)


def _has_hooks(module: nn.Module) -> bool:
    return bool(module._forward_hooks or module._forward_pre_hooks or torch.nn.utils.parametrize.is_parametrized(module))
