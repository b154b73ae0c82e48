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
from reluctant.methods.found import Found, OnPass
from reluctant.methods.scores import keep_highest
from reluctant.slopes import sloped
from reluctant.train import Objective, Trainer
from reluctant.train.losses import Loss


def search(
    student: nn.Module,
    *,
    train: Iterable[Any],
    budget: Budget,
    trainer: Trainer | None = None,
    loss: Loss | None = None,
    passing: Sequence[int] = (),
    on_pass: OnPass | None = None,
    **unused: Any,
) -> Found:
    """Keep the ReLUs with the largest |c·∂L/∂c| at c = 1, L being the loss over one epoch.

    Args:
        student: a network with slopes; it is not changed.
        train: batches of training data, all of which are looked at once.
        budget: the most ReLUs to keep.
        trainer: seed, precision, devices.
        loss: of the task; by default cross-entropy.
        passing, on_pass: other budgets, whose masks nest around this one.
        unused: what methods are given that train. (At c = 1 the student is its teacher: distillation has no gradient.)
    """
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
