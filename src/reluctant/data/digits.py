"""Small data that needs no download and still needs ReLUs.

scikit-learn's 1,797 scanned digits, 8×8 pixels, each placed at random on a 16×16 canvas, four times. Where a digit stands
says nothing about which it is, so a linear classifier gets about 20 % right and a small ResNet 99 %. The split is by digit:
the placements of one digit are all in the same part.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from reluctant.data.splits import Images, Splits

CANVAS = 16
PLACEMENTS = 4
SEED = 0
TEST, VAL = 360, 180
"""How many of the scanned digits are held out."""


def load_digits(validation: float | None) -> Splits:
    """Make the data set, the same every time; another share for validation than the usual leaves other placements."""
    from sklearn import datasets  # takes a second, and nothing else needs it

    scans = datasets.load_digits()
    pixels = np.round(scans.images * (255 / 16)).astype(np.uint8)
    rng = np.random.default_rng(SEED)
    order = rng.permutation(len(pixels))
    held_out = VAL if validation is None else round((len(order) - TEST) * validation)
    test, val, train = np.split(order, [TEST, TEST + held_out])

    def placed(which: np.ndarray[Any, Any]) -> Images:
        repeated = np.repeat(which, PLACEMENTS)
        size = pixels.shape[-1]
        canvases = np.zeros((len(repeated), 1, CANVAS, CANVAS), dtype=np.uint8)
        corners = rng.integers(0, CANVAS - size + 1, (len(repeated), 2))
        for canvas, scan, (top, left) in zip(canvases, repeated, corners, strict=True):
            canvas[0, top : top + size, left : left + size] = pixels[scan]
        return Images(torch.from_numpy(canvases), torch.from_numpy(scans.target[repeated]).long())

    parts = {"train": placed(train), "val": placed(val), "test": placed(test)}
    scaled = parts["train"].pixels.float() / 255
    return Splits(
        name="digits",
        **parts,
        classes=tuple(str(digit) for digit in range(10)),
        mean=(float(scaled.mean()),),
        std=(float(scaled.std()),),
        padding=0,  # they are already placed at random
        flip=False,  # a mirrored 2 is not a 2
        origin="scikit-learn's digits, placed on a 16×16 canvas",
    )
