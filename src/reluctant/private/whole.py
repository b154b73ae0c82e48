"""The entire plan as one program inside SPU, for comparison: everything online, nothing prepared.

With `naive`, masks are multiplied in instead of gathered, as one would write it first: relu(x)·m + x·(1 − m) everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reluctant.private import fixed
from reluctant.private.clear import Encoded
from reluctant.private.engine import CLIENT, SERVER, WHOLE_BITS, Operand
from reluctant.private.fixed import Ring
from reluctant.private.plan import AFFINE, Plan, Step


def operands(plan: Plan) -> list[Operand]:
    """Return what the program reads: the client's input, then every weight and bias of the server."""
    found = [Operand(CLIENT, plan.input_shape, np.float32)]
    for _, step in plan.numbered(*AFFINE):
        weight = tuple(step.options["weight"])
        found += [Operand(SERVER, weight, np.float32), Operand(SERVER, (weight[0],), np.float32)]
    return found


def of_server(plan: Plan, weights: Encoded) -> list[NDArray[np.float64]]:
    """Return the server's operands."""
    values = []
    for number, _ in plan.numbered(*AFFINE):
        bits = plan.scales.weight_bits
        values.append(fixed.decode(weights.weight[number], bits))
        values.append(fixed.decode(weights.bias[number], bits + plan.scales.value_bits))
    return values


def decoded(plan: Plan, mine: Ring, theirs: Ring) -> NDArray[np.float64]:
    """Put the two shares of the result together."""
    return fixed.decode((mine + theirs).reshape(plan.steps[-1].shape), WHOLE_BITS)


def program(plan: Plan, *, naive: bool = False) -> Callable[..., Any]:
    """Return the plan as a function of jax."""

    def run(x: Any, *weights: Any) -> Any:
        made, left = [x], list(weights)
        for number, step in enumerate(plan.steps):
            inputs = [made[value] for value in step.inputs]
            if step.kind in AFFINE:
                made.append(_affine(step, inputs[0], left.pop(0), left.pop(0)))
            elif step.kind == "relu":
                made.append(_relu(step, inputs[0], plan.kept[number], naive))
            else:
                made.append(_other(step, inputs))
        return made[-1]

    return run


def _affine(step: Step, x: Any, weight: Any, bias: Any) -> Any:
    import jax.numpy as jnp
    from jax import lax

    if step.kind == "linear":
        return jnp.matmul(x, weight.T) + bias
    options = step.options
    groups = options["groups"]
    if groups == weight.shape[0] and weight.shape[1:] == (1, 1, 1) and tuple(options["stride"]) == (1, 1):
        return x * weight[:, :, 0] + bias[:, None, None]
    padded = jnp.pad(x, ((0, 0), *map(tuple, options["padding"])))
    parts = [
        lax.conv_general_dilated(
            part[None], kernel, tuple(options["stride"]), "VALID", rhs_dilation=tuple(options["dilation"]),
            dimension_numbers=("NCHW", "OIHW", "NCHW"),
        )[0]
        for kernel, part in zip(jnp.split(weight, groups, 0), jnp.split(padded, groups, 0), strict=True)
    ]  # fmt: skip
    return (jnp.concatenate(parts, 0) if groups > 1 else parts[0]) + bias[:, None, None]


def _relu(step: Step, x: Any, kept: NDArray[np.int64], naive: bool) -> Any:
    import jax.numpy as jnp

    flat = x.reshape(-1)
    if naive:
        mask = np.zeros(step.size, np.float32)
        mask[kept] = 1
        return (jnp.maximum(flat, 0) * mask + flat * (1 - mask)).reshape(step.shape)
    if len(kept) == step.size:
        return jnp.maximum(x, 0)
    compared = jnp.maximum(jnp.take(flat, kept, mode="clip"), 0)  # public indices: gathering sends nothing
    order = np.arange(step.size)
    order[kept] = step.size + np.arange(len(kept))
    return jnp.take(jnp.concatenate([flat, compared]), order, mode="clip").reshape(step.shape)


def _other(step: Step, inputs: list[Any]) -> Any:
    import jax.numpy as jnp
    from jax import lax

    first, options = inputs[0], step.options
    match step.kind:
        case "add":
            return inputs[0] + inputs[1]
        case "reshape":
            return first.reshape(step.shape)
        case "concat":
            return jnp.concatenate(inputs, options["axis"])
        case "slice":
            ends = [s + (n - 1) * b + 1 for s, n, b in zip(options["start"], step.shape, options["step"], strict=True)]
            return lax.slice(first, options["start"], ends, options["step"])
        case "pad":
            before = options["before"]
            return jnp.pad(first, [(b, m - b - n) for b, m, n in zip(before, step.shape, first.shape, strict=True)])
    down, right = options["stride"]
    high, wide = options["kernel"]
    fill = 0.0 if step.kind == "pool" else -float(1 << 20)
    padded = jnp.pad(first, ((0, 0), *map(tuple, options["padding"])), constant_values=fill)
    rows, columns = step.shape[1:]
    parts = [
        padded[:, i : i + (rows - 1) * down + 1 : down, j : j + (columns - 1) * right + 1 : right]
        for i in range(high)
        for j in range(wide)
    ]
    total = parts[0]
    for part in parts[1:]:
        total = total + part if step.kind == "pool" else jnp.maximum(total, part)
    return total / options["divisor"] if step.kind == "pool" else total
