"""A mask drawn at random: the floor that every method must beat."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from reluctant.budget import Budget
from reluctant.methods.found import Checkpoint, Found, OnEpoch, OnPass
from reluctant.methods.scores import keep_highest
from reluctant.recipes import Search
from reluctant.slopes import sloped
from reluctant.train import Trainer
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
    """Draw a slope for every ReLU at random and keep the highest; nothing is trained.

    Args:
        student: a network with slopes; it is not changed.
        budget: the most ReLUs to keep.
        trainer: for its seed.
        passing, on_pass: other budgets, whose masks nest around this one.
        teacher, train, val, options, loss, metric, checkpoint, on_epoch: as other methods have them; not used.
    """
    generator = torch.Generator().manual_seed(trainer.seed if trainer else 0)
    drawn = {site: torch.rand(module.slope.shape, generator=generator) for site, module in sloped(student).items()}
    return keep_highest(student, drawn, budget, passing, on_pass)
