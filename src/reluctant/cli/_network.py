"""The network a person names on the command line: one of ours, or anybody's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from reluctant import models
from reluctant._load import architecture
from reluctant.errors import OptionError, RunError
from reluctant.runs import Run

MaybeRun = Annotated[Path | None, typer.Argument(metavar="[RUN]", help="A finished run; or name a network instead.")]
Arch = Annotated[str | None, typer.Option("--arch", help=f"One of ours: {', '.join(models.names())}.")]
Model = Annotated[
    str | None,
    typer.Option("--model", help="Anybody's: package.module:factory, a function or class that returns a network."),
]
ArchArg = Annotated[
    list[str] | None,
    typer.Option(
        "--arch-arg",
        help="key=value for the architecture or the factory, such as stem_relu=true. Repeatable.",
    ),
]
Input = Annotated[
    list[str] | None,
    typer.Option("--input", help="The shape of one input without the batch: 3x32x32. Repeat it for several inputs."),
]
Classes = Annotated[int, typer.Option("--num-classes", min=1, help="The size of the output of one of our architectures.")]


def describe(
    arch: str | None, model: str | None, arguments: list[str] | None, classes: int, shape: tuple[int, ...]
) -> dict[str, Any]:
    """Return what a run folder has to say for the network to be made again."""
    options = dict(map(_key_value, arguments or []))
    if arch is not None:
        return {"arch": arch, "num_classes": classes, "input_shape": list(shape), "options": options}
    return {"factory": model, "options": options}


def build(
    arch: str | None, model: str | None, arguments: list[str] | None, classes: int, shape: tuple[int, ...]
) -> nn.Module:
    """Make the network that the options name."""
    if (arch is None) == (model is None):
        raise OptionError("pass one of --arch and --model, for instance --arch resnet18 or --model my.module:make_net")
    options = dict(map(_key_value, arguments or []))
    if arch is not None:
        return models.create(arch, num_classes=classes, input_shape=shape, **options)
    assert model is not None
    return models.from_factory(model, options)


def named(
    run: Path | None,
    arch: str | None,
    model: str | None,
    inputs: list[str] | None,
    arguments: list[str] | None,
    classes: int,
) -> tuple[nn.Module, Tensor | tuple[Tensor, ...]]:
    """Return the network of a run, or the one that the options name, with any weights, and an example of its input."""
    if run is None:
        if arch is None and model is None:
            raise OptionError("pass a run, or one of --arch and --model, for instance --arch resnet18")
        if model is not None and not inputs:
            raise OptionError("--model needs the shape of its input; pass it without the batch, such as --input 3x224x224")
        shapes = [parse_shape(text) for text in inputs or ["3x32x32"]]
        return build(arch, model, arguments, classes, shapes[0]), example(shapes)
    if arch is not None or model is not None or inputs or arguments:
        raise OptionError("pass a run or a network, not both: a run knows its architecture and its input")
    opened = Run.open(run)
    shape = opened.spec.get("input_shape")
    if shape is None:
        raise RunError(f"the network of {run} takes several inputs, and its run folder does not say which")
    return architecture(opened)[0].eval(), example([tuple(shape)])


def example(shapes: list[tuple[int, ...]]) -> Tensor | tuple[Tensor, ...]:
    """Make one example of such inputs: numbers drawn at random, always the same."""
    generator = torch.Generator().manual_seed(0)
    tensors = tuple(torch.randn(1, *shape, generator=generator) for shape in shapes)
    return tensors[0] if len(tensors) == 1 else tensors


def parse_shape(text: str) -> tuple[int, ...]:
    """Read a shape as a person types it.

    >>> parse_shape("3x32x32")
    (3, 32, 32)
    """
    try:
        shape = tuple(int(size) for size in text.replace("×", "x").replace(",", "x").lower().split("x"))
    except ValueError:
        shape = (0,)
    if min(shape) < 1:
        raise OptionError(f"input '{text}' cannot be read; pass sizes without the batch, such as 3x32x32")
    return shape


def _key_value(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise OptionError(f"--arch-arg '{text}' cannot be read; pass key=value")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, {"True": True, "False": False, "None": None}.get(value, value)
