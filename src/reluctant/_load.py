"""Finished runs, read back."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reluctant import models
from reluctant._example import Example
from reluctant.errors import RunError
from reluctant.mask import Mask
from reluctant.recipes import Recipe
from reluctant.runs import Run


@dataclass(frozen=True)
class Loaded:
    """A finished run: its network, its mask if it has one, and its records."""

    model: nn.Module
    mask: Mask | None
    recipe: Recipe
    metrics: list[dict[str, Any]]
    result: dict[str, Any]
    spec: dict[str, Any]


def load(run: str | Path | Run, *, model: nn.Module | None = None, example: Example | None = None) -> Loaded:
    """Read a finished run.

    Args:
        run: its folder.
        model: a network of the architecture that was linearized, with any weights; only needed where the run was made from
            a network that Reluctant cannot make itself.
        example: an input of it; only needed where it takes several.

    Raises:
        RunError: there is no run, it is not finished, or it cannot be read.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    network, mask = architecture(run, model=model, example=example)
    run.load_tensors_(network)
    return Loaded(network.eval(), mask, run.recipe, run.metrics(), run.result, run.spec)


def architecture(
    run: Run, *, model: nn.Module | None = None, example: Example | None = None
) -> tuple[nn.Module, Mask | None]:
    """Return the network of a finished run with its mask in it but not its weights, which counts and costs do not need.

    Raises:
        RunError: the run is not finished, or cannot be read.
    """
    run.require_finished()
    kind = run.spec.get("kind")
    if kind == "search":
        raise RunError(
            f"{run.folder} is the search of a sweep and has no network of its own; pass one of the runs beside it"
        )
    network = model if model is not None else make(run.spec["model"], run.folder)
    path = run.folder / "mask.safetensors"
    if kind == "linearize" and not path.exists():
        raise RunError(f"{run.folder} has no mask.safetensors; was something removed from it?")
    if not path.exists():
        return network, None
    mask = Mask.load(path)
    shape = run.spec.get("input_shape")
    if example is None and shape is None:
        raise RunError(f"the network of {run.folder} takes several inputs; pass some as reluctant.load(run, example=…)")
    return mask.apply(network, example if example is not None else torch.zeros(1, *(shape or ()))), mask


def make(spec: dict[str, Any], where: Path) -> nn.Module:
    """Make the network that a run describes, with random weights."""
    if "arch" in spec:
        shape = tuple(spec["input_shape"])
        return models.create(spec["arch"], num_classes=spec["num_classes"], input_shape=shape, **spec["options"])
    if "factory" in spec:
        return models.from_factory(spec["factory"], spec["options"])
    raise RunError(
        f"the run in {where} is of a {spec.get('class', 'network')} that was passed in from Python; "
        "pass one as reluctant.load(run, model=…)"
    )
