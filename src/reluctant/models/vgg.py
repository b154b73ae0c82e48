"""A plain convolutional network, without residuals.

Reference: Simonyan and Zisserman, "Very Deep Convolutional Networks", 2015; with BatchNorm and one linear layer, as is
usual for 32×32 images.
"""

from __future__ import annotations

from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from reluctant.errors import unknown

Pool = Literal["max", "average"]

_STAGES = {
    11: ((64,), (128,), (256, 256), (512, 512), (512, 512)),
    16: ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
}


class VGG(nn.Module):
    """Stages of convolutions with a pool after each; average pools, unlike max-pools, cost nothing in private."""

    def __init__(self, depth: int, *, num_classes: int, input_shape: tuple[int, ...], pool: Pool, stem_relu: bool) -> None:
        super().__init__()
        if depth not in _STAGES:
            raise unknown("depth of vgg", str(depth), map(str, _STAGES))
        if pool not in get_args(Pool):
            raise unknown("pool", pool, get_args(Pool))
        channels = input_shape[0]
        self.features = nn.Sequential()
        for widths in _STAGES[depth]:
            for width in widths:
                stem = len(self.features) == 0
                self.features.append(nn.Conv2d(channels, width, 3, padding=1, bias=False))
                self.features.append(nn.BatchNorm2d(width))
                if stem_relu or not stem:
                    self.features.append(nn.ReLU())
                channels = width
            self.features.append(nn.MaxPool2d(2, ceil_mode=True) if pool == "max" else nn.AvgPool2d(2, ceil_mode=True))
        self.fc = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        x = F.adaptive_avg_pool2d(self.features(x), 1).flatten(1)
        logits: Tensor = self.fc(x)
        return logits


def vgg(
    *,
    num_classes: int,
    input_shape: tuple[int, ...],
    depth: int = 16,
    pool: Pool = "max",
    stem_relu: bool = False,
) -> VGG:
    """Make a VGG: 11 or 16 layers, with max-pools or average pools."""
    return VGG(depth, num_classes=num_classes, input_shape=input_shape, pool=pool, stem_relu=stem_relu)
