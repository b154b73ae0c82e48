"""Choose the fixed point of a plan: as many bits as the truncation of shares allows.

Two parties that each shift their share of y to the right get the right result, except where the shares wrap around 2⁶⁴.
That happens to one element with probability |y|·2^(v+w)/2⁶⁴, for v bits of values and w of weights, and ruins an image. The
sum of these over all truncated elements of an image is the number of wraps to expect, and is kept within a bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from reluctant.errors import PlanError
from reluctant.private import fixed, local
from reluctant.private.builder import Weights
from reluctant.private.plan import Plan, Scales

MOST_WRAPS = 1e-6
"""Expected in an image."""
MOST_BITS, FEWEST_BITS = 16, 8
MARGIN = 4.0
"""Values may be so many times as large as those seen; NOISE_MARGIN if all that was seen is noise."""
NOISE_MARGIN = 64.0


def calibrate(
    plan: Plan,
    weights: Weights,
    images: Iterable[NDArray[Any]],
    *,
    most_wraps: float = MOST_WRAPS,
    margin: float = MARGIN,
) -> Plan:
    """Return the plan with as many bits as keep the expected wraps of an image within a bound.

    Args:
        plan: the plan.
        weights: its weights.
        images: some images of 0…1, of the kind that will be asked about.
        most_wraps: the bound.
        margin: how many times as large as those seen values may be.

    Raises:
        PlanError: there is no image, or not even eight bits keep within the bound.
    """
    sums = [_sum_of_truncated(plan, weights, plan.normalised(image)) for image in images]
    if not sums:
        raise PlanError("there is no image to calibrate the plan with; pass some")
    largest = margin * max(sums)
    for both in range(2 * MOST_BITS, 2 * FEWEST_BITS - 1, -1):
        wraps = largest * 2.0 ** (both - 64)
        if wraps <= most_wraps:
            return plan.with_scales(Scales(both - both // 2, both // 2, wraps))
    raise PlanError(
        f"the values of this network are so large that {FEWEST_BITS} bits would wrap {wraps:.1g} times in an image; "
        "normalise its inputs"
    )


def _sum_of_truncated(plan: Plan, weights: Weights, x: NDArray[np.float64]) -> float:
    """Sum |y| over all elements that will be truncated, computed in floating point."""
    made = [torch.from_numpy(x)]
    total = 0.0
    for number, step in enumerate(plan.steps):
        inputs = [made[value] for value in step.inputs]
        result = float_step(plan, weights, number, inputs)
        if step.kind in ("conv", "linear", "pool"):
            total += float(result.abs().sum())
        made.append(result)
    return total


def float_step(plan: Plan, weights: Weights, number: int, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Compute one step in floating point."""
    step, first = plan.steps[number], inputs[0]
    options = step.options
    match step.kind:
        case "conv" | "linear":
            weight, bias = torch.from_numpy(weights.weight[number]), torch.from_numpy(weights.bias[number])
            product = fixed.product(step, weight, first[None])[0]
            return product + (bias if step.kind == "linear" else bias[:, None, None])
        case "relu":
            flat = first.reshape(-1).clone()
            kept = torch.from_numpy(plan.kept[number])
            flat[kept] = flat[kept].relu()
            return flat.reshape(step.shape)
        case "add" | "reshape" | "concat" | "slice" | "pad":  # nothing is rounded in these, whatever the numbers are
            same: Any = local.compute(step, [each.numpy() for each in inputs], plan.scales.weight_bits, fixed.shifted)
            return torch.from_numpy(same)
    (top, bottom), (left, right) = options["padding"]
    fill = 0.0 if step.kind == "pool" else -float("inf")
    padded = F.pad(first, (left, right, top, bottom), value=fill)[None]
    if step.kind == "max_pool":
        return F.max_pool2d(padded, options["kernel"], options["stride"])[0][:, : step.shape[1], : step.shape[2]]
    return F.avg_pool2d(padded, options["kernel"], options["stride"], divisor_override=options["divisor"])[0]
