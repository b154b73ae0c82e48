"""Wide residual networks with pre-activation blocks.

Reference: Zagoruyko and Komodakis, "Wide Residual Networks", 2016. The form used for private inference has no ReLU before
the classifier; `final_relu` brings the classic one back.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class PreActivationBlock(nn.Module):
    """BatchNorm and ReLU before each of two 3×3 convolutions."""

    def __init__(self, channels_in: int, channels_out: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.relu2 = nn.ReLU()
        self.dropout = nn.Dropout(dropout)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.project = channels_in != channels_out
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False) if self.project else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Compute F(x) + x; where the width changes, the shortcut starts after the first ReLU."""
        out = self.relu1(self.bn1(x))
        skip = self.shortcut(out) if self.project else x
        out = self.relu2(self.bn2(self.conv1(out)))
        total: Tensor = self.conv2(self.dropout(out)) + skip
        return total


class WideResNet(nn.Module):
    """Three stages; 16 channels in the stem, then 16, 32 and 64 times the widening factor."""

    def __init__(
        self,
        depth: int,
        factor: int,
        *,
        num_classes: int,
        input_shape: tuple[int, ...],
        final_relu: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        blocks = (depth - 4) // 6
        self.conv1 = nn.Conv2d(input_shape[0], 16, 3, padding=1, bias=False)
        channels = 16
        for stage, width in enumerate((16 * factor, 32 * factor, 64 * factor), start=1):
            layer = nn.Sequential()
            for block in range(blocks):
                stride = 2 if block == 0 and stage > 1 else 1
                layer.append(PreActivationBlock(channels, width, stride, dropout))
                channels = width
            self.add_module(f"layer{stage}", layer)
        self.bn = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU() if final_relu else nn.Identity()
        self.fc = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Compute the logits."""
        x = self.conv1(x)
        for stage in (1, 2, 3):
            x = self.get_submodule(f"layer{stage}")(x)
        x = F.adaptive_avg_pool2d(self.relu(self.bn(x)), 1).flatten(1)
        logits: Tensor = self.fc(x)
        return logits


def wide_resnet22_8(
    *, num_classes: int, input_shape: tuple[int, ...], final_relu: bool = False, dropout: float = 0.0
) -> WideResNet:
    """Make WRN-22-8: 1,359,872 ReLUs at 32×32, 1,392,640 with the last one."""
    return WideResNet(22, 8, num_classes=num_classes, input_shape=input_shape, final_relu=final_relu, dropout=dropout)
