"""From slopes to a mask: which ReLUs are kept, within the budget."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor, nn

from reluctant.budget import Budget, parse
from reluctant.errors import BudgetError, MaskError
from reluctant.mask import Mask
from reluctant.slopes import left_alone, shapes, size, sloped

log = logging.getLogger(__name__)

THRESHOLD = 0.01
"""ε of the paper: a slope above it counts as a ReLU."""


def count_slopes(model: nn.Module, threshold: float = THRESHOLD) -> int:
    """Count the ReLUs whose slope is above the threshold, and those of the sites left alone."""
    alone = sum(prod(shape) for shape in left_alone(model).values())
    return alone + sum(int((m.slope > threshold).sum()) * m.governs for m in sloped(model).values())


def read_budget(model: nn.Module, budget: Budget) -> int:
    """Return a budget in ReLUs, after a look at whether a network with slopes can get there.

    Raises:
        BudgetError: it is invalid, or less than the ReLUs of the sites left alone.
    """
    relus, alone = parse(budget, size(model)), left_alone(model)
    stay = sum(prod(shape) for shape in alone.values())
    if relus < stay:
        names = ", ".join(list(alone)[:3]) + (", …" if len(alone) > 3 else "")
        raise BudgetError(f"budget {relus} is below the {stay} ReLUs that stay ({names}); pass at least that")
    return relus


def binarize(
    model: nn.Module,
    budget: Budget,
    *,
    exact: bool = True,
    threshold: float = THRESHOLD,
    values: Mapping[str, Tensor] | None = None,
) -> Mask:
    """Decide for every ReLU of a network with slopes whether it is kept, within the budget.

    By default the highest slopes fill the budget exactly: all of it with pixels, so that the masks of falling budgets
    nest; with channels and layers until none that is left still fits. Equal slopes are taken in the order of the calls.
    With `exact=False` it is the paper's rule, c ← 1(c > ε), which leaves some of the budget unused.

    Args:
        model: a network made by `attach`.
        budget: the most ReLUs to keep, those of the sites left alone included.
        exact: fill the budget.
        threshold: ε.
        values: scores of one's own to choose by, in the shape of the slopes, instead of the slopes.

    Returns:
        The mask, with count ≤ budget.

    Raises:
        BudgetError: the budget is invalid, is less than what was left alone or, without `exact`, is not yet met.

    Example:
        >>> from reluctant import attach
        >>> student = attach(nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.zeros(1, 4))
        >>> _ = student.get_submodule("1").slope.data.copy_(torch.tensor([0.2, 0.9, 0.5]))
        >>> binarize(student, 2)["1"]
        tensor([False,  True,  True])
    """
    relus, modules = read_budget(model, budget), sloped(model)
    kept_alone = sum(prod(shape) for shape in left_alone(model).values())
    scores = torch.cat([(values or {}).get(s, m.slope).detach().flatten().float().cpu() for s, m in modules.items()])
    if scores.isnan().any():
        raise MaskError("some slopes are NaN: the search has diverged; lower its learning rate or its penalty")
    if exact and 0 < relus < size(model) and len(scores) > 1 and bool((scores == scores[0]).all()):
        log.warning("all slopes are equal, so the first ReLUs are kept; search before you binarize")
    weights = torch.cat([torch.full((m.slope.numel(),), m.governs) for m in modules.values()])
    keep = _fill(scores, weights, relus - kept_alone) if exact else scores > threshold
    reached = int(weights[keep].sum()) + kept_alone
    if reached > relus:
        raise BudgetError(f"{reached} slopes are above {threshold:g}, more than the budget of {relus}; search on")
    parts = dict(zip(modules, keep.split([m.slope.numel() for m in modules.values()]), strict=True))
    tensors = {
        site: parts[site].reshape(modules[site].slope.shape).expand(shape)
        if site in modules
        else torch.ones(shape, dtype=torch.bool)
        for site, shape in shapes(model).items()
    }
    first = next(iter(modules.values()))
    if relus and not keep.any():
        log.warning(
            "no %s fits into the budget of %d, so the mask is empty; use a finer granularity", first.granularity, relus
        )
    return Mask(tensors, granularity=first.granularity, zero_out=first.zero_out)


def _fill(values: Tensor, weights: Tensor, budget: int) -> Tensor:
    """Take the highest values as long as they fit; one that does not fit is passed over, and lower ones tried."""
    keep = torch.zeros_like(values, dtype=torch.bool)
    order = values.sort(descending=True, stable=True).indices
    if bool((weights == 1).all()):
        keep[order[:budget]] = True
        return keep
    for index, weight in zip(order.tolist(), weights[order].tolist(), strict=True):
        if weight <= budget:
            keep[index] = True
            budget -= weight
    return keep
