"""Data and networks so small that whole searches take a second."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from reluctant.recipes import Finetune, Recipe, Search


def examples(count: int = 64, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Two classes that no linear function separates: is the product of two features positive?"""
    x = torch.randn(count, 2, 4, 3, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, 0].mean((1, 2)) * x[:, 1].mean((1, 2)) > 0).long()


def batches(count: int = 64, batch_size: int = 16, seed: int = 0, shuffle: bool = False) -> DataLoader:
    return DataLoader(TensorDataset(*examples(count, seed)), batch_size=batch_size, shuffle=shuffle)


class Toy(nn.Module):
    """Odd shapes, BatchNorm, dropout, a residual: 5·4·3 + 5·4·3 + 7 ReLUs."""

    TOTAL = 127

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.b = nn.Conv2d(2, 5, 3, padding=1), nn.BatchNorm2d(5), nn.Conv2d(5, 5, 1)
        self.hidden, self.drop, self.fc = nn.Linear(5, 7), nn.Dropout(0.1), nn.Linear(7, 2)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.bn(self.a(x)))
        x = self.relu(self.b(x) + x)
        return self.fc(self.drop(torch.relu(self.hidden(x.mean((2, 3))))))


def toy(seed: int = 0) -> Toy:
    torch.manual_seed(seed)
    return Toy()


def recipe(**search: object) -> Recipe:
    """A recipe of a few epochs."""
    chosen = {"epochs": 4, "lr": 1e-2, "slope_lr": 5e-2} | search
    return Recipe(search=Search(**chosen), finetune=Finetune(epochs=2, lr=1e-2))
