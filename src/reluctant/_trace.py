"""A model as torch.fx graphs in which every ReLU call is one named node.

A ReLU can be written in many ways (`nn.ReLU`, in place or not, one module called many times, `F.relu`, `x.relu_()`,
`x.clamp(min=0)`, …). The graphs made here know one: `torch.relu(x)`, out of place, with the site's name in
`node.meta["site"]`. Whatever the model computes beside its ReLUs stays as it was.

torch.fx freezes `self.training`, so a model is traced in both modes; where the two graphs differ (functional dropout,
auxiliary heads) both are kept.
"""

from __future__ import annotations

import random
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from reluctant._example import Example
from reluctant._tracer import NOT_USER_CODE, Tracer, is_site
from reluctant.errors import TraceError, first_line

_RELUS = {F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_"}
_CLAMPS_MIN = {torch.clamp_min, torch.clamp_min_, "clamp_min", "clamp_min_"}
_CLAMPS = {torch.clamp, torch.clamp_, torch.clip, torch.clip_, "clamp", "clamp_", "clip", "clip_"}


@dataclass(frozen=True)
class Trace:
    """The graphs of a model by `self.training`; one and the same object where both modes agree."""

    graphs: dict[bool, fx.Graph]

    def site_nodes(self, training: bool) -> list[tuple[str, fx.Node]]:
        """Return the name and the node of every site, in the order of the calls."""
        return [(node.meta["site"], node) for node in self.graphs[training].nodes if "site" in node.meta]

    def reads_input(self, site: str) -> bool:
        """Tell whether a call depends on the network's input, and not only on its parameters."""
        todo = [node for name, node in self.site_nodes(False) if name == site]
        seen = set(todo)
        while todo:
            node = todo.pop()
            if node.op == "placeholder":
                return True
            todo += [each for each in node.all_input_nodes if each not in seen]
            seen.update(node.all_input_nodes)
        return False

    def forget(self, site: str) -> None:
        """Let a call stay as it is: its ReLUs cannot be decided one by one."""
        for graph in self.graphs.values():
            for node in graph.nodes:
                if node.meta.get("site") == site:
                    del node.meta["site"]


def trace(root: nn.Module, example: Example) -> Trace:
    """Trace `root`, a copy that is ours: it is switched between modes, and constants of its forward become buffers.

    Raises:
        TraceError: torch.fx cannot follow the model.
    """
    traced = {}
    for training in (False, True):
        root.train(training)
        traced[training] = _trace_twice(root, example)
    _name_sites(root, {training: one.graph for training, one in traced.items()})
    if traced[True].skeleton() == traced[False].skeleton():
        traced[True] = traced[False]
    for one in {id(one): one for one in traced.values()}.values():
        _normalise(root, one.graph)
        one.keep_constants(root)
    return Trace({training: one.graph for training, one in traced.items()})


@dataclass
class _Traced:
    graph: fx.Graph
    constants: dict[str, Tensor] = field(default_factory=dict)

    def skeleton(self) -> list[Any]:
        """Return the graph as plain data that can be compared."""
        index = {node: position for position, node in enumerate(self.graph.nodes)}

        def target(node: fx.Node) -> Any:
            constant = self.constants.get(str(node.target)) if node.op == "get_attr" else None
            return node.target if constant is None else constant.tolist()

        return [
            (
                n.op,
                target(n),
                fx.node.map_arg((n.args, n.kwargs), lambda m: f"%{index[m]}"),
                n.meta.get("site"),
            )
            for n in self.graph.nodes
        ]

    def keep_constants(self, root: nn.Module) -> None:
        """Make tensors that forward creates buffers of the root, so that they move with it, under names that are free."""
        for node in self.graph.nodes:
            if node.op == "get_attr" and node.target in self.constants:
                number = 0
                while hasattr(root, f"_constant_{number}"):
                    number += 1
                root.register_buffer(f"_constant_{number}", self.constants[node.target], persistent=False)
                node.target = f"_constant_{number}"


def _trace_twice(root: nn.Module, example: Example) -> _Traced:
    """Trace, and make sure that nothing was frozen that changes: a number drawn at random, a count of calls."""
    before = random_states(root)
    first = _trace_once(root, example)
    drawn = random_states(root) != before
    if drawn or first.skeleton() != _trace_once(root, example).skeleton():
        what = "draws random numbers" if drawn else "is not the same twice"
        raise TraceError(
            f"the forward of {type(root).__name__} {what}, which tracing would freeze; "
            "move that into a module of torch.nn such as nn.Dropout"
        )
    return first


def random_states(root: nn.Module) -> list[Any]:
    """Return where the generators of random numbers are: the global ones, and those that modules keep for themselves."""
    states: list[Any] = [random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()]
    for own in (value for module in root.modules() for value in vars(module).values()):
        if isinstance(own, random.Random):
            states.append(own.getstate())
        elif isinstance(own, np.random.Generator):
            states.append(repr(own.bit_generator.state))
        elif isinstance(own, torch.Generator):
            states.append(own.get_state().tolist())
    return states


def _trace_once(root: nn.Module, example: Example) -> _Traced:
    tracer = Tracer(root, example)
    before = set(vars(root))
    try:
        graph = tracer.trace(root)
    except Exception as error:  # the user's code runs in there: anything can come out
        where = tracer.callers[-1]
        module = f"module '{where}' ({type(root.get_submodule(where)).__name__})" if where else type(root).__name__
        raise TraceError(f"torch.fx cannot follow {module} at {_line_of(error)}: {first_line(error)}") from error
    finally:
        constants = {name: vars(root).pop(name) for name in set(vars(root)) - before}
    return _Traced(graph, constants)


def _line_of(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [frame for frame in frames if not frame.filename.startswith(NOT_USER_CODE)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else "an unknown line"


def _is_relu(root: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return is_site(root.get_submodule(str(node.target)))
    if node.op not in ("call_function", "call_method"):
        return False
    if node.target in _RELUS:
        return True
    bounds = dict(zip(("min", "max"), node.args[1:], strict=False)) | dict(node.kwargs)
    low = bounds.get("min")
    at_zero = isinstance(low, int | float) and low == 0
    return at_zero and (node.target in _CLAMPS_MIN or (node.target in _CLAMPS and bounds.get("max") is None))


def _is_in_place(root: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return bool(getattr(root.get_submodule(str(node.target)), "inplace", False))
    if node.target is F.relu:
        return bool(node.kwargs.get("inplace", node.args[1] if len(node.args) > 1 else False))
    return str(getattr(node.target, "__name__", node.target)).endswith("_")


def _name_sites(root: nn.Module, graphs: dict[bool, fx.Graph]) -> None:
    """Name the sites of the evaluation graph, and find the same calls in the training graph.

    A site is called after the module that is called or, for a function, after the module that calls it: `layer1.0.relu`;
    the second of that name is `layer1.0.relu_2`. A ReLU that runs in training only (an auxiliary head) is not a site: a
    query never evaluates it.
    """
    names: dict[tuple[str, str, int], str] = {}
    for key, node in _relu_calls(root, graphs[False]):
        names[key] = node.meta["site"] = _free_name(root, key[0], set(names.values()))
    for key, node in _relu_calls(root, graphs[True]):
        if key in names:
            node.meta["site"] = names[key]


def _relu_calls(root: nn.Module, graph: fx.Graph) -> Iterator[tuple[tuple[str, str, int], fx.Node]]:
    """Yield every ReLU call with what identifies it in both modes: name, line, and how often that pair came before."""
    seen: Counter[tuple[str, str]] = Counter()
    for node in graph.nodes:
        if _is_relu(root, node):
            caller = node.meta["caller"]
            name = caller if node.op == "call_module" else f"{caller}.relu".lstrip(".")
            place = (name, node.meta["line"])
            yield (*place, seen[place]), node
            seen[place] += 1


def _free_name(root: nn.Module, name: str, taken: set[str]) -> str:
    path, _, last = name.rpartition(".")
    parent = root.get_submodule(path)
    candidate, number = last, 1
    while f"{path}.{candidate}".lstrip(".") in taken or not _can_hold_a_module(parent, candidate):
        number += 1
        candidate = f"{last}_{number}"
    return f"{path}.{candidate}".lstrip(".")


def _can_hold_a_module(parent: nn.Module, name: str) -> bool:
    if name in parent._modules:
        child = parent._modules[name]
        return child is not None and is_site(child)
    return name not in parent._parameters and name not in parent._buffers and not hasattr(type(parent), name)


def _normalise(root: nn.Module, graph: fx.Graph) -> None:
    """Write every site as `torch.relu(x)`; whatever saw the change of an in-place one uses its result instead."""
    for node in [node for node in graph.nodes if "site" in node.meta]:
        if node.op == "call_module" and not isinstance(root.get_submodule(node.target), nn.ReLU):
            continue
        source = next(iter(node.all_input_nodes))
        with graph.inserting_after(node):
            relu = graph.call_function(torch.relu, (source,))
        relu.meta = node.meta
        node.replace_all_uses_with(relu)
        if _is_in_place(root, node):
            order = {each: position for position, each in enumerate(graph.nodes)}
            later = {user for user in source.users if order[user] > order[relu]}
            source.replace_all_uses_with(relu, delete_user_cb=later.__contains__)
        graph.erase_node(node)
