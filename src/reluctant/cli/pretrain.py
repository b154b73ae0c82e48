"""`reluctant pretrain`: a network to start from."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from reluctant import data as sets
from reluctant import sites
from reluctant._finetune import pretrain as train_network
from reluctant._shared_run import SharedRun
from reluctant.cli import _jobs, _network
from reluctant.cli._show import Json, console, print_json
from reluctant.cli.data import DataDir, Validation
from reluctant.cli.linearize import logs
from reluctant.recipes import Recipe
from reluctant.train import evaluate


def pretrain(
    data: Annotated[str, typer.Option("--data", help=f"One of {', '.join(sets.names())}.")],
    output: _jobs.Output,
    arch: _network.Arch = None,
    model: _network.Model = None,
    arch_arg: _network.ArchArg = None,
    data_dir: DataDir = None,
    validation: Validation = None,
    recipe: _jobs.RecipeName = None,
    settings: _jobs.Settings = None,
    seed: _jobs.Seed = 0,
    force: _jobs.Force = False,
    tensorboard: _jobs.TensorBoard = False,
    as_json: Json = False,
) -> None:
    """Train a network from scratch, with all its ReLUs.

    For instance: reluctant pretrain --data digits --arch small --recipe laptop -o runs/base
    """
    chosen = _jobs.read_recipe(recipe, settings)
    described = _jobs.describe_data(data, data_dir, validation)
    result = train(described, output, arch, model, arch_arg, chosen, seed, force, logs(output, tensorboard))
    if as_json:
        print_json(result)
        return
    scores = result["accuracy"]
    console.print(
        f"{output}: {result['total']:,} ReLUs, {scores['val']:.2f} % on validation, {scores['test']:.2f} % on test images"
    )


def train(
    data: Mapping[str, Any],
    output: Path,
    arch: str | None,
    model: str | None,
    arch_arg: list[str] | None,
    chosen: Recipe,
    seed: int,
    force: bool,
    tensorboard: Path | None = None,
) -> dict[str, Any]:
    """Train into a run folder, and return its result."""
    splits = _jobs.read_splits(data)
    shape = splits.train.shape
    torch.manual_seed(seed)
    network = _network.build(arch, model, arch_arg, len(splits.classes), shape)
    total = sites.count(network, torch.zeros(1, *shape)).total
    spec = {
        "kind": "pretrain",
        "model": _network.describe(arch, model, arch_arg, len(splits.classes), shape),
        "data": dict(data),
        "input_shape": list(shape),
        "seed": seed,
    }
    began = time.perf_counter()
    with _jobs.progress_bar() as bar:
        trainer = _jobs.trainer(chosen, seed, bar, tensorboard)
        trainer.settle(network, torch.zeros(1, *shape))
        run = SharedRun.begin(trainer, output, spec, chosen, force=force)

        def on_epoch(row: dict[str, object]) -> None:
            run.log(row)
            bar.on_epoch(row)

        loaders = {part: splits.loader(part, batch_size=_jobs.EVALUATION_BATCH) for part in ("val", "test")}
        with run.lock():
            trained = train_network(
                network,
                train=splits.loader("train", batch_size=chosen.pretrain.batch_size, seed=seed),
                val=loaders["val"],
                options=chosen.pretrain,
                trainer=trainer,
                checkpoint=run,
                on_epoch=on_epoch,
            )
            scores = {part: round(evaluate(trained, loader, trainer=trainer), 3) for part, loader in loaders.items()}
            run.save_network(trained, None)
            result: dict[str, Any] = {
                "run": str(output),
                "total": total,
                "seconds": round(time.perf_counter() - began, 1),
                "accuracy": scores,
            }
            run.finish(result)
    return result
