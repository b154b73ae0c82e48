"""Figures that others have printed: facts with their sources, nothing of which was measured here.

accuracy.csv   accuracy at a ReLU count
latency.csv    accuracy and online latency at a ReLU count
units.csv      what each method removes
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from importlib import resources

from reluctant.errors import unknown


@dataclass(frozen=True)
class Published:
    """One point of somebody's table or figure."""

    dataset: str
    method: str
    backbone: str
    count: int
    accuracy: float
    source: str
    latency: float | None = None
    """Online, in seconds."""
    kind: str = ""
    """The unit that is removed."""
    note: str = ""


@dataclass(frozen=True)
class Removes:
    """What a method removes, and how it chooses."""

    method: str
    how: str
    reduces_relus: bool
    units: str
    source: str


def load(*, dataset: str | None = None, method: str | None = None, table: str = "accuracy") -> list[Published]:
    """Return the published points, in the order in which they are printed.

    Args:
        dataset: only of this data set.
        method: only of this method.
        table: `accuracy`, or `latency` for the points that have a latency.

    Raises:
        OptionError: nothing is published of that data set or method; the nearest is suggested.

    Example:
        >>> [point.accuracy for point in load(dataset="cifar100", method="LFPC")]
        [70.83]
    """
    if table not in ("accuracy", "latency"):
        raise unknown("table", table, ("accuracy", "latency"))
    points = [
        Published(
            dataset=row["dataset"],
            method=row["method"],
            backbone=row["backbone"],
            count=round(1000 * float(row["relus_k"])),
            accuracy=float(row["accuracy"]),
            source=row["source"],
            latency=float(row["online_latency_s"]) if "online_latency_s" in row else None,
            kind=row.get("kind", ""),
            note=row.get("note") or "",
        )
        for row in _rows(f"{table}.csv")
    ]
    for name, wanted in (("dataset", dataset), ("method", method)):
        known = list(dict.fromkeys(getattr(point, name) for point in points))
        if wanted is not None and wanted not in known:
            raise unknown(f"published {name}", wanted, known)
        points = [point for point in points if wanted is None or getattr(point, name) == wanted]
    return points


def units() -> list[Removes]:
    """Return which method removes which units."""
    return [
        Removes(row["method"], row["how"], row["reduces_relus"] == "yes", row["units"], row["source"])
        for row in _rows("units.csv")
    ]


def _rows(name: str) -> list[dict[str, str]]:
    text = resources.files("reluctant.published").joinpath(name).read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))
