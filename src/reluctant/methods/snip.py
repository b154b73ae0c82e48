"""The ReLUs that the loss is most sensitive to: one epoch of gradients with respect to the slopes, and no training.

Reference: Lee, Ajanthan and Torr, "SNIP: Single-shot Network Pruning based on Connection Sensitivity", ICLR 2019; their
criterion, applied to slopes instead of weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from reluctant.budget import Budget
from reluctant.errors import DataError
from reluctant.methods.found import Checkpoint, Found, OnEpoch, OnPass
from reluctant.methods.scores import keep_highest
from reluctant.recipes import Search
from reluctant.slopes import sloped
from reluctant.train import Objective, Trainer
from reluctant.train.evaluate import Metric, accuracy
from reluctant.train.losses import Loss


def search(
    student: nn.Module,
    *,
    teacher: nn.Module | None = None,
    train: Iterable[Any] | None = None,
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
    """Keep the ReLUs with the largest |c·∂L/∂c| at c = 1, L being the loss over one epoch.

    Args:
        student: a network with slopes; it is not changed.
        train: batches of training data, all of which are looked at once.
        budget: the most ReLUs to keep.
        trainer: seed, precision, devices.
        loss: of the task; by default cross-entropy.
        passing, on_pass: other budgets, whose masks nest around this one.
        teacher, val, options, metric, checkpoint, on_epoch: as other methods have them; not used. (At c = 1 the student is
            its teacher, so distillation has no gradient.)
    """
    if train is None:
        raise DataError("snip looks at training data and got none; pass train=")
    trainer = trainer or Trainer()
    probe = trainer.place_(deepcopy(student))
    slopes = {site: module.slope for site, module in sloped(probe).items()}
    total = {site: torch.zeros_like(slope) for site, slope in slopes.items()}

    def add() -> None:
        for site, slope in slopes.items():
            if slope.grad is not None:
                total[site] += slope.grad

    epochs = trainer.epochs(
        probe,
        train,
        optimizer=torch.optim.SGD(probe.parameters(), lr=0.0),
        objective=Objective(loss or F.cross_entropy, None),
        epochs=1,
        phase="snip",
        after_backward=add,
    )
    for _ in epochs:
        pass
    return keep_highest(student, {site: (slopes[site] * total[site]).abs() for site in slopes}, budget, passing, on_pass)
