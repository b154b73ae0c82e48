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
from reluctant.errors import DataError, unknown

__all__ = ["Images", "Loader", "Splits", "load", "names", "unpack"]


def names() -> list[str]:
    """Return the names `load` knows."""
    return ["digits", *SETS]


def load(name: str, data_dir: str | Path | None = None) -> Splits:
    """Load a named data set.

    Args:
        name: one of `names()`. `digits` comes with scikit-learn; the others are read from disk.
        data_dir: the folder of that set, or one that holds it under its name; else `RELUCTANT_DATA` of the environment.

    Returns:
        Its train, validation and test images. Validation is carved from train, always the same images; what is called test
        is never used to choose anything.

    Raises:
        OptionError: no such set.
        DataError: nothing is there (the message says what to put where), or something is damaged.

    Example:
        >>> splits = load("digits")
        >>> len(splits.train), len(splits.val), len(splits.test), splits.train.shape
        (5028, 720, 1440, (1, 16, 16))
    """
    if name == "digits":
        return load_digits()
    if name not in SETS:
        raise unknown("data set", name, names())
    where = data_dir or os.environ.get("RELUCTANT_DATA")
    if not where:
        raise DataError(f"{name} is read from disk; say where with --data-dir or RELUCTANT_DATA: {SETS[name].wanted()}")
    return load_images(SETS[name], Path(where))
