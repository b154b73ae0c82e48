"""Batches of anybody's loader: tuples or dicts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from reluctant.errors import DataError

INPUTS = ("image", "images", "img", "pixel_values", "input", "inputs", "x", "data")
TARGETS = ("label", "labels", "target", "targets", "fine_label", "y")


def unpack(batch: Any) -> tuple[Any, Any]:
    """Return the inputs and the targets of a batch: a pair, or a dict with the usual names.

    Raises:
        DataError: it is neither.

    Example:
        >>> unpack({"img": 1, "label": 2}), unpack([1, 2])
        ((1, 2), (1, 2))
    """
    if isinstance(batch, Mapping):
        return _pick(batch, INPUTS, "inputs"), _pick(batch, TARGETS, "targets")
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    length = f" of {len(batch)}" if isinstance(batch, tuple | list) else ""
    raise DataError(f"a batch is a {type(batch).__name__}{length}; yield (inputs, targets) or a dict of both")


def first_batch(batches: Iterable[Any], what: str) -> tuple[Any, Any]:
    """Return the inputs and the targets of the first batch of a loader.

    Raises:
        DataError: there is none.

    Example:
        >>> first_batch([(1, 2), (3, 4)], "training")
        (1, 2)
    """
    try:
        iterator = iter(batches)
    except TypeError as error:
        raise DataError(f"the {what} data are a {type(batches).__name__}; pass batches, such as a DataLoader") from error
    batch = next(iterator, None)
    if batch is None:
        raise DataError(f"the {what} loader yields no batch; pass one that does")
    return unpack(batch)


def _pick(batch: Mapping[str, Any], names: tuple[str, ...], what: str) -> Any:
    for name in names:
        if name in batch:
            return batch[name]
    raise DataError(f"a batch has the keys {', '.join(map(str, batch))}, none of them its {what}: {', '.join(names)}")
