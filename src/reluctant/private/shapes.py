"""The shape that a step gives, from the shapes that go in: how a plan from somebody else is checked."""

from __future__ import annotations

import math

from reluctant.errors import PlanError
from reluctant.private.plan import Step

Shape = tuple[int, ...]


def expected_shape(step: Step, inputs: list[Shape]) -> Shape:
    """Return the shape of a step's result.

    Raises:
        PlanError: its inputs or options do not fit it.
    """
    first, options = inputs[0], step.options
    match step.kind:
        case "conv":
            weight = _ints(options["weight"], 4)
            groups = _positive(options["groups"])
            _need(len(first) == 3 and weight[1] * groups == first[0] and weight[0] % groups == 0, step)
            return (weight[0], *_windows(step, first[1:], weight[2:], _ints(options["dilation"], 2)))
        case "linear":
            weight = _ints(options["weight"], 2)
            _need(first[-1] == weight[1], step)
            return (*first[:-1], weight[0])
        case "add":
            _need(len(inputs) == 2 and inputs[0] == inputs[1], step)
            return first
        case "relu":
            return first
        case "reshape":
            _need(math.prod(first) == math.prod(step.shape), step)
            return step.shape
        case "concat":
            axis = options["axis"]
            _need(isinstance(axis, int) and 0 <= axis < len(first), step)
            others = [shape[:axis] + shape[axis + 1 :] for shape in inputs]
            _need(len(set(others)) == 1, step)
            return (*first[:axis], sum(shape[axis] for shape in inputs), *first[axis + 1 :])
        case "slice":
            start, by = _ints(options["start"], len(first), least=0), _ints(options["step"], len(first))
            _need(len(step.shape) == len(first), step)
            last = [s + (n - 1) * b for s, n, b in zip(start, step.shape, by, strict=True)]
            _need(all(index < size for index, size in zip(last, first, strict=True)), step)
            return step.shape
        case "pad":
            before = _ints(options["before"], len(first), least=0)
            _need(len(step.shape) == len(first), step)
            _need(all(b + n <= m for b, n, m in zip(before, first, step.shape, strict=True)), step)
            return step.shape
        case "pool" | "max_pool":
            _need(len(first) == 3, step)
            if step.kind == "pool":
                _positive(options["divisor"])
            return (first[0], *_windows(step, first[1:], _ints(options["kernel"], 2), (1, 1)))
    raise PlanError(f"a step of kind '{step.kind}' is unknown")


def _windows(step: Step, size: Shape, kernel: Shape, dilation: Shape) -> Shape:
    """How many windows of a kernel fit, with padding before and after."""
    stride = _ints(step.options["stride"], 2)
    padding = [_ints(pair, 2, least=0) for pair in step.options["padding"]]
    _need(len(padding) == 2, step)
    reach = [d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True)]
    room = [n + sum(p) - r for n, p, r in zip(size, padding, reach, strict=True)]
    _need(min(room) >= 0, step)
    return tuple(r // s + 1 for r, s in zip(room, stride, strict=True))


def _ints(values: object, length: int, *, least: int = 1) -> Shape:
    fits = isinstance(values, list | tuple) and len(values) == length
    if not fits or not all(isinstance(v, int) and least <= v < 1 << 31 for v in values):  # type: ignore[attr-defined]
        raise PlanError(f"{values!r:.60} is not a list of {length} whole numbers from {least} on")
    return tuple(values)  # type: ignore[arg-type]


def _positive(value: object) -> int:
    if not isinstance(value, int) or value < 1:
        raise PlanError(f"{value!r:.60} is not a whole number above 0")
    return value


def _need(true: bool, step: Step) -> None:
    if not true:
        raise PlanError(f"step '{step.name}' ({step.kind}) does not fit what goes into it")
