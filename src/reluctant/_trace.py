"""A model as torch.fx graphs in which every ReLU call is one named node.

A ReLU can be written in many ways (`nn.ReLU`, in place or not, one module called many times, `F.relu`, `x.relu_()`,
`x.clamp(min=0)`, …). The graphs made here know one: `torch.relu(x)`, out of place, with the site's name in
`node.meta["site"]`. Whatever the model computes beside its ReLUs stays as it was.

torch.fx freezes `self.training`, so a model is traced in both modes; where the two graphs differ (functional dropout,
auxiliary heads) both are kept.
"""

from __future__ import annotations

import inspect
import os
import random
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from reluctant._example import Example, arguments
from reluctant.errors import ExampleError, TraceError

_RELUS = {F.relu, F.relu_, torch.relu, torch.relu_, "relu", "relu_"}
_CLAMPS_MIN = {torch.clamp_min, torch.clamp_min_, "clamp_min", "clamp_min_"}
_CLAMPS = {torch.clamp, torch.clamp_, torch.clip, torch.clip_, "clamp", "clamp_", "clip", "clip_"}
_NOT_USER_CODE = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep + "_")


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


def is_site(module: nn.Module) -> bool:
    """Tell whether a module is a ReLU, or was put where one stood."""
    return isinstance(module, nn.ReLU) or getattr(module, "reluctant_site", False)


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


def module_paths(root: nn.Module) -> dict[nn.Module, list[str]]:
    """Return every path under which each module can be reached."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in root.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    return paths


def line_of_user_code(skip: int = 0) -> str:
    """Return `file:line` of the innermost running frame that is neither torch's nor this package's machinery."""
    frame = sys._getframe(1 + skip)
    while frame.f_back and frame.f_code.co_filename.startswith(_NOT_USER_CODE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


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


class _Tracer(fx.Tracer):
    """Notes for every node which module made the call, and from which line."""

    def __init__(self, root: nn.Module, example: Example) -> None:
        super().__init__(param_shapes_constant=True)
        self.example = example
        self.callers = [""]
        self._paths = module_paths(root)

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        """Look into a subclass of nn.ReLU that has a forward of its own; everything else at a site is one call."""
        if isinstance(m, nn.ReLU):
            return type(m).forward is nn.ReLU.forward
        return is_site(m) or super().is_leaf_module(m, module_qualified_name)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Remember who is calling. (No `finally`: after an error the list shows where it happened.)"""
        if m not in self._paths:  # made inside forward, as in nn.ReLU()(x)
            return torch.relu(args[0]) if type(m) is nn.ReLU else forward(*args, **kwargs)
        self.callers.append(self._path_from_here(m))
        out = super().call_module(m, forward, args, kwargs)
        self.callers.pop()
        return out

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        """Note the caller, which for the call of a leaf module is that module."""
        node = super().create_node(*args, **kwargs)
        node.meta = {"caller": self.callers[-1], "line": line_of_user_code(skip=1)}
        if node.op == "call_module":
            node.meta["called"] = self.callers[-1]
        return node

    def create_proxy(self, *args: Any, **kwargs: Any) -> fx.Proxy:
        """Drop what fx notes by itself: it holds modules, and graphs are copied and saved."""
        proxy = super().create_proxy(*args, **kwargs)
        proxy.node.meta.pop("nn_module_stack", None)
        return proxy

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Make the example's tensors the inputs; what it leaves out keeps its default, as in an ordinary call."""
        inputs = {
            name: self.create_proxy("placeholder", name, (), {}) if _has_tensor(value) else value
            for name, value in named_inputs(self.root, self.example).items()
        }
        by_name = isinstance(self.example, Mapping)
        return lambda: root_fn(self.root, **inputs) if by_name else root_fn(self.root, *inputs.values()), []

    def _path_from_here(self, module: nn.Module) -> str:
        """Prefer, of a shared module's paths, the one inside the module that calls it."""
        paths = self._paths[module]
        prefix = f"{self.callers[-1]}." if self.callers[-1] else ""
        return min([path for path in paths if path.startswith(prefix)] or paths, key=len)


def named_inputs(root: nn.Module, example: Example) -> dict[str, Any]:
    """Return what the example hands to forward, by parameter name, in the order of forward's parameters.

    Raises:
        ExampleError: it does not fit forward's parameters.
    """
    args, kwargs = arguments(example)
    signature = getattr(root, "traced_signature", None) or inspect.signature(root.forward)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ExampleError(f"the example does not fit the network's forward{signature}: {error}") from None
    if kwargs:
        order = list(signature.parameters)
        return dict(sorted(kwargs.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order)))
    named = [name for name in bound.arguments if signature.parameters[name].kind is not inspect.Parameter.VAR_POSITIONAL]
    names = named + [f"extra_{position}" for position in range(len(named), len(args))]
    return dict(zip(names, args, strict=True))


def _has_tensor(value: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value))


def _trace_twice(root: nn.Module, example: Example) -> _Traced:
    """Trace, and make sure that nothing was frozen that changes: a number drawn at random, a count of calls."""
    before = _random_states()
    first = _trace_once(root, example)
    drawn = _random_states() != before
    if drawn or first.skeleton() != _trace_once(root, example).skeleton():
        what = "draws random numbers" if drawn else "is not the same twice"
        raise TraceError(
            f"the forward of {type(root).__name__} {what}, which tracing would freeze; "
            "move that into a module of torch.nn such as nn.Dropout"
        )
    return first


def _random_states() -> tuple[Any, ...]:
    return random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()


def _trace_once(root: nn.Module, example: Example) -> _Traced:
    tracer = _Tracer(root, example)
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
    theirs = [frame for frame in frames if not frame.filename.startswith(_NOT_USER_CODE)]
    return f"{theirs[-1].filename}:{theirs[-1].lineno}" if theirs else "an unknown line"


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, for a sentence of ours to quote."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


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
