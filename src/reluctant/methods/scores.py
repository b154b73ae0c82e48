"""From scores that do not change to the masks of all budgets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from reluctant._binarize import binarize
from reluctant.budget import Budget
from reluctant.methods.found import Found, OnPass


def keep_highest(
    student: nn.Module, scores: Mapping[str, Tensor], budget: Budget, passing: Sequence[int], on_pass: OnPass | None
) -> Found:
    """Keep what has the highest scores; the masks of several budgets nest.

    Args:
        student: a network with slopes; it is not changed.
        scores: for each site, in the shape of its slopes.
        budget: the most ReLUs to keep.
        passing: higher budgets of which the mask is wanted too.
        on_pass: told each of them, from high to low.
    """

    def found(relus: Budget) -> Found:
        mask = binarize(student, relus, values=scores)
        return Found(mask, mask.freeze(student))

    for relus in sorted(passing, reverse=True):
        if on_pass is not None:
            on_pass(relus, found(relus))
    return found(budget)
