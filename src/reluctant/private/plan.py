"""The plan: a public program of a linearized network, without its weights.

A network becomes a list of steps on numbered values; value 0 is the input. Both parties have the plan: shapes, strides,
which ReLUs are kept, scales, the input's normalisation, the classes' names. Only the server has the weights.

    affine    conv, linear           one party's weights times the other's share: prepared offline
    local     add, reshape, concat,  each party works on its own share, without a message
              slice, pad, pool
    relu      the kept ones          compared by both parties together, online
    max_pool                         the same
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as write_arrays

from reluctant.errors import PlanError

VERSION = 1

AFFINE = ("conv", "linear")
LOCAL = ("add", "reshape", "concat", "slice", "pad", "pool")
COMPARED = ("relu", "max_pool")

MOST_ELEMENTS = 1 << 26
"""Of one value: a plan that asks for more is not believed."""


@dataclass(frozen=True)
class Step:
    """One step: what it computes, of which values, and the shape of the result without a batch.

    The options of each kind: conv: weight (its shape), stride, padding (before and after, for both dimensions), dilation,
    groups. linear: weight. concat: axis. slice: start, step. pad: before. pool: kernel, stride, padding, divisor.
    max_pool: kernel, stride, padding. relu: none, but its indices are in `Plan.kept`.
    """

    kind: str
    inputs: tuple[int, ...]
    shape: tuple[int, ...]
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """How many elements the result has."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Scales:
    """Fixed point: bits after the point, and what is expected to go wrong."""

    value_bits: int = 13
    """Of values."""
    weight_bits: int = 13
    """Of weights; a product is shifted back by so many."""
    expected_wraps: float = 0.0
    """How many elements of an image are expected to come out wrong because a shared truncation wrapped around."""


