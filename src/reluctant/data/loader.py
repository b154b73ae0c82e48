"""A loader that keeps the whole set on the device as bytes, and crops, flips and normalises whole batches there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

import torch
from torch import Tensor
from torch.nn import functional as F

from reluctant.errors import DataError


class Loader:
    """Iterates over batches `(images, labels)`, images as normalised float32.

    What an epoch looks like depends on the seed and the number of the epoch alone, so a run that is resumed sees the same
    batches, on any device. `batch_size` is that of all processes together: each takes its share of every batch, so
    their number does not change what is trained.

    Args:
        pixels: uint8, N×C×H×W.
        labels: one for each.
        batch_size: images per step.
        mean: of every channel, for pixels scaled to 0…1.
        std: likewise.
        padding: shift images at random by up to so many pixels; what comes in from outside is black.
        flip: mirror images at random.
        shuffle: in a new order every epoch; the rest that does not fill a batch is left out.
        seed: of order, shifts and flips.
        device: where the set lives.
        rank: which of `world_size` processes this is.
        world_size: how many there are.
    """

    def __init__(
        self,
        pixels: Tensor,
        labels: Tensor,
        *,
        batch_size: int,
        mean: Sequence[float],
        std: Sequence[float],
        padding: int = 0,
        flip: bool = False,
        shuffle: bool = False,
        seed: int = 0,
        device: torch.device | str = "cpu",
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        _check(pixels, labels, mean, std)
        if batch_size < 1 or batch_size < world_size:
            raise DataError(
                f"batch_size is {batch_size}; pass at least 1, and at least one for each of {world_size} processes"
            )
        self.batch_size = min(batch_size, len(pixels)) if shuffle else batch_size
        self.padding, self.flip, self.shuffle, self.seed = padding, flip, shuffle, seed
        self.rank, self.world_size = rank, world_size
        self.epoch = 0
        self._size = len(pixels)
        self._labels = labels.to(device)
        self._padded = F.pad(pixels, (padding,) * 4).to(device)
        channel = torch.tensor([mean, std], device=device)[:, :, None, None] * 255
        self._scale, self._shift = 1 / channel[1], -channel[0] / channel[1]

    def share(self, device: torch.device | str, rank: int, world_size: int) -> Loader:
        """Return this loader for one of several processes, on its device."""
        if (rank, world_size) == (self.rank, self.world_size) and torch.device(device) == self._padded.device:
            return self
        if self.batch_size < world_size:
            raise DataError(f"batch_size is {self.batch_size}; pass at least one for each of {world_size} processes")
        mine = copy(self)
        mine.rank, mine.world_size = rank, world_size
        mine._padded, mine._labels = self._padded.to(device), self._labels.to(device)
        mine._scale, mine._shift = self._scale.to(device), self._shift.to(device)
        return mine

    @property
    def _windows(self) -> Tensor:
        """Every shifted window of every image as one view: a crop of a batch is then a single gather."""
        height, width = (size - 2 * self.padding for size in self._padded.shape[-2:])
        return self._padded.unfold(2, height, 1).unfold(3, width, 1)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iteration goes through; after it comes the next one by itself."""
        self.epoch = epoch

    def __len__(self) -> int:
        full, rest = divmod(self._size, self.batch_size)
        return full if self.shuffle else full + (rest > 0)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(_mix(self.seed, self.epoch))
        self.epoch += 1
        order = torch.randperm(self._size, generator=generator) if self.shuffle else torch.arange(self._size)
        places = 2 * self.padding + 1
        offsets = torch.randint(places, (2, self._size), generator=generator) if self.padding else None
        flips = torch.rand(self._size, generator=generator) < 0.5 if self.flip else None
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            where = slice(start + self.rank, min(start + self.batch_size, self._size), self.world_size)
            yield self._batch(
                order[where],
                None if offsets is None else offsets[:, where],
                None if flips is None else flips[where],
            )

    def _batch(self, indices: Tensor, offsets: Tensor | None, flips: Tensor | None) -> tuple[Tensor, Tensor]:
        device = self._padded.device
        mirrored = slice(len(indices), None)
        if flips is not None:  # the mirrored ones go last: flipping a slice is cheaper than picking them out
            last = flips.byte().argsort(stable=True)
            indices = indices[last]
            offsets = None if offsets is None else offsets[:, last]
            mirrored = slice(len(indices) - int(flips.sum()), None)
        indices = indices.to(device)
        down, right = torch.zeros_like(indices).expand(2, -1) if offsets is None else offsets.to(device)
        pixels = self._windows[indices, :, down, right]
        pixels[mirrored] = pixels[mirrored].flip(-1)
        images = pixels.float().mul_(self._scale).add_(self._shift)
        return images, self._labels[indices]


def _mix(seed: int, epoch: int) -> int:
    """One number for a pair, so that epoch 1 of seed 0 is not epoch 0 of seed 1."""
    return (seed * 0x9E3779B97F4A7C15 + epoch) % (1 << 63)


def _check(pixels: Tensor, labels: Tensor, mean: Sequence[float], std: Sequence[float]) -> None:
    if pixels.dtype != torch.uint8 or pixels.dim() != 4 or len(pixels) == 0:
        kind = str(pixels.dtype).removeprefix("torch.")
        raise DataError(f"images are {kind} of shape {tuple(pixels.shape)}; pass uint8 of shape N×C×H×W")
    if len(labels) != len(pixels):
        raise DataError(f"there are {len(pixels)} images and {len(labels)} labels; pass one label for each")
    if not len(mean) == len(std) == pixels.shape[1] or min(std) <= 0:
        raise DataError(f"mean {mean} and std {std} do not fit {pixels.shape[1]} channels; pass one for each, std above 0")
