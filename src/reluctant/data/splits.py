"""Images in memory, and the three parts they are divided into."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from reluctant.data.loader import Loader

VALIDATION_SEED = 0
VALIDATION_SHARE = 0.1


@dataclass(frozen=True)
class Images:
    """Pixels as uint8, N×C×H×W, and a label for each."""

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of one image, C×H×W."""
        return tuple(self.pixels.shape[1:])

    def __getitem__(self, index: Any) -> Images:
        return Images(self.pixels[index], self.labels[index])


@dataclass(frozen=True)
class Splits:
    """A data set: what to train on, what to choose by, and what to report once."""

    name: str
    train: Images
    val: Images
    test: Images
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    """Per channel, of pixels scaled to 0…1."""
    std: tuple[float, ...]
    padding: int = 4
    """How far training images are shifted at random."""
    flip: bool = True
    """Whether training images are mirrored at random."""
    origin: str = ""
    """Where it came from, for people."""

    def loader(
        self,
        part: str,
        *,
        batch_size: int,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> Loader:
        """Return a loader of `train`, shuffled and augmented, or of `val` or `test`, in order and as they are."""
        training = part == "train"
        images: Images = {"train": self.train, "val": self.val, "test": self.test}[part]
        return Loader(
            images.pixels,
            images.labels,
            batch_size=batch_size,
            mean=self.mean,
            std=self.std,
            padding=self.padding if training else 0,
            flip=self.flip and training,
            shuffle=training,
            seed=seed,
            device=device,
            rank=rank,
            world_size=world_size,
        )

    def loaders(self, **options: Any) -> Iterator[Loader]:
        """Yield the loaders of train, val and test."""
        return (self.loader(part, **options) for part in ("train", "val", "test"))


def carve_validation(images: Images, share: float = VALIDATION_SHARE) -> tuple[Images, Images]:
    """Divide images into training and validation, the same share of every class, always the same way."""
    generator = torch.Generator().manual_seed(VALIDATION_SEED)
    order = torch.randperm(len(images), generator=generator)
    held_out = torch.zeros(len(images), dtype=torch.bool)
    for label in images.labels.unique():
        of_class = order[images.labels[order] == label]
        held_out[of_class[: round(len(of_class) * share)]] = True
    return images[~held_out], images[held_out]
