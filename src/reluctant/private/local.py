"""Steps that each party does to its own share, and clear to the number itself: linear, public, without a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from reluctant.private.fixed import Ring
from reluctant.private.plan import Step

Shift = Callable[[Ring, int], Ring]
"""How a share is divided by a power of two; the two parties round in opposite directions."""


def compute(step: Step, inputs: list[Ring], weight_bits: int, shift: Shift) -> Ring:
    """Compute a local step of a share."""
    first, options = inputs[0], step.options
    match step.kind:
        case "add":
            return inputs[0] + inputs[1]
        case "reshape":
            return first.reshape(step.shape)
        case "concat":
            return np.concatenate(inputs, axis=options["axis"])
        case "slice":
            index = (slice(s, s + n * b, b) for s, n, b in zip(options["start"], step.shape, options["step"], strict=True))
            return np.ascontiguousarray(first[tuple(index)])
        case "pad":
            made = np.zeros(step.shape, first.dtype)
            made[tuple(slice(b, b + n) for b, n in zip(options["before"], first.shape, strict=True))] = first
            return made
        case "pool":
            total = windows(step, first, 0).sum(axis=(-2, -1), dtype=np.int64)
            factor = round((1 << weight_bits) / options["divisor"])
            return shift(total * np.int64(factor), weight_bits)
    raise AssertionError(f"{step.kind} is not a local step")


def windows(step: Step, values: Ring, fill: int) -> Ring:
    """Return the windows of a pooling step in two more dimensions; what lies outside is `fill`."""
    options = step.options
    padded = np.pad(values, ((0, 0), *map(tuple, options["padding"])), constant_values=fill)
    slide: Any = np.lib.stride_tricks.sliding_window_view
    down, right = options["stride"]
    chosen: Ring = slide(padded, tuple(options["kernel"]), axis=(1, 2))[:, ::down, ::right]
    return chosen[:, : step.shape[1], : step.shape[2]]
