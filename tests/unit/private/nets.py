"""Small networks with every operation that a plan knows, and images for them."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluctant import Mask, attach, models
from reluctant.models.resnet import PadShortcut
from reluctant.slopes import shapes

SHAPE = (2, 7, 9)


def image(shape=SHAPE, seed=0):
    return np.random.default_rng(seed).random(shape)


class Odd(nn.Module):
    """Odd sizes, strides, dilation, groups, one-sided padding, a BatchNorm that folds and one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2))
        self.bn = nn.BatchNorm2d(6)
        self.grouped = nn.Conv2d(6, 4, 3, padding="same", groups=2, bias=False)
        self.before = nn.BatchNorm2d(4)
        self.pool = nn.AvgPool2d(2, stride=1, padding=1)
        self.drop = nn.Dropout(0.5)
        self.fc = nn.Linear(4 * 5 * 8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn(self.first(x)))
        y = self.grouped(x)
        x = F.relu(self.before(y + y))
        x = self.drop(self.pool(x))
        return self.fc(x.flatten(1))


class Shortcuts(nn.Module):
    """Option A: slices, zero padding, additions; concatenation, max-pooling, means."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 4, 3, padding=1)
        self.down = nn.Conv2d(4, 6, 3, stride=2, padding=1)
        self.short = PadShortcut(4, 6, 2)
        self.most = nn.MaxPool2d(2, ceil_mode=True)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.stem(x))
        x = self.relu(self.down(x) + self.short(x))
        x = torch.cat([x, x], 1)
        return self.fc(self.most(x)[..., :2].mean((2, 3)))


def small() -> nn.Module:
    return models.create("small", num_classes=4, input_shape=SHAPE, width=4)


def wide() -> nn.Module:
    """Pre-activation blocks: BatchNorm after additions."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn, self.conv = nn.BatchNorm2d(4), nn.Conv2d(4, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.conv(torch.relu(self.bn(x)))

    return nn.Sequential(nn.Conv2d(2, 4, 3), Block(), Block(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


NETS = {"odd": Odd, "shortcuts": Shortcuts, "small": small, "wide": wide}


def made(name: str) -> nn.Module:
    """Make a network with BatchNorms that do something."""
    torch.manual_seed(1)
    model = NETS[name]()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.3)
    return model.eval()


def masked(name: str, share: float = 0.4, empty: bool = False) -> nn.Module:
    """A network of which a share of the ReLUs is kept; `empty` linearizes the first site altogether."""
    model = made(name)
    example = torch.zeros(2, *SHAPE)
    generator = torch.Generator().manual_seed(2)
    tensors = {
        site: torch.rand(shape, generator=generator) < share for site, shape in shapes(attach(model, example)).items()
    }
    if empty:
        first = next(iter(tensors))
        tensors[first] = torch.zeros_like(tensors[first])
    return Mask(tensors).apply(model, example).eval()
