"""`reluctant import`: a network somebody else has trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import torch
import typer

from reluctant import data as sets
from reluctant import models, sites
from reluctant.cli import _jobs, _network
from reluctant.cli._show import Json, console, messages, print_json
from reluctant.cli.data import DataDir, Validation
from reluctant.errors import OptionError
from reluctant.recipes import Recipe
from reluctant.runs import Run
from reluctant.train import evaluate


def import_weights(
    weights: Annotated[Path, typer.Option(help="A .safetensors file, or a torch file with a state_dict.")],
    data: Annotated[str, typer.Option("--data", help=f"What it was trained on: one of {', '.join(sets.names())}.")],
    output: _jobs.Output,
    arch: _network.Arch = None,
    model: _network.Model = None,
    arch_arg: _network.ArchArg = None,
    data_dir: DataDir = None,
    validation: Validation = None,
    mean: Annotated[str | None, typer.Option(help="Per channel, if it was normalised otherwise: 0.485,0.456,0.406")] = None,
    std: Annotated[str | None, typer.Option(help="Likewise.")] = None,
    force: _jobs.Force = False,
    as_json: Json = False,
) -> None:
    """Make a run of a network that has been trained elsewhere.

    For instance: reluctant import --arch resnet20 --arch-arg shortcut=pad --arch-arg stem_relu=true --weights resnet20.th
    --data cifar10 --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225 -o runs/resnet20
    """
    described = {"mean": _numbers(mean, "--mean"), "std": _numbers(std, "--std")}
    spec_data = _jobs.describe_data(data, data_dir, validation) | {key: each for key, each in described.items() if each}
    splits = _jobs.read_splits(spec_data)
    shape = splits.train.shape
    network = _network.build(arch, model, arch_arg, len(splits.classes), shape)
    models.load_weights(network, weights)
    total = sites.count(network, torch.zeros(1, *shape)).total
    with messages.status("evaluating"):
        scores = {
            part: round(evaluate(network, splits.loader(part, batch_size=_jobs.EVALUATION_BATCH)), 3)
            for part in ("val", "test")
        }
    spec = {
        "kind": "import",
        "model": _network.describe(arch, model, arch_arg, len(splits.classes), shape),
        "data": spec_data,
        "input_shape": list(shape),
        "weights": weights.name,
    }
    run = Run.begin(output, spec, Recipe(), force=force)
    run.save_network(network, None)
    result = {"run": str(output), "total": total, "accuracy": scores}
    run.finish(result)
    if as_json:
        print_json(result)
        return
    console.print(f"{output}: {total:,} ReLUs, {scores['val']:.2f} % on validation, {scores['test']:.2f} % on test images")
    console.print("If it was trained on all training images, it has seen those for validation: compare on test images.")


def _numbers(text: str | None, option: str) -> list[float] | None:
    try:
        return None if text is None else [float(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"{option} '{text}' cannot be read; pass one number per channel, such as 0.5,0.5,0.5") from None
