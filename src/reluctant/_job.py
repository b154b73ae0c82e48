"""What the linearizations of one network have in common: the network, the data, the recipe, the method."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from torch import nn

from reluctant import methods
from reluctant._binarize import read_budget
from reluctant._example import Example
from reluctant._finetune import finetune
from reluctant._shared_run import SharedRun
from reluctant.budget import Budget
from reluctant.methods.found import Found, OnEpoch
from reluctant.recipes import Recipe
from reluctant.sites import Patterns
from reluctant.slopes import Granularity, attach
from reluctant.train import Trainer, evaluate
from reluctant.train.evaluate import Metric, accuracy
from reluctant.train.losses import Loss


@dataclass(frozen=True)
class Batches:
    """Where the examples come from; the phases may want batches of different sizes."""

    search: Iterable[Any]
    finetune: Iterable[Any]
    val: Iterable[Any]
    test: Iterable[Any] | None = None


@dataclass(frozen=True)
class Job:
    """Everything that the linearizations of one network have in common."""

    model: nn.Module
    batches: Batches
    example: Example
    recipe: Recipe
    trainer: Trainer
    method: str = "snl"
    granularity: Granularity = "pixel"
    zero_out: bool = False
    include: Patterns = None
    exclude: Patterns = None
    loss: Loss | None = None
    metric: Metric = accuracy
    on_epoch: OnEpoch | None = None
    scratch: bool = False
    """The network is not trained yet: nobody can learn from it."""

    @property
    def teacher(self) -> nn.Module | None:
        """The network to distil from."""
        return None if self.scratch else self.model

    def relus(self, *budgets: Budget) -> list[int]:
        """Return budgets in ReLUs, after a look at whether the network can get there."""
        student = self.student()
        return [read_budget(student, budget) for budget in budgets]

    def student(self) -> nn.Module:
        """Return a new copy with slopes."""
        return attach(
            self.model,
            self.example,
            granularity=self.granularity,
            zero_out=self.zero_out,
            include=self.include,
            exclude=self.exclude,
        )

    def search(self, budget: int, run: SharedRun | None, **options: Any) -> Found:
        """Search with the job's method."""
        return methods.find(self.method)(
            self.student(),
            teacher=self.teacher,
            train=self.batches.search,
            val=self.batches.val,
            budget=budget,
            options=self.recipe.search,
            trainer=self.trainer,
            loss=self.loss,
            metric=self.metric,
            checkpoint=run,
            on_epoch=self._told(run),
            **options,
        )

    def finetune(self, found: Found, run: SharedRun | None) -> nn.Module:
        """Finetune what was found."""
        return finetune(
            found.model,
            teacher=self.teacher,
            train=self.batches.finetune,
            val=self.batches.val,
            options=self.recipe.finetune,
            trainer=self.trainer,
            loss=self.loss,
            metric=self.metric,
            checkpoint=run,
            on_epoch=self._told(run),
        )

    def score(self, model: nn.Module, batches: Iterable[Any]) -> float:
        """Evaluate a network."""
        return evaluate(self.trainer.place_(deepcopy(model)), batches, metric=self.metric, trainer=self.trainer)

    def _told(self, run: SharedRun | None) -> OnEpoch:
        def on_epoch(row: dict[str, Any]) -> None:
            if run is not None:
                run.log(row)
            if self.on_epoch is not None:
                self.on_epoch(row)

        return on_epoch
