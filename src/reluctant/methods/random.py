"""A mask drawn at random: the floor that every method must beat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from reluctant.budget import Budget
from reluctant.methods.found import Found, OnPass
from reluctant.methods.scores import keep_highest
from reluctant.slopes import sloped
from reluctant.train import Trainer


def search(
    student: nn.Module,
    *,
    budget: Budget,
    trainer: Trainer | None = None,
    passing: Sequence[int] = (),
    on_pass: OnPass | None = None,
    **unused: Any,
) -> Found:
    """Draw a slope for every ReLU at random and keep the highest; nothing is trained.

    Args:
        student: a network with slopes; it is not changed.
        budget: the most ReLUs to keep.
        trainer: for its seed.
        passing, on_pass: other budgets, whose masks nest around this one.
        unused: what methods are given that train.
    """
    generator = torch.Generator().manual_seed(trainer.seed if trainer else 0)
    drawn = {site: torch.rand(module.slope.shape, generator=generator) for site, module in sloped(student).items()}
    return keep_highest(student, drawn, budget, passing, on_pass)
