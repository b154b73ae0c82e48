"""Anybody's network, by the path of a function that makes it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from torch import nn

from reluctant.errors import ModelError, OptionError, first_line


def from_factory(path: str, options: Mapping[str, Any] | None = None) -> nn.Module:
    """Make a network by calling `package.module:factory` with options; modules of the current folder can be named.

    Raises:
        ModelError: it cannot be imported, fails, or returns something else.
    """
    module_name, colon, name = path.partition(":")
    if not colon or not module_name or not name:
        raise OptionError(f"--model '{path}' cannot be read; pass package.module:factory")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # the user's code runs in there
        raise ModelError(f"--model: '{module_name}' cannot be imported from {os.getcwd()}: {first_line(error)}") from error
    factory = getattr(module, name, None)
    if factory is None:
        raise ModelError(f"--model: {module_name} has no '{name}'; it has {', '.join(_public(module)) or 'nothing public'}")
    if isinstance(factory, nn.Module):
        return factory
    try:
        network = factory(**(options or {}))
    except Exception as error:
        raise ModelError(f"--model: {path} failed: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(network, nn.Module):
        raise ModelError(f"--model: {path} returned a {type(network).__name__}; it must return an nn.Module")
    return network


def _public(module: Any) -> list[str]:
    own = [
        n for n, v in vars(module).items() if not n.startswith("_") and getattr(v, "__module__", None) == module.__name__
    ]
    return own[:10]
