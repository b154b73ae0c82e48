"""Named data sets, their fixed splits, and a loader that keeps them on the device.

Any other data comes as an ordinary PyTorch DataLoader; `unpack` reads its batches.
"""

from __future__ import annotations

import os
from pathlib import Path

from reluctant.data.batches import unpack
from reluctant.data.digits import load_digits
from reluctant.data.images import SETS, load_images
from reluctant.data.loader import Loader
from reluctant.data.splits import Images, Splits
from reluctant.errors import DataError, OptionError, unknown

__all__ = ["Images", "Loader", "Splits", "load", "names", "unpack"]


def names() -> list[str]:
    """Return the names `load` knows."""
    return ["digits", *SETS]


def load(name: str, data_dir: str | Path | None = None, *, validation: float | None = None) -> Splits:
    """Load a named data set.

    Args:
        name: one of `names()`. `digits` comes with scikit-learn; the others are read from disk.
        data_dir: the folder of that set, or one that holds it under its name; else `RELUCTANT_DATA` of the environment.
        validation: the share of the training images to hold out, between 0 and 1; by default a tenth (`digits`: an eighth).

    Returns:
        Its train, validation and test images. Validation is carved from train, always the same images, a smaller share from
        among those of a larger one; what is called test is never used to choose anything.

    Raises:
        OptionError: no such set, or no such share.
        DataError: nothing is there (the message says what to put where), or something is damaged.

    Example:
        >>> splits = load("digits")
        >>> len(splits.train), len(splits.val), len(splits.test), splits.train.shape
        (5028, 720, 1440, (1, 16, 16))
    """
    if validation is not None and not 0 < validation < 1:
        raise OptionError(f"the share of validation images is {validation}; pass a number between 0 and 1, such as 0.1")
    splits = _read(name, data_dir, validation)
    if validation is not None and not (len(splits.train) and len(splits.val)):
        raise OptionError(
            f"with a share of {validation} for validation, {name} has {len(splits.train):,} images to train on and "
            f"{len(splits.val):,} for validation; pass another share"
        )
    return splits


def _read(name: str, data_dir: str | Path | None, validation: float | None) -> Splits:
    if name == "digits":
        return load_digits(validation)
    if name not in SETS:
        raise unknown("data set", name, names())
    where = data_dir or os.environ.get("RELUCTANT_DATA")
    if not where:
        raise DataError(f"{name} is read from disk; say where with --data-dir or RELUCTANT_DATA: {SETS[name].wanted()}")
    return load_images(SETS[name], Path(where), validation)
