"""How much a linearized network can memorise, and how a budget is best split over its layers.

The paper bounds the memorisation capacity of two hidden layers of widths d₁ and d₂ with activations of p linear pieces by
counting the pieces of every neuron of the second layer by itself. Two bounds stand here side by side:

    paper     k₁k₂·p(p−1) + k₂(p−1) + k₁(d₂−k₂)(p−1) + 2      k kept units; d₁ = k₁, d₂ = k₂ is the full network
    shared    ∏ₗ (1 + (p−1)kₗ)                                pieces along a line, for any number of layers

Why the second holds. Restrict the network to a line x = t·u. All neurons of the first layer, kept or linear, are
functions of t that break at the same (p−1)k₁ points at most, those of the kept neurons: 1 + (p−1)k₁ pieces. On each
piece every neuron of the next layer is the activation of a linear function of t, so a kept one breaks at most p−1 times
there and a linear one not at all; all of its neurons share these (p−1)k₂ new points. So every layer multiplies the
number of pieces by 1 + (p−1)k at most, and a linear combination at the end adds none. A function with P pieces cannot
take alternating values at more than P + 1 points of the line, so the capacity is at most P + 1. `attaining` constructs
weights that reach the product, so along lines it is exact.

What follows. Linearizing and pruning to the same kept units have the same bound: the additional α₁(1−α₂)d₁d₂ of the paper
belongs to its way of counting. The best split is the same number of ReLUs in every layer, up to the layers' widths, and
not more in the first.

References: Yun, Sra and Jadbabaie, "Small ReLU networks are powerful memorizers", 2019; the SNL paper's Corollaries 1
and 2 and Theorem 2.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from reluctant.errors import BudgetError, OptionError


def capacity(widths: Sequence[int], kept: Sequence[float], pieces: int = 2) -> dict[str, float | None]:
    """Return both bounds for kept units in each layer; the paper's is for two layers only, else None.

    Example:
        >>> capacity([4, 3], [4, 3])
        {'paper': 29, 'shared': 20}
    """
    _check(widths, pieces)
    if len(kept) != len(widths) or not all(0 <= k <= d for k, d in zip(kept, widths, strict=True)):
        raise OptionError(f"the kept units {list(kept)} do not fit layers of {list(widths)}; pass 0 … width for each")
    shared = math.prod(1 + (pieces - 1) * k for k in kept)
    return {"paper": linearized(widths, kept, pieces) if len(widths) == 2 else None, "shared": shared}


def full(widths: Sequence[int], pieces: int = 2) -> float:
    """Return the paper's bound for the network with all its activations: p(p−1)d₁d₂ + (p−1)d₂ + 2.

    >>> full([50_000, 5_000])
    500005002
    """
    return linearized(widths, widths, pieces)


def linearized(widths: Sequence[int], kept: Sequence[float], pieces: int = 2) -> float:
    """Return the paper's bound where all but the kept units are linear (Corollary 1)."""
    return pruned(kept, pieces) + gap(widths, kept, pieces)


def pruned(kept: Sequence[float], pieces: int = 2) -> float:
    """Return the paper's bound where all but the kept units are gone (Corollary 2)."""
    first, second = kept
    return first * second * pieces * (pieces - 1) + second * (pieces - 1) + 2


def gap(widths: Sequence[int], kept: Sequence[float], pieces: int = 2) -> float:
    """Return how much the paper's bound favours linearizing over pruning: α₁(1−α₂)d₁d₂ for ReLUs."""
    first, second = kept
    return first * (widths[1] - second) * (pieces - 1)


@dataclass(frozen=True)
class Split:
    """A budget split over layers."""

    alpha: tuple[float, ...]
    """The best fractions, if units could be divided."""
    kept: tuple[int, ...]
    """The best whole numbers of kept units."""
    bound: int
    """The bound at those."""
    interior: bool
    """Whether no layer meets its limit, so that the closed form holds."""


