"""torch's optimizers, in the form that updates all parameters in one pass."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_DEVICES = ("cpu", "cuda")


def adam(groups: Iterable[dict[str, Any]], **options: Any) -> torch.optim.Optimizer:
    """Make Adam over groups of parameters."""
    groups = list(groups)
    return torch.optim.Adam(groups, fused=_fusible(p for group in groups for p in group["params"]), **options)


def sgd(parameters: Iterable[Tensor], **options: Any) -> torch.optim.Optimizer:
    """Make SGD over parameters."""
    parameters = list(parameters)
    return torch.optim.SGD(parameters, fused=_fusible(parameters), **options)


def _fusible(parameters: Iterable[Tensor]) -> bool:
    return all(p.is_floating_point() and p.device.type in _DEVICES for p in parameters)
