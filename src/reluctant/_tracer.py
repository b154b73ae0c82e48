"""torch.fx's tracer, taught to note who calls what from where, and to take the inputs that the example has."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from reluctant._example import Example, arguments
from reluctant.errors import ExampleError

NOT_USER_CODE = (os.path.dirname(torch.__file__) + os.sep, os.path.dirname(__file__) + os.sep + "_")


def is_site(module: nn.Module) -> bool:
    """Tell whether a module is a ReLU, or was put where one stood."""
    return isinstance(module, nn.ReLU) or getattr(module, "reluctant_site", False)


def module_paths(root: nn.Module) -> dict[nn.Module, list[str]]:
    """Return every path under which each module can be reached."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in root.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    return paths


def line_of_user_code(skip: int = 0) -> str:
    """Return `file:line` of the innermost running frame that is neither torch's nor this package's machinery."""
    frame = sys._getframe(1 + skip)
    while frame.f_back and frame.f_code.co_filename.startswith(NOT_USER_CODE):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Tracer(fx.Tracer):
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