def best_split_paper(widths: Sequence[int], budget: int, pieces: int = 2) -> Split:
    """Split a budget over two layers so that the paper's bound is largest (Theorem 2, and its limits).

    With k₂ = B − k₁ the bound is concave in k₁, with its top at k₁ = (B + (d₂−1)/(p−1))/2; for ReLUs α₁ = (B + d₂ −
    1)/2d₁ and α₂ = (B − d₂ + 1)/2d₂. Where that leaves the box 0 ≤ k ≤ d, the layer that meets its limit stays there
    and the other takes the rest. In whole numbers it is the better of the two neighbours of the top; of equal ones that
    with fewer units in the first layer.

    Example:
        >>> best_split_paper([50_000, 5_000], 10_000).alpha
        (0.14999, 0.5001)
    """
    _check(widths, pieces)
    if len(widths) != 2:
        raise OptionError(f"the paper's bound is for two hidden layers, got {len(widths)}")
    first, second = widths
    relus = _budget(widths, budget)
    top = Fraction(relus, 2) + Fraction(second - 1, 2 * (pieces - 1))
    low, high = max(0, relus - second), min(first, relus)
    best = min(max(top, Fraction(low)), Fraction(high))
    candidates = sorted({math.floor(best), math.ceil(best)})
    chosen = max(candidates, key=lambda k: (linearized(widths, (k, relus - k), pieces), -k))
    alpha = (float(best / first), float((relus - best) / second))
    bound = int(linearized(widths, (chosen, relus - chosen), pieces))
    return Split(alpha, (chosen, relus - chosen), bound, low <= top <= high)


def best_split_shared(widths: Sequence[int], budget: int, pieces: int = 2) -> Split:
    """Split a budget over any number of layers so that ∏(1 + (p−1)k) is largest: equal shares, up to the layers' widths.

    Moving a unit from a larger k to one that is smaller by two or more makes the product larger, so the best whole
    numbers differ by one at most among the layers that are not full; the units that are left over go to the first of
    those.

    Example:
        >>> best_split_shared([50_000, 5_000], 10_000).kept
        (5000, 5000)
    """
    _check(widths, pieces)
    relus = _budget(widths, budget)
    level = _water_level(widths, relus)
    kept = [min(width, math.floor(level)) for width in widths]
    for layer, width in enumerate(widths):
        if sum(kept) < relus and kept[layer] < width and kept[layer] < level:
            kept[layer] += 1
    alpha = tuple(float(min(Fraction(width), level) / width) for width in widths)
    bound = math.prod(1 + (pieces - 1) * k for k in kept)
    return Split(alpha, tuple(kept), bound, all(level <= width for width in widths))


def _water_level(widths: Sequence[int], relus: int) -> Fraction:
    """Return the level at which the layers, filled alike, hold the budget."""
    left, layers = Fraction(relus), sorted(widths)
    for position, width in enumerate(layers):
        share = left / (len(layers) - position)
        if share <= width:
            return share
        left -= width
    return Fraction(max(widths))


Matrix = Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Layer:
    """One hidden layer in exact numbers: W, b, and which units are kept; the others are linear."""

    weight: Matrix
    bias: Sequence[Any]
    kept: Sequence[bool]


def count_pieces(layers: Sequence[Layer], output: Sequence[Any], direction: Sequence[Any]) -> int:
    """Count the linear pieces of a ReLU network along the line x = t·u, exactly.

    Breakpoints are propagated layer by layer: on each piece every neuron is a linear function a·t + c, and a kept
    neuron that crosses zero inside a piece splits it. In the end neighbours on which the output is the same linear
    function are one piece.

    Args:
        layers: the hidden layers, from the input on.
        output: the weights of the output.
        direction: u.
    """
    inputs = [(Fraction(value), Fraction(0)) for value in direction]
    pieces: list[tuple[Fraction | None, list[tuple[Fraction, Fraction]]]] = [(None, inputs)]
    """The end of each piece (None: never) and the neurons' linear functions on it."""
    for layer in layers:
        made: list[tuple[Fraction | None, list[tuple[Fraction, Fraction]]]] = []
        start: Fraction | None = None
        for end, values in pieces:
            before = [_combined(row, values, shift) for row, shift in zip(layer.weight, layer.bias, strict=True)]
            for stop in [*_crossings(before, layer.kept, start, end), end]:
                inside = _point_between(start, stop)
                made.append((stop, [_activated(f, keep, inside) for f, keep in zip(before, layer.kept, strict=True)]))
                start = stop
        pieces = made
    results = [_combined(output, values, 0) for _, values in pieces]
    return 1 + sum(one != other for one, other in itertools.pairwise(results))