@dataclass(frozen=True)
class Plan:
    """A public program."""

    steps: tuple[Step, ...]
    input_shape: tuple[int, ...]
    kept: Mapping[int, NDArray[np.int64]]
    """The flat indices of the kept ReLUs, by the number of the step."""
    scales: Scales = Scales()
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    classes: tuple[str, ...] = ()
    data: str = ""
    """The name of the data set that it was made for, if it has one."""

    @property
    def relus(self) -> int:
        """How many ReLUs a query evaluates."""
        return sum(len(indices) for indices in self.kept.values())

    def shape(self, value: int) -> tuple[int, ...]:
        """Return the shape of a value; step n makes value n + 1."""
        return self.input_shape if value == 0 else self.steps[value - 1].shape

    def numbered(self, *kinds: str) -> Iterator[tuple[int, Step]]:
        """Yield the steps of some kinds with their numbers."""
        return ((number, step) for number, step in enumerate(self.steps) if not kinds or step.kind in kinds)

    def with_scales(self, scales: Scales) -> Plan:
        """Return the same plan in other fixed point."""
        return replace(self, scales=scales)

    def normalised(self, image: NDArray[Any]) -> NDArray[np.float64]:
        """Return an image of 0…1 as the network wants it."""
        if image.shape != self.input_shape:
            raise PlanError(f"the image is {_spelled(image.shape)} and the network takes {_spelled(self.input_shape)}")
        values = image.astype(np.float64)
        if not np.isfinite(values).all():
            raise PlanError("the image has values that are not numbers, or infinite")
        if not self.mean:
            return values
        around = (-1, *[1] * (len(self.input_shape) - 1))
        normal: NDArray[np.float64] = (values - np.reshape(self.mean, around)) / np.reshape(self.std, around)
        return normal

    @property
    def version(self) -> str:
        """A fingerprint: two parties with the same one compute the same."""
        return hashlib.sha256(self.save()).hexdigest()[:16]

    def save(self) -> bytes:
        """Return the plan as bytes: no pickle, no code, no weights."""
        content = {
            "version": VERSION,
            "steps": [asdict(step) for step in self.steps],
            "input_shape": self.input_shape,
            "scales": asdict(self.scales),
            "mean": self.mean,
            "std": self.std,
            "classes": self.classes,
            "data": self.data,
        }
        arrays = {str(number): indices.astype(np.int64) for number, indices in sorted(self.kept.items())}
        return write_arrays(arrays, metadata={"plan": json.dumps(content, sort_keys=True)})

    @classmethod
    def load(cls, data: bytes) -> Plan:
        """Read a plan from bytes that somebody else sent; everything in it is checked before it is believed.

        Raises:
            PlanError: it is damaged, of another version, or not a plan.
        """
        try:
            length = int.from_bytes(data[:8], "little")
            header = json.loads(data[8 : 8 + length])
            content = json.loads(header["__metadata__"]["plan"])
            arrays = read_arrays(data)
        except (SafetensorError, ValueError, KeyError, TypeError, UnicodeDecodeError) as error:
            raise PlanError(f"these bytes are not a plan: {error}") from error
        if content.get("version") != VERSION:
            raise PlanError(
                f"the plan is of version {content.get('version')}, this reluctant reads {VERSION}; upgrade one of them"
            )
        try:
            plan = cls(
                tuple(
                    Step(s["kind"], tuple(s["inputs"]), tuple(s["shape"]), s["name"], dict(s["options"]))
                    for s in content["steps"]
                ),
                tuple(content["input_shape"]),
                {int(number): indices for number, indices in arrays.items()},
                Scales(**content["scales"]),
                tuple(content["mean"]),
                tuple(content["std"]),
                tuple(map(str, content["classes"])),
                str(content["data"]),
            )
            plan.check()
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise PlanError(f"the plan is not whole: {error}") from error
        return plan

    def check(self) -> None:
        """Make sure that every step can be computed as it says.

        Raises:
            PlanError: something does not fit.
        """
        from reluctant.private.shapes import expected_shape

        if not self.steps:
            raise PlanError("the plan has no steps")
        _check_shape(self.input_shape, "the input")
        bits = (self.scales.value_bits, self.scales.weight_bits)
        if not all(isinstance(b, int) and 1 <= b <= 30 for b in bits):
            raise PlanError(f"the plan's scales {bits} are not between 1 and 30 bits")
        for number, step in enumerate(self.steps):
            where = f"step {number} ({step.kind} '{step.name}')"
            if step.kind not in (*AFFINE, *LOCAL, *COMPARED):
                raise PlanError(f"{where} is of an unknown kind")
            if not step.inputs or not all(isinstance(i, int) and 0 <= i <= number for i in step.inputs):
                raise PlanError(f"{where} reads values that are not there yet")
            _check_shape(step.shape, where)
            wanted = expected_shape(step, [self.shape(value) for value in step.inputs])
            if wanted != step.shape:
                raise PlanError(f"{where} gives {_spelled(wanted)} and says {_spelled(step.shape)}")
        relus = {number for number, _ in self.numbered("relu")}
        if relus != set(self.kept):
            raise PlanError("the plan does not say for every ReLU step what is kept")
        for number, indices in self.kept.items():
            size = self.steps[number].size
            ordered = (
                indices.ndim == 1 and indices.dtype == np.int64 and len(indices) and bool(np.all(np.diff(indices) > 0))
            )
            if not ordered or indices[0] < 0 or indices[-1] >= size:
                raise PlanError(f"the kept ReLUs of step {number} are not indices of its {size} elements, in order")
        if len(self.mean) != len(self.std) or (self.mean and len(self.mean) not in (1, self.input_shape[0])):
            raise PlanError("the plan's mean and standard deviation do not fit its input")
        if not all(math.isfinite(value) for value in (*self.mean, *self.std)) or 0 in self.std:
            raise PlanError("the plan's mean and standard deviation are not numbers to normalise with")


def _check_shape(shape: tuple[int, ...], where: str) -> None:
    if not shape or not all(isinstance(size, int) and size > 0 for size in shape) or math.prod(shape) > MOST_ELEMENTS:
        raise PlanError(f"{where} has the shape {shape!r:.60}, which is not believed")


def _spelled(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape))
