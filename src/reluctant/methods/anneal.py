"""The anneal schedule: the count follows a falling target, and the search ends when you said it would.

The target falls from the total to the budget over the epochs given. Every few steps λ is steered so that the slopes follow;
what is still behind is made linear from the lowest slope up. Loss and slopes are those of Algorithm 1.
"""

from __future__ import annotations

import torch
from torch import nn

from reluctant._binarize import count_slopes
from reluctant.recipes import Search
from reluctant.slopes import size, sloped
from reluctant.train import Penalty


class Steering:
    """Called after every step: keeps the count at or below its target.

    Args:
        student: the network with slopes.
        penalty: whose λ is steered.
        budget: where the target ends.
        options: of the search.
    """

    def __init__(self, student: nn.Module, penalty: Penalty, budget: int, options: Search) -> None:
        self._student, self._penalty, self._options = student, penalty, options
        self._budget, self._total = budget, size(student)
        self._modules = list(sloped(student).values())
        self._linear = [module.slope.detach() <= options.threshold for module in self._modules]

    def target(self, progress: float) -> int:
        """Return B + (total − B)·(1 − progress)^curve."""
        remaining = max(0.0, 1 - progress) ** self._options.curve
        return self._budget + int((self._total - self._budget) * remaining)

    def __call__(self, step: int, progress: float) -> None:
        """Look at the count every few steps and at the end, and act."""
        if not self._options.may_return:
            self._hold_linear_()
        if step % self._options.steer_every and progress < 1:
            return
        target = self.target(progress)
        count = count_slopes(self._student, self._options.threshold)
        growth = self._options.growth
        self._penalty.strength *= growth if count > target else 1 / growth
        if count > target:
            self._linearize_lowest_(count - target)

    @torch.no_grad()
    def _hold_linear_(self) -> None:
        """Keep the slopes that are zero, and those that have come down to the threshold, at zero."""
        for module, linear in zip(self._modules, self._linear, strict=True):
            linear |= module.slope <= self._options.threshold
            module.slope.masked_fill_(linear, 0.0)

    @torch.no_grad()
    def _linearize_lowest_(self, excess: int) -> None:
        """Set the lowest of the slopes that still count to zero, until at least so many ReLUs are gone."""
        values = torch.cat([module.slope.flatten() for module in self._modules])
        governs = torch.cat([torch.full((m.slope.numel(),), m.governs, device=values.device) for m in self._modules])
        alive = (values > self._options.threshold).nonzero().flatten()
        order = alive[values[alive].argsort(stable=True)]
        before = governs[order].cumsum(0) - governs[order]
        values[order[before < excess]] = 0.0
        for module, part in zip(self._modules, values.split([m.slope.numel() for m in self._modules]), strict=True):
            module.slope.copy_(part.reshape(module.slope.shape))
        if not self._options.may_return:
            self._hold_linear_()