def attaining(widths: Sequence[int], kept: Sequence[int]) -> tuple[list[Layer], list[Fraction], list[Fraction]]:
    """Construct layers, output and direction whose pieces along the line are ∏(1 + k): the shared bound is attained.

    Each layer computes a zigzag of what comes in: a linear unit passes it on, and the kept units bend it back and forth
    between 0 and 1. So every piece of the layer before runs through all bends of this one. Each layer needs one linear
    unit, k < d.
    """
    if len(widths) != len(kept) or not all(0 <= k < d for k, d in zip(kept, widths, strict=True)):
        raise OptionError(f"the construction keeps fewer units than a layer has, got {list(kept)} of {list(widths)}")
    layers = []
    reading = [Fraction(1)]
    for width, k in zip(widths, kept, strict=True):
        bends = [Fraction(position, k + 1) for position in range(1, k + 1)]
        rows = [reading] * (k + 1) + [[Fraction(0)] * len(reading)] * (width - k - 1)
        bias = [-bend for bend in bends] + [Fraction(0)] * (width - k)
        layers.append(Layer(rows, bias, [True] * k + [False] * (width - k)))
        slope = Fraction(k + 1)
        zigzag = [(-1) ** (position + 1) * 2 * slope for position in range(k)]
        reading = [*zigzag, slope, *[Fraction(0)] * (width - k - 1)]
    return layers, reading, [Fraction(1)]


def _combined(row: Sequence[Any], values: list[tuple[Fraction, Fraction]], shift: Any) -> tuple[Fraction, Fraction]:
    slope = sum((Fraction(w) * a for w, (a, _) in zip(row, values, strict=True)), Fraction(0))
    return slope, sum((Fraction(w) * c for w, (_, c) in zip(row, values, strict=True)), Fraction(shift))


def _crossings(
    functions: list[tuple[Fraction, Fraction]], kept: Sequence[bool], start: Fraction | None, end: Fraction | None
) -> list[Fraction]:
    zeros = {-c / a for (a, c), keep in zip(functions, kept, strict=True) if keep and a}
    return sorted(t for t in zeros if (start is None or t > start) and (end is None or t < end))


def _point_between(start: Fraction | None, end: Fraction | None) -> Fraction:
    if start is None:
        return Fraction(0) if end is None else end - 1
    return start + 1 if end is None else (start + end) / 2


def _activated(function: tuple[Fraction, Fraction], keep: bool, at: Fraction) -> tuple[Fraction, Fraction]:
    slope, shift = function
    return function if not keep or slope * at + shift > 0 else (Fraction(0), Fraction(0))


def _check(widths: Sequence[int], pieces: int) -> None:
    if not widths or not all(isinstance(width, int) and width > 0 for width in widths):
        raise OptionError(f"the widths {list(widths)} are not whole numbers above 0")
    if not isinstance(pieces, int) or pieces < 2:
        raise OptionError(f"an activation of {pieces} pieces is linear or no activation; pass 2 or more")


def _budget(widths: Sequence[int], budget: int) -> int:
    if not isinstance(budget, int) or isinstance(budget, bool) or not 0 <= budget <= sum(widths):
        raise BudgetError(f"the budget {budget} is not between 0 and the network's {sum(widths)} units")
    return budget
