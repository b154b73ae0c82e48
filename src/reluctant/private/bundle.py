"""What the server serves: a plan and its weights in fixed point, made from a run folder."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as write_arrays

from reluctant import data
from reluctant._load import load
from reluctant.errors import DataError, RunError
from reluctant.private.builder import Weights
from reluctant.private.calibrate import MARGIN, NOISE_MARGIN, calibrate
from reluctant.private.clear import Encoded
from reluctant.private.lower import lower
from reluctant.private.plan import Plan
from reluctant.runs import Run

log = logging.getLogger(__name__)

CALIBRATION = 16
"""How many images are looked at for the fixed point."""


@dataclass(frozen=True)
class Bundle:
    """A plan, public, and weights, the server's own."""

    plan: Plan
    weights: Encoded
    floats: Weights | None = None
    """The weights as they were, where the bundle was made here."""

    def save(self) -> bytes:
        """Return it as bytes, for a process of the server's own."""
        arrays = {f"weight.{number}": values for number, values in self.weights.weight.items()}
        arrays |= {f"bias.{number}": values for number, values in self.weights.bias.items()}
        arrays["plan"] = np.frombuffer(self.plan.save(), np.uint8)
        return write_arrays(arrays)

    @classmethod
    def load(cls, data: bytes) -> Bundle:
        """Read one that was saved."""
        arrays = read_arrays(data)
        plan = Plan.load(arrays.pop("plan").tobytes())
        parts: dict[str, dict[int, Any]] = {"weight": {}, "bias": {}}
        for name, values in arrays.items():
            kind, _, number = name.partition(".")
            parts[kind][int(number)] = values
        return cls(plan, Encoded(parts["weight"], parts["bias"]))


def from_run(run: Run) -> Bundle:
    """Make a bundle from a finished run; its folder is all that is needed.

    Raises:
        RunError, PlanError: it cannot be read, or its network cannot become a plan.
    """
    model = load(run).model
    shape = run.spec.get("input_shape")
    if shape is None:
        raise RunError(f"the network of {run.folder} takes several inputs; private inference has one")
    described = run.spec.get("data", {})
    name = str(described.get("name", ""))
    seen = _images(described, tuple(shape))
    plan, weights = lower(model, tuple(shape), mean=seen.mean, std=seen.std, classes=seen.classes, data=name)
    plan = calibrate(plan, weights, seen.images, margin=seen.margin)
    return Bundle(plan, Encoded.of(plan, weights), weights)


@dataclass(frozen=True)
class _Seen:
    """Images to calibrate with, how they are normalised, and what their classes are called."""

    images: list[NDArray[Any]]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...]
    margin: float = MARGIN


def _images(described: dict[str, Any], shape: tuple[int, ...]) -> _Seen:
    """Return images of the run's validation data; noise, and a wide margin, where the data are not here."""
    mean, std = (tuple(described.get(key) or ()) for key in ("mean", "std"))
    try:
        splits = data.load(str(described["name"]), described.get("dir"), validation=described.get("validation"))
    except (DataError, KeyError) as error:
        log.warning("the run's images are not here, so noise is used to choose the fixed point (%s)", error)
        noise = np.random.default_rng(0).random((CALIBRATION, *shape))
        return _Seen(list(noise), mean, std, tuple(map(str, described.get("classes", ()))), NOISE_MARGIN)
    some = splits.val.pixels[:CALIBRATION].numpy() / 255
    return _Seen(list(some), mean or splits.mean, std or splits.std, splits.classes)
