"""Ways to choose a mask: one file for each. All are called alike and pass tests/conformance."""

from __future__ import annotations

from collections.abc import Callable

from reluctant.errors import unknown
from reluctant.methods import random, snip, snl
from reluctant.methods.found import Found

__all__ = ["Found", "find", "names", "random", "snip", "snl"]

_METHODS: dict[str, Callable[..., Found]] = {"snl": snl.search, "snip": snip.search, "random": random.search}


def names() -> list[str]:
    """Return the names of the methods."""
    return list(_METHODS)


def find(name: str) -> Callable[..., Found]:
    """Return the search of a method."""
    if name not in _METHODS:
        raise unknown("method", name, _METHODS)
    return _METHODS[name]
