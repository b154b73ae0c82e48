"""Residual networks in their CIFAR form: a 3×3 stem, no max-pool.

Reference: He et al., "Deep Residual Learning for Image Recognition", 2016. As in the work on private inference, there is
no ReLU after the first convolution unless `stem_relu` asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, get_args

from torch import Tensor, nn
from torch.nn import functional as F

from reluctant.errors import OptionError, unknown

Shortcut = Literal["projection", "pad"]


class PadShortcut(nn.Module):
    """Option A of the paper: take every second pixel, and put zeros around the channels."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.before = (channels_out - channels_in) // 2
        self.after = channels_out - channels_in - self.before

    def forward(self, x: Tensor) -> Tensor:
        """Slice and pad."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.before, self.after))


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut around them."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            if shortcut == "pad":
                self.shortcut = PadShortcut(channels_in, channels_out, stride)
            else:
                projection = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
                self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(channels_out))
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Compute relu(F(x) + x)."""
        out = self.relu1(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        total: Tensor = self.relu2(out + self.shortcut(x))
        return total


class ResNet(nn.Module):
    """Stages `layer1`, `layer2`, … of basic blocks; every stage but the first halves the resolution."""

    def __init__(
        self,
        blocks: Sequence[int],
        widths: Sequence[int],
        *,
        num_classes: int,
        input_shape: tuple[int, ...],
        stem_relu: bool,
        shortcut: Shortcut,
    ) -> None:
        super().__init__()
        if shortcut not in get_args(Shortcut):
            raise unknown("shortcut", shortcut, get_args(Shortcut))
        self.conv1 = nn.Conv2d(input_shape[0], widths[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(widths[0])
        self.relu = nn.ReLU() if stem_relu else nn.Identity()
        channels = widths[0]
        self.stages = len(blocks)
        for stage, (depth, width) in enumerate(zip(blocks, widths, strict=True), start=1):
            layer = nn.Sequential()
            for block in range(depth):
                stride = 2 if block == 0 and stage > 1 else 1
                layer.append(BasicBlock(channels, width, stride, shortcut))
                channels = width
            self.add_module(f"layer{stage}", layer)
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        x = self.relu(self.bn1(self.conv1(x)))
        for stage in range(1, self.stages + 1):
            x = self.get_submodule(f"layer{stage}")(x)
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        logits: Tensor = self.fc(x)
        return logits


def _factory(name: str, blocks: Sequence[int], widths: Sequence[int], doc: str) -> Callable[..., ResNet]:
    def factory(
        *,
        num_classes: int,
        input_shape: tuple[int, ...],
        stem_relu: bool = False,
        shortcut: Shortcut = "projection",
        width: int = widths[0],
    ) -> ResNet:
        if width < 1:
            raise OptionError(f"width is {width}; pass the channels of the first stage, {widths[0]} if not given")
        return ResNet(
            blocks,
            [width * (each // widths[0]) for each in widths],
            num_classes=num_classes,
            input_shape=input_shape,
            stem_relu=stem_relu,
            shortcut=shortcut,
        )

    factory.__name__, factory.__doc__ = name, doc
    return factory


resnet18 = _factory("resnet18", (2, 2, 2, 2), (64, 128, 256, 512), "ResNet-18: 491,520 ReLUs at 32×32.")
resnet34 = _factory("resnet34", (3, 4, 6, 3), (64, 128, 256, 512), "ResNet-34: 901,120 ReLUs at 32×32.")
resnet20 = _factory("resnet20", (3, 3, 3), (16, 32, 64), "ResNet-20: 172,032 ReLUs at 32×32, 188,416 with the stem's.")
small = _factory("small", (1, 1, 1), (16, 32, 64), "The demo's ResNet-8: 14,336 ReLUs at 16×16.")
