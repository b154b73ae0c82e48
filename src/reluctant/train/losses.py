"""What training minimises: the task's loss, distillation from a teacher, and the penalty on slopes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from reluctant.errors import ModelError
from reluctant.slopes import SlopedReLU

Loss = Callable[[Any, Any], Tensor]


def distillation(student: Tensor, teacher: Tensor, temperature: float = 4.0) -> Tensor:
    """Compute T²·KL(softmax(teacher/T) ‖ softmax(student/T)), the mean over the batch.

    References: Hinton, Vinyals and Dean, "Distilling the Knowledge in a Neural Network", 2015.

    Example:
        >>> logits = torch.tensor([[2.0, 0.0]])
        >>> float(distillation(logits, logits))
        0.0
    """
    towards = F.log_softmax(teacher.float() / temperature, dim=-1)
    log_student = F.log_softmax(student.float() / temperature, dim=-1)
    return F.kl_div(log_student, towards, reduction="batchmean", log_target=True) * temperature**2


@dataclass(frozen=True)
class Objective:
    """The loss of a batch: loss(outputs, targets) + weight · distillation(outputs, teacher's outputs)."""

    loss: Loss = F.cross_entropy
    teacher: Callable[[Any], Tensor] | None = None
    temperature: float = 4.0
    weight: float = 1.0

    def __call__(self, model: Callable[..., Any], inputs: Any, targets: Any) -> Tensor:
        """Compute it, with what the teacher says as a constant."""
        outputs = call(model, inputs)
        total = self.loss(outputs, targets)
        if self.teacher is not None and self.weight:
            said = self.teacher(inputs).detach().clone()
            total = total + self.weight * distillation(logits(outputs), said, self.temperature)
        return total


class Penalty:
    """λ·Σ|c| over the slopes of a network. Its gradient λ·sign(c) is added directly, before the optimizer sees it.

    Args:
        modules: the sloped ReLUs.
        strength: λ.
        by_relus: weigh a slope by the number of ReLUs it governs, so that one λ means the same for pixels and channels.
    """

    def __init__(self, modules: Mapping[str, SlopedReLU], strength: float, *, by_relus: bool = False) -> None:
        self.strength = strength
        self._weighted = [(module.slope, float(module.governs) if by_relus else 1.0) for module in modules.values()]

    def value(self) -> float:
        """Return λ·Σ|c|."""
        with torch.no_grad():
            return self.strength * sum(weight * float(slope.abs().sum()) for slope, weight in self._weighted)

    @torch.no_grad()
    def add_gradient_(self) -> None:
        """Add λ·sign(c) to the gradients of the slopes."""
        for slope, weight in self._weighted:
            if slope.grad is None:
                slope.grad = torch.zeros_like(slope)
            slope.grad.add_(slope.sign(), alpha=self.strength * weight)


def call(model: Callable[..., Any], inputs: Any) -> Any:
    """Call a network with a batch's inputs: a tensor, several, or several by name."""
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple | list) else model(inputs)


def logits(outputs: Any) -> Tensor:
    """Find the logits in what a network returns: the tensor, `outputs["logits"]`, or the first of several."""
    if isinstance(outputs, Tensor):
        return outputs
    if isinstance(outputs, Mapping) and isinstance(outputs.get("logits"), Tensor):
        return outputs["logits"]  # type: ignore[no-any-return]
    if isinstance(outputs, tuple | list) and outputs and isinstance(outputs[0], Tensor):
        return outputs[0]
    raise ModelError(
        f"the network returns a {type(outputs).__name__}, in which no logits can be found; "
        "return a tensor, a tuple that begins with one, or a dict with 'logits'"
    )
