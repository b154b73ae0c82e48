"""Images per second of an augmented epoch: our loader against the per-sample way, in one run.

The per-sample way has its images decoded already, as ours has: a DataLoader with two workers takes image after image,
crops, flips and normalises it. Both make the same kind of epoch of the same random images. Run: python benchmarks/loader.py
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from reluctant.data import Loader

MEAN, STD = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)


class PerSample(Dataset[tuple[Tensor, int]]):
    def __init__(self, pixels: Tensor, labels: Tensor, padding: int) -> None:
        self.pixels, self.labels, self.padding = pixels, labels, padding
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        size = self.pixels.shape[-1]
        image = F.pad(self.pixels[index], (self.padding,) * 4)
        down, right = random.randint(0, 2 * self.padding), random.randint(0, 2 * self.padding)
        image = image[:, down : down + size, right : right + size]
        if random.random() < 0.5:
            image = image.flip(-1)
        return (image.float() / 255 - self.mean) / self.std, int(self.labels[index])


def seconds(batches: Loader | DataLoader) -> float:
    start = time.perf_counter()
    count = sum(1 for _ in batches)
    assert count
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    pixels = torch.randint(0, 256, (options.images, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (options.images,))
    ours = Loader(
        pixels, labels, batch_size=options.batch_size, mean=MEAN, std=STD, padding=4, flip=True, shuffle=True, seed=0
    )
    theirs = DataLoader(
        PerSample(pixels, labels, 4),
        batch_size=options.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=options.workers,
        persistent_workers=True,
    )
    seconds(ours), seconds(theirs)  # start the workers, touch the memory
    measured = [(seconds(ours), seconds(theirs)) for _ in range(options.rounds)]
    images = len(ours) * options.batch_size
    result = {
        "ours_images_per_second": round(images / statistics.median(a for a, _ in measured)),
        "per_sample_images_per_second": round(images / statistics.median(b for _, b in measured)),
        "ratio": round(statistics.median(b / a for a, b in measured), 1),
        "ratio_lowest": round(min(b / a for a, b in measured), 1),
        "rounds": options.rounds,
    }
    if options.json:
        print(json.dumps(result, indent=2))
        return
    print(f"ours:       {result['ours_images_per_second']:>9,} images/s")
    print(f"per sample: {result['per_sample_images_per_second']:>9,} images/s ({options.workers} workers)")
    print(f"ratio:      {result['ratio']:>9} (median of {options.rounds} rounds, lowest {result['ratio_lowest']})")


if __name__ == "__main__":
    main()
