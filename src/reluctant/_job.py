"""What the linearizations of one network have in common: the network, the data, the recipe, the method."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluctant import methods
from reluctant._binarize import read_budget
from reluctant._example import Example, spell
from reluctant._finetune import finetune
from reluctant._shared_run import SharedRun
from reluctant.budget import Budget
from reluctant.data.batches import first_batch
from reluctant.errors import DataError, OptionError, first_line
from reluctant.mask import Mask
from reluctant.methods.found import Found, OnEpoch
from reluctant.recipes import Recipe
from reluctant.sites import Patterns
from reluctant.slopes import Granularity, attach
from reluctant.train import Trainer, evaluate
from reluctant.train.evaluate import Metric, accuracy
from reluctant.train.losses import Loss, call


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
    mask: Mask | None = None
    """Chosen already: nothing is searched for, and finetuning begins with the network's own weights."""

    @property
    def teacher(self) -> nn.Module | None:
        """The network to distil from."""
        return None if self.scratch else self.model

    def relus(self, *budgets: Budget) -> list[int]:
        """Return budgets in ReLUs, after a look at whether there is such a method and the network can get there."""
        methods.find(self.method)
        student = self.student()
        return [read_budget(student, budget) for budget in budgets]

    def given(self, mask: Mask) -> Job:
        """Return this job with a mask that was chosen already.

        Raises:
            OptionError: it also says how to choose.
            MaskMismatch: it is the mask of another network.
        """
        ways = {"method": self.method != "snl", "granularity": self.granularity != "pixel", "zero_out": self.zero_out}
        ways |= {"include": self.include is not None, "exclude": self.exclude is not None}
        said = [name for name, is_set in ways.items() if is_set]
        if said:
            raise OptionError(f"nothing is searched for with a mask that is given; leave out {', '.join(said)}")
        mask.apply(self.model, self.example)  # complains now, not after everything else is read and evaluated
        return replace(self, mask=mask, method="given", granularity=mask.granularity, zero_out=mask.zero_out)

    def try_training_batch(self) -> None:
        """See that the network takes its training data, before anything is searched.

        Raises:
            DataError: inputs have another shape than the example, or there is no cross-entropy of outputs and targets.
        """
        batches = self.batches.search
        if not hasattr(batches, "__len__"):
            self.trainer.prepare(batches)  # complains: a first batch may be the only one that can be read
        inputs, targets = self.trainer.to_device(first_batch(batches, "training"))
        if isinstance(inputs, Tensor) and isinstance(self.example, Tensor) and inputs.shape[1:] != self.example.shape[1:]:
            raise DataError(
                f"training inputs are {spell(inputs.shape[1:])} and the example, by default the first of the validation "
                f"data, is {spell(self.example.shape[1:])}; a mask is for one input size"
            )
        if self.loss is not None:
            return  # it may want what the network returns in training mode only
        network = self.trainer.place_(deepcopy(self.model)).eval()
        try:
            with torch.no_grad():
                F.cross_entropy(call(network, inputs), targets)
        except Exception as error:  # whatever a network or torch may say
            raise DataError(
                f"the cross-entropy of a first training batch cannot be computed ({first_line(error)}); look at its "
                "inputs and targets, or pass a loss of your own"
            ) from error

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
        """Search with the job's method; a mask that was given is what is found."""
        if self.mask is not None:
            return Found(self.mask, self.mask.apply(self.model, self.example))
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

    @cached_property
    def base_val(self) -> float:
        """The score of the network itself on validation data, evaluated once for all budgets."""
        return self.score(self.model, self.batches.val)

    @cached_property
    def base_test(self) -> float | None:
        """And on test data, where there are some."""
        return None if self.batches.test is None else self.score(self.model, self.batches.test)

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
