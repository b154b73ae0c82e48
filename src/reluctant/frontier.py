"""The frontier of a set of points: those for which no other is at least as accurate with at most as many ReLUs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from reluctant.errors import OptionError, unknown


class Point(Protocol):
    """Anything that has a count and an accuracy: a run's result, a published figure."""

    @property
    def count(self) -> int:
        """How many ReLUs it evaluates."""

    @property
    def accuracy(self) -> float:
        """In percent."""


@dataclass(frozen=True)
class Measured:
    """A point of one's own."""

    count: int
    accuracy: float
    name: str = ""
    latency: float | None = None


P = TypeVar("P", bound=Point)


def frontier(points: Iterable[P]) -> list[P]:
    """Return the non-dominated points, from the fewest ReLUs to the most.

    Example:
        >>> [point.count for point in frontier([Measured(10, 60.0), Measured(20, 55.0), Measured(30, 70.0)])]
        [10, 30]
    """
    found: list[P] = []
    for point in sorted(points, key=lambda point: (point.count, -point.accuracy)):
        if not found or point.accuracy > found[-1].accuracy:
            found.append(point)
    return found


def per_thousand(point: Point) -> float:
    """Return the accuracy for every thousand ReLUs, infinite for none.

    >>> per_thousand(Measured(12_900, 66.53))
    5.157364341085271
    """
    return point.accuracy / (point.count / 1000) if point.count else math.inf


def area(points: Iterable[Point], low: int, high: int) -> float:
    """Return the mean height of the frontier between two counts on a logarithmic axis, in percent.

    The height at a count is the best accuracy that is had with at most that many ReLUs; 0 where there is none.

    >>> round(area([Measured(10, 50.0), Measured(100, 70.0)], 10, 1000), 6)
    60.0
    """
    if not 0 < low < high:
        raise OptionError(f"the range {low} … {high} cannot be drawn on a logarithmic axis; pass 0 < low < high")
    best = frontier(points)
    edges = [low, *(point.count for point in best if low < point.count < high), high]
    heights = [max((point.accuracy for point in best if point.count <= edge), default=0.0) for edge in edges[:-1]]
    widths = [math.log(right / left) for left, right in itertools.pairwise(edges)]
    return sum(height * width for height, width in zip(heights, widths, strict=True)) / math.log(high / low)


@dataclass(frozen=True)
class Comparison:
    """One point of each side, and what lies between them."""

    a: Any
    b: Any
    points: float
    """How much more accurate `a` is, in percentage points."""
    times: float | None
    """How many times as much `b` costs: in ReLUs, or in latency where that was asked for; None where `a` costs nothing."""


def compare(
    a: Sequence[Point],
    b: Sequence[Point],
    *,
    at_count: int | None = None,
    at_accuracy: float | None = None,
    tolerance: float = 0.0,
    cost: Literal["count", "latency"] = "count",
) -> Comparison:
    """Compare two sets of points at one count, or at one accuracy.

    Args:
        a: the points of one side.
        b: and of the other.
        at_count: compare the most accurate points with at most that many ReLUs.
        at_accuracy: compare the cheapest points with at least that accuracy.
        tolerance: how far below it, in points, still counts as that accuracy.
        cost: what `cheapest` and `times` mean.

    Raises:
        OptionError: not exactly one of the two was given, or a side has no point there.
    """
    if (at_count is None) == (at_accuracy is None):
        raise OptionError("pass either at_count or at_accuracy")
    if cost not in ("count", "latency"):
        raise unknown("cost", cost, ("count", "latency"))
    chosen = [_at(points, side, at_count, at_accuracy, tolerance, cost) for points, side in ((a, "first"), (b, "second"))]
    mine, theirs = (_cost(point, cost) for point in chosen)
    times = theirs / mine if mine else None
    return Comparison(chosen[0], chosen[1], chosen[0].accuracy - chosen[1].accuracy, times)


def _at(
    points: Sequence[Point], side: str, at_count: int | None, at_accuracy: float | None, tolerance: float, cost: str
) -> Point:
    if at_count is not None:
        within = [point for point in points if point.count <= at_count]
        if within:
            return max(within, key=lambda point: (point.accuracy, -point.count))
        raise OptionError(f"the {side} set has no point with at most {at_count} ReLUs")
    assert at_accuracy is not None
    good = [point for point in points if point.accuracy >= at_accuracy - tolerance]
    if good:
        return min(good, key=lambda point: _cost(point, cost))
    raise OptionError(f"the {side} set has no point with at least {at_accuracy} %")


def _cost(point: Point, cost: str) -> float:
    value = getattr(point, cost, None)
    if value is None:
        raise OptionError(f"a point with {point.count} ReLUs has no {cost}; compare those that have one")
    return float(value)
