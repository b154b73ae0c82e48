"""Small awkward networks, each with an answer known on paper. The input is always 2×3×6×6 unless said otherwise."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IMAGE = (3, 6, 6)
PIXELS = 36


def images(batch: int = 2, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(batch, *IMAGE, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def conv(channels_in: int = 3, channels_out: int = 4) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, padding=1)


class Modules(nn.Module):
    """Two modules, one in place: 2 × 4·36."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(), conv(4, 4)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU(inplace=True)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.a(x))
        x = self.relu2(self.b(x))
        return self.fc(x.mean((2, 3)))


class OneReLUManyTimes(nn.Module):
    """One module called three times: 3 × 4·36."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = conv(), conv(4, 4), conv(4, 4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.a(x))
        y = self.relu(self.b(x))
        return self.relu(self.c(y) + x)


class Block(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.conv, self.act = conv(4, 4), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x))


class SharedBetweenBlocks(nn.Module):
    """One ReLU object held by two blocks, and a block that never runs: 2 × 4·36."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.ReLU()
        self.stem = conv()
        self.blocks = nn.ModuleList([Block(act), Block(act), Block(nn.ReLU())])

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks[1](self.blocks[0](self.stem(x)))


class Functional(nn.Module):
    """Every spelling of a function: 11 × 4·36."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.mix = conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        x = self.mix(F.relu(x))
        x = self.mix(F.relu(x, inplace=True))
        x = self.mix(F.relu_(x))
        x = self.mix(torch.relu(x))
        x = self.mix(torch.relu_(x))
        x = self.mix(x.relu())
        x = self.mix(x.relu_())
        x = self.mix(x.clamp(min=0))
        x = self.mix(x.clamp_min(0))
        x = self.mix(torch.clamp(x, 0.0))
        return self.mix(x.clamp_(min=0))


class InPlaceSeenLater(nn.Module):
    """In-place calls whose input is used again, and one whose result is thrown away: 3 × 4·36."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.mix = conv(), conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.conv(x)
        before = x + 1
        y = F.relu_(x)
        z = self.mix(x) + y + before  # x is relu(x) by now
        z.relu_()
        w = z * 2
        torch.relu_(w)
        return w + z


class TrainingHead(nn.Module):
    """Functional dropout, and an auxiliary head with a ReLU before the main one, in training only: 4·36 + 7."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc, self.aux = conv(), nn.Linear(4, 7), nn.Linear(4, 7)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = F.relu(self.conv(x)).mean((2, 3))
        x = F.dropout(x, 0.5, self.training)
        aux = F.relu(self.aux(x)) if self.training else None
        out = F.relu(self.fc(x))
        return out if aux is None else (out, aux)


class SeveralInputs(nn.Module):
    """Two inputs and an option left at its default: 4·36."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()

    def forward(self, x: Tensor, gate: Tensor, *, bias: Tensor | None = None, scale: float = 2.0) -> Tensor:
        x = F.relu(self.conv(x)) * gate * scale
        return x if bias is None else x + bias


class OthersToo(nn.Module):
    """A ReLU among operations that are not: 4·36."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool, self.fc = conv(), nn.MaxPool2d(2), nn.Linear(36, 5)
        self.six = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        x = self.six(self.conv(x))
        x = self.pool(F.relu(x))
        x = F.gelu(x)
        x = x * torch.sigmoid(x)
        return self.fc(x.flatten(1)).softmax(1)


class DataDependentModules(nn.Module):
    """Cannot be traced, but every ReLU is a module called once: 2 × 4·36."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = conv(), conv(4, 4)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()
        self.six = nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu1(self.a(x))
        if x.sum() > -1e9:
            x = self.relu2(self.b(x))
        return self.six(x)


class DataDependentFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = conv()

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            x = x + 1
        return F.relu(self.a(x))


class DataDependentTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.relu = conv(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 1e9:
            x = x + 1
        return self.relu(self.relu(self.a(x)) - 1)


class DataDependentNever(DataDependentModules):
    """One ReLU that this example does not reach."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.ReLU()


class RandomInForward(nn.Module):
    """A number drawn in forward, in one of several ways, almost always with the same consequence."""

    def __init__(self, draw: Callable[[], float]) -> None:
        super().__init__()
        self.a, self.draw = conv(), draw

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.a(x))
        return x.mean() + out if self.draw() < 1e-6 else out


class RandomDepth(nn.Module):
    """Stochastic depth with a ReLU module: by modules it works. 4·36."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.relu = conv(), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return x if self.training and random.random() < 0.5 else self.relu(x)


class FoldedBatch(nn.Module):
    """Frames folded into the batch, which puts their ReLUs out of reach. Input N×5×4: 5·8 out of reach and 8 within."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Linear(4, 8), nn.ReLU())
        self.g = nn.Sequential(nn.Linear(8, 8), nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        batch, frames, _ = x.shape
        return self.g(self.f(x.reshape(batch * frames, 4)).view(batch, frames, 8).mean(1))


class ThroughAView(nn.Module):
    """Changes a tensor in place through a view of it, which no graph shows."""

    def __init__(self) -> None:
        super().__init__()
        self.a = conv()

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x[:, :2].relu_()
        return x


class NoReLU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = conv()

    def forward(self, x: Tensor) -> Tensor:
        return F.gelu(self.a(x))


class Constants(nn.Module):
    """Makes a tensor in forward, clamps a parameter, and clamps integers: one site, 4·36."""

    def __init__(self) -> None:
        super().__init__()
        self.a = conv()
        self.gain = nn.Parameter(torch.tensor([-1.0, 1.0, 2.0]))

    def forward(self, x: Tensor) -> Tensor:
        gain = self.gain.clamp(min=0).sum()
        return F.relu(self.a(x)) * torch.tensor([2.0]) * gain


class Tokens(nn.Module):
    """N×T×D features: 5·8."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.fc(x)).sum(1)


EVERY = {
    Modules: 2 * 4 * PIXELS,
    OneReLUManyTimes: 3 * 4 * PIXELS,
    SharedBetweenBlocks: 2 * 4 * PIXELS,
    Functional: 11 * 4 * PIXELS,
    InPlaceSeenLater: 3 * 4 * PIXELS,
    TrainingHead: 4 * PIXELS + 7,
    OthersToo: 4 * PIXELS,
    DataDependentModules: 2 * 4 * PIXELS,
    Constants: 4 * PIXELS,
    RandomDepth: 4 * PIXELS,
}
"""Networks that take images, and their counts."""


def output(model: nn.Module, x: Tensor, seed: int = 0) -> list[Tensor]:
    """What a network gives, as a list; the seed makes dropout repeatable."""
    random.seed(seed)
    torch.manual_seed(seed)
    out = model(x.clone())
    return list(out) if isinstance(out, tuple) else [out]
