"""Learning rates over a phase, as functions of how far it has come; without state, so that resuming needs none."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from reluctant.errors import unknown

Rate = Callable[[float], float]
"""From progress, 0…1, to a factor of the learning rate."""


def learning_rate(name: str, *, milestones: Sequence[float] = (), factor: float = 0.1) -> Rate:
    """Return a schedule: `constant`, `cosine` to zero, `steps` at milestones (as shares of the phase), or `onecycle`.

    Example:
        >>> [round(learning_rate("cosine")(progress), 2) for progress in (0, 0.5, 1)]
        [1.0, 0.5, 0.0]
    """
    rates: dict[str, Rate] = {
        "constant": lambda progress: 1.0,
        "cosine": lambda progress: (1 + math.cos(math.pi * min(progress, 1.0))) / 2,
        "steps": lambda progress: factor ** sum(progress >= milestone for milestone in milestones),
        "onecycle": lambda progress: progress / 0.25 if progress < 0.25 else max(0.0, (1 - progress) / 0.75),
    }
    if name not in rates:
        raise unknown("learning-rate schedule", name, rates)
    return rates[name]
