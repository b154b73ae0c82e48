"""A run folder that several processes work for: the main one writes, all of them read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from torch import nn

from reluctant.mask import Mask
from reluctant.recipes import Recipe
from reluctant.runs import Run
from reluctant.train import Trainer


class SharedRun:
    """A run as one of several processes sees it; with one process it is the run.

    Args:
        run: the run.
        trainer: which knows the processes.
    """

    def __init__(self, run: Run, trainer: Trainer) -> None:
        self.run, self._trainer = run, trainer

    @classmethod
    def begin(
        cls, trainer: Trainer, folder: str | Path, spec: Mapping[str, Any], recipe: Recipe, **options: Any
    ) -> SharedRun:
        """Start a run or go on with it, as `Run.begin` does."""
        if trainer.is_main:
            Run.begin(folder, spec, recipe, computed=trainer.describe(), **options)
        trainer.wait()
        return cls(Run.open(folder), trainer)

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.run.folder

    def lock(self) -> AbstractContextManager[Any]:
        """Keep other runs out; the processes of this one are let in."""
        return self.run.lock() if self._trainer.is_main else nullcontext()

    def load(self, phase: str) -> dict[str, Any] | None:
        """Return the state of the last epoch of a phase, and drop the metrics that came after it."""
        self._trainer.wait()
        state = self.run.load(phase)
        if self._trainer.is_main:
            self.run.drop_metrics(phase, after=state["epoch"] if state else 0)
        self._trainer.wait()
        return state

    def save(self, phase: str, state: dict[str, Any]) -> None:
        """Write the state of an epoch."""
        if self._trainer.is_main:
            self.run.save(phase, state)

    def log(self, row: Mapping[str, Any]) -> None:
        """Add a row to the metrics, and to TensorBoard's if that was asked for."""
        if self._trainer.is_main:
            self.run.log(row)
        self._trainer.log(row)

    def replace_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write all rows anew."""
        if self._trainer.is_main:
            self.run.replace_metrics(rows)

    def save_network(self, model: nn.Module, mask: Mask | None, name: str = "model") -> None:
        """Write a network's tensors, and its mask."""
        if self._trainer.is_main:
            self.run.save_network(model, mask, name)

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the figures; when this returns, all processes can read them."""
        if self._trainer.is_main:
            self.run.finish(result)
        self._trainer.wait()
