"""The network a person names on the command line: one of ours, or anybody's."""

from __future__ import annotations

import json
from typing import Annotated, Any

import torch
import typer
from torch import Tensor, nn

from reluctant import models
from reluctant.errors import OptionError

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
