"""The named image sets, in whichever layout the folder holds."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from reluctant.data import readers
from reluctant.data.splits import VALIDATION_SHARE, Images, Splits, carve_validation
from reluctant.errors import DataError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ImageSet:
    """What we know of a set before we have seen it."""

    name: str
    folders: tuple[str, ...]
    """Names under which people keep it."""
    size: int
    classes: int | None
    """None: as many as there are."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    label: str
    """The column of a parquet file."""
    test_parts: tuple[str, ...]
    """What the part with labels that nobody trains on is called."""
    images: tuple[int, int]
    """How many there are to train and to test in the whole set."""

    def wanted(self) -> str:
        """Say what to put where."""
        official = f", the official {' or '.join(self.folders[1:])}" if self.folders[1:] else ""
        return (
            f"a folder '{self.folders[0]}' with Hugging Face's train*.parquet and {self.test_parts[0]}*.parquet{official}, "
            f"or train/CLASS/*.png and {self.test_parts[0]}/CLASS/*.png"
        )


SETS = {
    one.name: one
    for one in (
        ImageSet(
            "cifar10",
            ("cifar10", "cifar-10-batches-py", "cifar-10-batches-bin"),
            32,
            10,
            (0.4914, 0.4822, 0.4465),
            (0.2470, 0.2435, 0.2616),
            "label",
            ("test",),
            (50_000, 10_000),
        ),
        ImageSet(
            "cifar100",
            ("cifar100", "cifar-100-python", "cifar-100-binary"),
            32,
            100,
            (0.5071, 0.4865, 0.4409),
            (0.2673, 0.2564, 0.2762),
            "fine_label",
            ("test",),
            (50_000, 10_000),
        ),
        ImageSet(
            "tiny-imagenet",
            ("tiny-imagenet", "tiny-imagenet-200"),
            64,
            None,
            (0.4802, 0.4481, 0.3975),
            (0.2770, 0.2691, 0.2821),
            "label",
            ("valid", "val", "validation"),  # its test set has no labels
            (100_000, 10_000),
        ),
    )
}


def load_images(spec: ImageSet, where: Path, validation: float | None) -> Splits:
    """Read a set from its folder, or from a folder that holds it."""
    if not where.is_dir():
        raise DataError(f"the data folder {where} does not exist; make it and put there {spec.wanted()}")
    for folder in [where / name for name in spec.folders] + [where]:
        for read in readers.READERS:
            raw = read(folder, spec.label, spec.test_parts, spec.classes) if folder.is_dir() else None
            if raw is not None:
                return _splits(spec, raw, folder, validation)
    raise DataError(f"the data folder {where} holds nothing that is {spec.name}; put there {spec.wanted()}")


def _splits(spec: ImageSet, raw: readers.Raw, folder: Path, validation: float | None) -> Splits:
    for part, (pixels, labels) in {"train": raw.train, "test": raw.test}.items():
        if pixels.shape[2:] != (spec.size, spec.size):
            height, width = pixels.shape[2:]
            raise DataError(
                f"{folder} has {height}×{width} images, {spec.name} has {spec.size}×{spec.size}; is it another set?"
            )
        if int(labels.min()) < 0 or int(labels.max()) >= len(raw.classes):
            raise DataError(
                f"{folder} ({part}) has labels from {int(labels.min())} to {int(labels.max())}, {spec.name} has "
                f"{len(raw.classes)} classes; is it another set?"
            )
    if spec.classes is not None and len(raw.classes) != spec.classes:
        raise DataError(f"{folder} has {len(raw.classes)} classes, {spec.name} has {spec.classes}; is it another set?")
    found = len(raw.train[1]), len(raw.test[1])
    if found != spec.images:
        log.warning("%s has %d and %d images, the whole %s %d and %d", folder, *found, spec.name, *spec.images)
    train, val = carve_validation(Images(*map(torch.from_numpy, raw.train)), validation or VALIDATION_SHARE)
    return Splits(
        name=spec.name,
        train=train,
        val=val,
        test=Images(*map(torch.from_numpy, raw.test)),
        classes=raw.classes,
        mean=spec.mean,
        std=spec.std,
        padding=4,
        flip=True,
        origin=f"{raw.kind} in {folder}",
    )
