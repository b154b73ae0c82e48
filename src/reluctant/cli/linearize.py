"""`reluctant linearize`: a network within its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from reluctant import methods
from reluctant._job import Job
from reluctant._linearize import Result, begin, decide, run_job
from reluctant.cli import _jobs
from reluctant.cli._show import Json, console, print_json
from reluctant.cli.data import DataDir
from reluctant.recipes import Recipe
from reluctant.train import Trainer

From = Annotated[Path, typer.Argument(metavar="RUN", help="The run of the trained network to start from.")]
Method = Annotated[str, typer.Option(help=f"How to choose: {', '.join(methods.names())}.")]
Granularity = Annotated[str, typer.Option(help="What is decided at once: pixel, channel or layer.")]
ZeroOut = Annotated[bool, typer.Option("--zero-out", help="Let what is not kept become zero instead of linear.")]
Scratch = Annotated[bool, typer.Option("--scratch", help="Start from random weights, without a teacher.")]
Schedule = Annotated[str | None, typer.Option(help="anneal: ends when you say; paper: Algorithm 1.")]
Epochs = Annotated[int | None, typer.Option(help="Search epochs; --set finetune.epochs=… for the others.")]
Include = Annotated[list[str] | None, typer.Option(help="Only these sites; * and ? are wild. Repeatable.")]
Exclude = Annotated[list[str] | None, typer.Option(help="Not these sites. Repeatable.")]


def linearize(
    run: From,
    output: _jobs.Output,
    budget: Annotated[
        str | None, typer.Option("--budget", "-b", help='The most ReLUs to keep: 50000, "50k" or "10%".')
    ] = None,
    mask: Annotated[
        Path | None, typer.Option(help="Instead of a budget: a mask file, or a run with one. Nothing is searched for.")
    ] = None,
    method: Method = "snl",
    granularity: Granularity = "pixel",
    schedule: Schedule = None,
    epochs: Epochs = None,
    include: Include = None,
    exclude: Exclude = None,
    zero_out: ZeroOut = False,
    scratch: Scratch = False,
    recipe: _jobs.RecipeName = None,
    settings: _jobs.Settings = None,
    data_dir: DataDir = None,
    seed: _jobs.Seed = 0,
    force: _jobs.Force = False,
    tensorboard: _jobs.TensorBoard = False,
    answers: _jobs.AnswersFile = None,
    as_json: Json = False,
) -> None:
    """Search which ReLUs a network can do without, and finetune what is left within the budget.

    The same command goes on where it was interrupted. For instance: reluctant linearize runs/base --budget 10% -o runs/ten
    """
    chosen = _jobs.read_recipe(recipe, [*with_search(schedule, epochs), *(settings or [])])
    base = _jobs.Base.open(run, data_dir, scratch=scratch)
    with _jobs.progress_bar() as bar:
        job = make_job(
            base,
            chosen,
            _jobs.trainer(chosen, seed, bar, logs(output, tensorboard), answers),
            bar,
            method=method,
            granularity=granularity,
            include=include,
            exclude=exclude,
            zero_out=zero_out,
            scratch=scratch,
        )
        job, relus = decide(job, budget, mask)
        folder = begin(job, relus, output, base.spec(), force=force)
        result = run_job(job, relus, folder)
    show(result, as_json)


def show(result: Result, as_json: bool) -> None:
    """Print what a linearization ended with."""
    if as_json:
        print_json(result.as_dict())
        return
    accuracy = result.accuracy
    console.print(
        f"{result.run_dir}: {result.count:,} of {result.mask.total:,} ReLUs, {accuracy['val']:.2f} % on validation, "
        f"{accuracy['test']:.2f} % on test images (with all ReLUs {accuracy['base']:.2f} and {accuracy['base_test']:.2f} %)"
    )


def logs(output: Path, wanted: bool) -> Path | None:
    """Return where TensorBoard's files go: beside the run folder, which begins empty."""
    return output.with_name(f"{output.name}.logs") if wanted else None


def with_search(schedule: str | None, epochs: int | None) -> list[str]:
    """Turn the two common options into settings."""
    chosen = {"search.schedule": schedule, "search.epochs": epochs}
    return [f"{key}={value}" for key, value in chosen.items() if value is not None]


def make_job(
    base: _jobs.Base, recipe: Recipe, trainer: Trainer, bar: _jobs.Bar, *, scratch: bool = False, **choices: Any
) -> Job:
    """Put together what the options say; the choices are those of a Job: a method, a granularity, sites."""
    if scratch:
        torch.manual_seed(trainer.seed)
        for module in base.model.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
    return Job(
        base.model,
        base.batches(recipe, trainer.seed),
        torch.zeros(2, *base.splits.train.shape),
        recipe,
        trainer,
        on_epoch=bar.on_epoch,
        scratch=scratch,
        **choices,
    )
