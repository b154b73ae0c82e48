"""`reluctant data`: whether a data set is there and whole."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reluctant import data as sets
from reluctant._example import spell
from reluctant.cli._show import Json, console, messages, print_json, table

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="The folder of the data set, or one that holds it; else RELUCTANT_DATA."),
]

Validation = Annotated[
    float | None,
    typer.Option(help="The share of the training images to hold out for validation, such as 0.02; by default a tenth."),
]


def data(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(sets.names())}.")],
    data_dir: DataDir = None,
    validation: Validation = None,
    as_json: Json = False,
) -> None:
    """Read a data set, and say what is in it and how it is split.

    For instance: reluctant data cifar10 --data-dir ~/data
    """
    with messages.status(f"reading {name}"):
        splits = sets.load(name, data_dir, validation=validation)
    parts = {"train": splits.train, "val": splits.val, "test": splits.test}
    if as_json:
        print_json(
            {
                "name": splits.name,
                "origin": splits.origin,
                "shape": list(splits.train.shape),
                "classes": list(splits.classes),
                "images": {part: len(images) for part, images in parts.items()},
            }
        )
        return
    rows = table("part", "#images", "shape", title=splits.name)
    for part, images in parts.items():
        rows.add_row(part, f"{len(images):,}", spell(images.shape))
    console.print(rows)
    shown = ", ".join(splits.classes[:10]) + (", …" if len(splits.classes) > 10 else "")
    console.print(f"{len(splits.classes)} classes: {shown}")
    console.print(splits.origin, soft_wrap=True)
