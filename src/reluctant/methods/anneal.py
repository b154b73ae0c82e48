"""The anneal schedule: the count follows a falling target, and the search ends when you said it would.

The target falls from the total to the budget over the epochs given. Every few steps λ is steered so that the slopes follow;
what is still behind is made linear from the lowest slope up. Loss and slopes are those of Algorithm 1, but the network
computes with slopes relative to a quantile of those that still count, so that what stays does not shrink with them.

A sweep's higher budgets are passed at the ends of epochs, where networks are kept: the target takes until the end of the
epoch in which it would have passed one, and makes up for it before the next.

A slope that has become linear stays a hair below zero, lower the earlier it went: where the count has fallen below a budget
(one slope may govern many ReLUs, and slopes also fall by themselves), those that went last come back first.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn

from reluctant._binarize import count_slopes
from reluctant.recipes import Search
from reluctant.slopes import SlopedReLU, size, sloped
from reluctant.train import Penalty

HAIR = 1e-6
LOOKS = 100
"""How often λ is steered in a search, unless the recipe says."""


class Steering:
    """Called after every step: keeps the count at or below its target.

    Args:
        student: the network with slopes.
        penalty: whose λ is steered.
        budget: where the target ends.
        options: of the search.
        passing: higher budgets that the target meets at the ends of epochs.
    """

    def __init__(
        self, student: nn.Module, penalty: Penalty, budget: int, options: Search, passing: Sequence[int] = ()
    ) -> None:
        self._student, self._penalty, self._options = student, penalty, options
        self._budget, self._total = budget, size(student)
        self._modules = list(sloped(student).values())
        self._linear = [module.slope.detach() <= options.threshold for module in self._modules]
        self._held = [module.slope.detach().clamp(max=0.0) for module in self._modules]
        self._times, self._places = self._timetable(passing)
        self._rescale_()

    def target(self, progress: float) -> int:
        """Return B + (total − B)·(1 − progress)^curve, where progress waits for the epochs' ends at higher budgets."""
        remaining = max(0.0, 1 - float(np.interp(progress, self._times, self._places))) ** self._options.curve
        return self._budget + int((self._total - self._budget) * remaining + 1e-6)

    def _timetable(self, passing: Sequence[int]) -> tuple[list[float], list[float]]:
        """Return at which progress the target has to be at which place of its curve."""
        epochs, stops = self._options.epochs, {0.0: 0.0}
        for relus in sorted((b for b in passing if self._budget < b < self._total), reverse=True):
            place = 1 - ((relus - self._budget) / (self._total - self._budget)) ** (1 / self._options.curve)
            stops[ceil(place * epochs - 1e-9) / epochs] = place  # of two in one epoch, the lower
        stops[1.0] = 1.0
        return list(stops), list(stops.values())

    def __call__(self, step: int, progress: float) -> None:
        """Look at the count every few steps and at the end of every epoch, and act."""
        if not self._options.may_return:
            self._hold_linear_(progress)
        every = self._options.steer_every or max(1, round(step / progress / LOOKS))
        epochs = progress * self._options.epochs
        if step % every and abs(epochs - round(epochs)) > 1e-6:
            return
        target = self.target(progress)
        count = count_slopes(self._student, self._options.threshold)
        growth = self._options.growth
        self._penalty.strength *= growth if count > target else 1 / growth
        if count > target:
            self._linearize_lowest_(count - target, progress)
        self._rescale_()

    @torch.no_grad()
    def _rescale_(self) -> None:
        """Say from which slope on a ReLU is full. It follows from the slopes alone, so a resumed search has the same."""
        if self._options.full_at is None:
            return
        values = self._values()
        alive = values[values > self._options.threshold]
        if not len(alive):
            return
        quantile = alive.kthvalue(1 + int(self._options.full_at * (len(alive) - 1))).values.item()
        for module in self._modules:
            module.full = min(1.0, quantile)

    @torch.no_grad()
    def _hold_linear_(self, progress: float) -> None:
        """Keep the slopes that are linear, and those that have come down to the threshold, where they are."""
        for module, linear, held in zip(self._modules, self._linear, self._held, strict=True):
            held.masked_fill_(self._new(module, linear), -HAIR * (1 - progress))
            module.slope.copy_(torch.where(linear, held, module.slope))

    @torch.no_grad()
    def _linearize_lowest_(self, excess: int, progress: float) -> None:
        """Make the lowest of the slopes that still count linear, until at least so many ReLUs are gone."""
        values = self._values()
        governs = torch.cat([torch.full((m.slope.numel(),), m.governs, device=values.device) for m in self._modules])
        alive = (values > self._options.threshold).nonzero().flatten()
        order = alive[values[alive].argsort(stable=True)]
        before = governs[order].cumsum(0) - governs[order]
        gone = order[before < excess]
        values[gone] = -HAIR * (1 - progress + 1e-3 * (1 - values[gone]))
        parts = values.split([m.slope.numel() for m in self._modules])
        for module, linear, held, part in zip(self._modules, self._linear, self._held, parts, strict=True):
            module.slope.copy_(part.reshape(module.slope.shape))
            if not self._options.may_return:
                held.copy_(torch.where(self._new(module, linear), module.slope, held))

    def _values(self) -> Tensor:
        """Return a copy of all slopes in one row."""
        return torch.cat([module.slope.detach().flatten() for module in self._modules])

    def _new(self, module: SlopedReLU, linear: Tensor) -> Tensor:
        """Return which slopes have become linear since they were last looked at, and note that they have."""
        new = (module.slope <= self._options.threshold) & ~linear
        linear |= new
        return new
