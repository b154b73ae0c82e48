"""`reluctant finetune`: what a search has found, finetuned with other settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from reluctant._linearize import adopt, begin, run_job
from reluctant.cli import _jobs
from reluctant.cli._show import Json
from reluctant.cli.data import DataDir
from reluctant.cli.linearize import logs, make_job, show
from reluctant.errors import OptionError
from reluctant.recipes import Recipe
from reluctant.runs import Run, check_elsewhere


def finetune(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A linearized run.")],
    output: _jobs.Output,
    base: Annotated[
        Path | None, typer.Option(help="The run of the network it came from, if that is no longer where it was.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Finetune epochs.")] = None,
    recipe: _jobs.RecipeName = None,
    settings: _jobs.Settings = None,
    data_dir: DataDir = None,
    force: _jobs.Force = False,
    tensorboard: _jobs.TensorBoard = False,
    answers: _jobs.AnswersFile = None,
    as_json: Json = False,
) -> None:
    """Finetune again what the search of a run has found, with other settings.

    Mask, seed and the weights to begin with are those of the run, and so is every setting that is not given; the result is
    what a new search with these settings would end with. For instance: reluctant finetune runs/30k --epochs 30 -o runs/long
    """
    found = Run.open(run)
    spec = found.spec
    if spec.get("kind") != "linearize":
        raise OptionError(f"{run} is not a linearized run; pass one that reluctant linearize or sweep made")
    found.require_weights("searched")
    check_elsewhere(output, run)
    if "parent" not in spec:
        raise OptionError(f"{run} was made in Python; finetune it there, with reluctant.finetune")
    chosen = _other_settings(
        found.recipe, recipe, [*([] if epochs is None else [f"finetune.epochs={epochs}"]), *(settings or [])]
    )
    parent = _jobs.Base.open(base or Path(spec["parent"]), data_dir, scratch=spec["scratch"])
    if parent.run.digest() != spec["parent_weights"]:
        raise OptionError(
            f"{parent.run.folder} is not the network that {run} came from; pass the run of that one with --base"
        )
    with _jobs.progress_bar() as bar:
        trainer = _jobs.trainer(chosen, spec["seed"], bar, logs(output, tensorboard), answers)
        asked = ("method", "granularity", "include", "exclude", "zero_out", "scratch")
        job = make_job(parent, chosen, trainer, bar, **{choice: spec[choice] for choice in asked})
        relus = spec["budget"]
        searched = {"search": spec.get("search"), "searched": found.digest("searched")}
        folder = begin(job, relus, output, {**parent.spec(), **searched}, force=force)
        adopt(job, folder, found)
        result = run_job(job, relus, folder)
    show(result, as_json)


def _other_settings(before: Recipe, name: str | None, settings: list[str]) -> Recipe:
    """Return a recipe with the search of an earlier one."""
    if name is not None:
        named = _jobs.read_recipe(name, None)
        before = replace(before, training=named.training, finetune=named.finetune)
    chosen = _jobs.read_recipe(None, settings, before)
    if chosen.search != before.search:
        raise OptionError("the search is over and its settings stay; use --set finetune.… only")
    return chosen
