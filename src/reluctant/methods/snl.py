"""Selective Network Linearization: Algorithm 1 of the paper, and a schedule that ends when you say.

Reference: Cho, Joshi, Garg, Reagen and Hegde, "Selective Network Linearization for Efficient Private Inference", ICML 2022.

Where the paper and its authors' code differ, the code is the default, since it made the published figures: distillation
already during the search, no weight decay, and λ grows when the count is not below the *lowest* so far, from epoch 5 on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from reluctant._binarize import binarize, count_slopes, read_budget
from reluctant.budget import Budget
from reluctant.errors import BudgetError
from reluctant.methods import anneal
from reluctant.methods.found import Checkpoint, Found, OnEpoch, OnPass
from reluctant.recipes import Search
from reluctant.slopes import size, sloped
from reluctant.train import Objective, Penalty, Teacher, Trainer, evaluate, learning_rate
from reluctant.train.evaluate import Metric, accuracy
from reluctant.train.layout import contiguous_
from reluctant.train.losses import Loss
from reluctant.train.optimizers import adam


def search(
    student: nn.Module,
    *,
    teacher: nn.Module | None,
    train: Iterable[Any],
    val: Iterable[Any] | None = None,
    budget: Budget,
    options: Search | None = None,
    trainer: Trainer | None = None,
    loss: Loss | None = None,
    metric: Metric = accuracy,
    checkpoint: Checkpoint | None = None,
    on_epoch: OnEpoch | None = None,
    passing: Sequence[int] = (),
    on_pass: OnPass | None = None,
) -> Found:
    """Train weights and slopes together under a growing penalty until the count is within the budget.

    Minimises loss(f(x), y) + w·T²·KL(teacher ‖ student) + λ·Σ|c|.

    Args:
        student: a network with slopes, made by `attach`; it is trained in place.
        teacher: the network it came from; None to do without distillation.
        train: batches of training data.
        val: batches to score the network with its slopes by after every epoch, for the history; nothing is chosen by them.
        budget: the most ReLUs to keep.
        options: the hyper-parameters; by default those of `Search()`.
        trainer: seed, precision, devices.
        loss: of the task; by default cross-entropy.
        metric: of the scores; by default the accuracy in percent.
        checkpoint: where to keep the state of every epoch, and to go on from.
        on_epoch: told the figures of every epoch.
        passing: higher budgets of which the mask and weights are wanted too.
        on_pass: told each of them as the count passes it.

    Returns:
        Found, with count ≤ budget.

    Raises:
        BudgetError: the budget is invalid, or not reached within `options.epochs`; the checkpoint can be continued.
    """
    options = options or Search()
    trainer = trainer or Trainer()
    relus = read_budget(student, budget)
    trainer.place_(student)
    penalty = Penalty(sloped(student), options.first_penalty, by_relus=options.penalty_by_relus)
    batches = trainer.prepare(train)
    steps = options.epochs * len(batches)
    optimizer = make_optimizer(student, options, steps)  # Alg. 1, line 3: weights and slopes together
    objective = Objective(
        loss or F.cross_entropy,
        None if teacher is None else Teacher(teacher, trainer),
        temperature=options.temperature,
        weight=options.distill,
    )
    progress = _Progress(student, optimizer, penalty, checkpoint)
    steering = anneal.Steering(student, penalty, relus, options, passing) if options.schedule == "anneal" else None
    waiting = sorted((b for b in passing if b > relus and not progress.has_passed(b)), reverse=True)
    met = progress.count <= relus and options.stop and (steering is None or progress.epoch == 0)

    def look_at_passed(now: int) -> None:
        while waiting and now <= waiting[0]:
            passed = waiting.pop(0)
            if on_pass is not None:
                on_pass(passed, _found(student, passed, True, progress.history))

    look_at_passed(progress.count)
    epochs = trainer.epochs(
        student,
        batches,
        optimizer=optimizer,
        objective=objective,
        epochs=0 if met else options.epochs,
        phase="search",
        start=progress.epoch,
        rate=None if steering is None else learning_rate(options.rate),
        after_backward=penalty.add_gradient_,
        after_step=steering,
    )
    for epoch in epochs:  # lines 4 and 5
        count = count_slopes(student, options.threshold)  # line 6
        row = {"phase": "search", "epoch": epoch.number, "count": count, "penalty": penalty.strength}
        row |= {"loss": epoch.loss, "lr": epoch.rate, "seconds": round(epoch.seconds, 3)}
        if val is not None:
            row["val"] = evaluate(student, val, metric=metric, trainer=trainer)
        before = progress.previous if options.grow_unless == "previous" else progress.lowest
        if steering is None and count >= before and epoch.number >= options.grow_from:  # line 7
            penalty.strength *= options.growth  # line 8
        progress.save(epoch.number + 1, count, row)
        look_at_passed(count)
        if on_epoch is not None:
            on_epoch(row)
        if count <= relus and options.stop and steering is None:  # line 4
            break
    if progress.count > relus and options.stop:
        instead = ", begin with a larger penalty, or use the anneal schedule" if steering is None else ""
        raise BudgetError(
            f"after {progress.epoch} epochs {progress.count} ReLUs are left and the budget is {relus}; "
            f"go on with more search epochs{instead}"
        )
    return _found(student, relus, options.exact, progress.history)  # line 11; line 12 is finetune


class _Progress:
    """What has to be known to go on: where the search is, and the rows of its history."""

    def __init__(
        self, student: nn.Module, optimizer: torch.optim.Optimizer, penalty: Penalty, checkpoint: Checkpoint | None
    ) -> None:
        self._student, self._optimizer, self._penalty, self._checkpoint = student, optimizer, penalty, checkpoint
        self.epoch = 0
        self._size = self.count = self.previous = self.lowest = size(student)
        self.history: list[dict[str, Any]] = []
        state = checkpoint.load("search") if checkpoint else None
        if state:
            student.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            penalty.strength = state["penalty"]
            self.epoch, self.history = state["epoch"], state["history"]
            self.count, self.previous, self.lowest = state["count"], state["count"], state["lowest"]

    def has_passed(self, budget: int) -> bool:
        """Tell whether a budget was passed before the last epoch; what was passed in it may not have been kept."""
        return bool(self.history) and min([self._size, *(row["count"] for row in self.history[:-1])]) <= budget

    def save(self, epoch: int, count: int, row: dict[str, Any]) -> None:
        self.epoch, self.count, self.previous, self.lowest = epoch, count, count, min(count, self.lowest)
        self.history.append(row)
        if self._checkpoint is not None:
            self._checkpoint.save(
                "search",
                {
                    "model": self._student.state_dict(),
                    "optimizer": self._optimizer.state_dict(),
                    "penalty": self._penalty.strength,
                    "epoch": self.epoch,
                    "count": self.count,
                    "lowest": self.lowest,
                    "history": self.history,
                },
            )


def _found(student: nn.Module, relus: int, exact: bool, history: list[dict[str, Any]]) -> Found:
    mask = binarize(student, relus, exact=exact)
    return Found(mask, contiguous_(mask.freeze(student)), list(history))


def make_optimizer(student: nn.Module, options: Search, steps: int) -> torch.optim.Optimizer:
    """Return Adam over weights and slopes; the slopes have a learning rate of their own, by the steps of the search."""
    relaxed = [module.slope for module in sloped(student).values()]
    mine = set(map(id, relaxed))
    weights = [p for p in student.parameters() if id(p) not in mine and p.requires_grad]
    groups: list[dict[str, Any]] = [{"params": weights}, {"params": relaxed, "lr": options.rate_of_slopes(steps)}]
    return adam(groups, lr=options.lr, weight_decay=options.weight_decay)
