"""The plan in plain fixed point, in one process, without cryptography: what everything else is tested against."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reluctant.private import fixed, local
from reluctant.private.builder import Weights
from reluctant.private.fixed import Ring
from reluctant.private.plan import LOCAL, Plan, Step

SMALLEST = -(1 << 62)


@dataclass(frozen=True)
class Encoded:
    """Weights in fixed point: weights at the weights' scale, biases at the scale of a product."""

    weight: dict[int, Ring]
    bias: dict[int, Ring]

    @classmethod
    def of(cls, plan: Plan, weights: Weights) -> Encoded:
        """Encode weights for a plan."""
        scales = plan.scales
        return cls(
            {number: fixed.encode(values, scales.weight_bits) for number, values in weights.weight.items()},
            {
                number: fixed.encode(values, scales.weight_bits + scales.value_bits)
                for number, values in weights.bias.items()
            },
        )


def infer(plan: Plan, weights: Weights, image: NDArray[Any]) -> NDArray[np.float64]:
    """Return the logits of one image of 0…1."""
    bits = plan.scales.value_bits
    *_, (_, _, logits) = values(plan, Encoded.of(plan, weights), fixed.encode(plan.normalised(image), bits))
    return fixed.decode(logits, bits)


def values(plan: Plan, weights: Encoded, x: Ring) -> Iterator[tuple[int, Step, Ring]]:
    """Compute a plan, and yield the result of every step."""
    made: list[Ring] = [x]
    bits = plan.scales.weight_bits
    for number, step in enumerate(plan.steps):
        inputs = [made[value] for value in step.inputs]
        if step.kind in LOCAL:
            result = local.compute(step, inputs, bits, fixed.shifted)
        elif step.kind == "relu":
            result = inputs[0].copy().reshape(-1)
            result[plan.kept[number]] = np.maximum(result[plan.kept[number]], 0)
            result = result.reshape(step.shape)
        elif step.kind == "max_pool":
            result = local.windows(step, inputs[0], SMALLEST).max(axis=(-2, -1))
        else:
            total = fixed.affine(step, weights.weight[number], inputs[0])
            result = fixed.shifted(fixed.with_bias(step, weights.bias[number], total), bits)
        made.append(result)
        yield number, step, result
