"""Fixed point in the ring of integers modulo 2⁶⁴, where shares live.

A number x with f bits after the point is round(x·2ᶠ). Arithmetic wraps around; numpy's int64 does that by itself.
"""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional as F

from reluctant.private.plan import Step

Ring = NDArray[np.int64]

_LIMBS, _LIMB_BITS = 4, 16


def encode(values: NDArray[np.float64], bits: int) -> Ring:
    """Return numbers in fixed point."""
    return np.asarray(np.round(values * float(1 << bits)), np.float64).astype(np.int64)


def decode(values: Ring, bits: int) -> NDArray[np.float64]:
    """Return what fixed point stands for."""
    return values.astype(np.float64) / float(1 << bits)


def uniform(shape: tuple[int, ...]) -> Ring:
    """Draw uniform elements of the ring from the operating system's cryptographic generator."""
    count = int(np.prod(shape, dtype=np.int64))
    return np.frombuffer(secrets.token_bytes(8 * count), np.int64).reshape(shape).copy()


def shifted(values: Ring, bits: int) -> Ring:
    """Divide by 2ᵇ, rounding down: what the server does to its share, and clear to the number itself."""
    return values >> bits


def shifted_by_client(values: Ring, bits: int) -> Ring:
    """Divide by 2ᵇ, rounding up, so that the errors of the two shares cancel on average."""
    rest = values & np.int64((1 << bits) - 1)
    rounded: Ring = (values >> bits) + (rest != 0)
    return rounded


def affine(step: Step, weight: Ring, values: Ring) -> Ring:
    """Compute W·x modulo 2⁶⁴ for weights of few bits and any x.

    There is no BLAS for 64-bit integers. x is cut into four limbs of 16 bits, which go through a float64 product as a batch
    of four: exact while |w|·2¹⁶·K stays below 2⁵³, for K summands.
    """
    _check_exact(weight)
    limbs = np.stack([(values.view(np.uint64) >> np.uint64(_LIMB_BITS * n)) & np.uint64(0xFFFF) for n in range(_LIMBS)])
    parts = product(step, torch.from_numpy(weight.astype(np.float64)), torch.from_numpy(limbs.astype(np.float64))).numpy()
    total = np.zeros(parts.shape[1:], np.uint64)
    for number, part in enumerate(parts):
        total += part.astype(np.int64).view(np.uint64) << np.uint64(_LIMB_BITS * number)
    return total.view(np.int64)


def product(step: Step, weight: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Compute W·x for a batch of x, in whatever precision they have."""
    if step.kind == "linear":
        return F.linear(batch, weight)
    options: dict[str, Any] = step.options
    (top, bottom), (left, right) = options["padding"]
    padded = F.pad(batch, (left, right, top, bottom))
    return F.conv2d(padded, weight, stride=options["stride"], dilation=options["dilation"], groups=options["groups"])


def _check_exact(weight: Ring) -> None:
    summands = int(np.prod(weight.shape[1:], dtype=np.int64))
    largest = int(np.abs(weight).max(initial=0))
    if largest * (1 << _LIMB_BITS) * summands >= 1 << 53:
        raise OverflowError(f"weights up to {largest} with {summands} summands are too large for exact products")


def with_bias(step: Step, bias: Ring, values: Ring) -> Ring:
    """Add a bias to the result of an affine step."""
    return values + (bias if step.kind == "linear" else bias[:, None, None])
