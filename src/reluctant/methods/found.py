"""What a method gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import nn

from reluctant.mask import Mask


@dataclass(frozen=True)
class Found:
    """A mask, and the network it was found with: that network's weights, this mask in place, frozen."""

    mask: Mask
    model: nn.Module
    history: list[dict[str, Any]] = field(default_factory=list)
    """One row for every epoch of the search."""


OnEpoch = Callable[[dict[str, Any]], None]
OnPass = Callable[[int, Found], None]
"""Told when the count has passed a budget on its way down."""


class Checkpoint(Protocol):
    """Where a search keeps what it needs to go on after a crash."""

    def load(self, phase: str) -> dict[str, Any] | None:
        """Return what was saved last in this phase, if anything."""

    def save(self, phase: str, state: dict[str, Any]) -> None:
        """Replace it."""
