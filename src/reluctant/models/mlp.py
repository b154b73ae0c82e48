"""A fully connected network, as in the theory of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from torch import Tensor, nn


class MLP(nn.Module):
    """Hidden layers of given widths, a ReLU after each."""

    def __init__(self, hidden: Sequence[int], *, num_classes: int, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        width = prod(input_shape)
        self.layers = nn.Sequential()
        for size in hidden:
            self.layers.append(nn.Linear(width, size))
            self.layers.append(nn.ReLU())
            width = size
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        logits: Tensor = self.fc(self.layers(x.flatten(1)))
        return logits


def mlp(*, num_classes: int, input_shape: tuple[int, ...], hidden: Sequence[int] | int = (512, 512)) -> MLP:
    """Make a fully connected network; `hidden` are the widths of its hidden layers."""
    widths = (hidden,) if isinstance(hidden, int) else hidden
    return MLP(widths, num_classes=num_classes, input_shape=input_shape)
