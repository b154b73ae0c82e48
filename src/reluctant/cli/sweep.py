"""`reluctant sweep`: the frontier of a network, and grids over the recipe."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from reluctant._sweep import sweep as sweep_budgets
from reluctant.cli import _jobs
from reluctant.cli._show import Json, console, percent, print_json, table
from reluctant.cli.data import DataDir
from reluctant.cli.linearize import (
    Epochs,
    Exclude,
    From,
    Granularity,
    Include,
    Method,
    Schedule,
    Scratch,
    ZeroOut,
    make_job,
    with_search,
)
from reluctant.errors import OptionError


def sweep(
    run: From,
    budgets: Annotated[str, typer.Option("--budgets", "-b", help="Separated by commas: 15k,25k,50k or 5%,10%.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to put the runs into.")],
    each: Annotated[bool, typer.Option("--each", help="Search anew for every budget, instead of once for all.")] = False,
    vary: Annotated[
        list[str] | None,
        typer.Option("--vary", help="Try several values of a recipe key: penalty=1e-5,1e-4. Repeat it for a grid."),
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
    answers: _jobs.AnswersFile = None,
    as_json: Json = False,
) -> None:
    """Linearize a network for several budgets, from high to low, with one search.

    For instance: reluctant sweep runs/base --budgets 5%,10%,20% -o runs/sweep
    """
    chosen = _jobs.read_recipe(recipe, [*with_search(schedule, epochs), *(settings or [])])
    variations = _variations(vary)
    for variation in variations:
        chosen.override(variation)  # complain before hours of work, not after
    base = _jobs.Base.open(run, data_dir, scratch=scratch)
    rows: list[dict[str, Any]] = []
    with _jobs.progress_bar() as bar:
        for variation in variations:
            name = ",".join(f"{key}={value}" for key, value in variation.items())
            varied = chosen.override(variation)
            job = make_job(
                base,
                varied,
                _jobs.trainer(varied, seed, bar, answers=answers),
                bar,
                method=method,
                granularity=granularity,
                include=include,
                exclude=exclude,
                zero_out=zero_out,
                scratch=scratch,
            )
            prefix = f"{name} " if name else ""
            results = sweep_budgets(
                job,
                budgets.split(","),
                output / name if name else output,
                base.spec(),
                each=each,
                force=force,
                on_run=lambda part, prefix=prefix: setattr(bar, "title", prefix + part),  # type: ignore[misc]
            )
            rows += [{**({"varied": variation} if variation else {}), **result} for result in results]
    if as_json:
        print_json(rows)
        return
    show(rows)


def show(rows: list[dict[str, Any]]) -> None:
    """Print the frontier as a table."""
    varied = any("varied" in row for row in rows)
    shown = table(*(["recipe"] if varied else []), "run", "#ReLUs", "#share", "#val %", "#test %", "#drop")
    for row in rows:
        accuracy = row["accuracy"]
        name = ", ".join(f"{key}={value}" for key, value in row.get("varied", {}).items())
        shown.add_row(
            *([name] if varied else []),
            Path(row["run"]).name,
            f"{row['count']:,}",
            percent(row["count"], row["total"]),
            f"{accuracy['val']:.2f}",
            f"{accuracy['test']:.2f}",
            f"{accuracy['base_test'] - accuracy['test']:.2f}",
        )
    console.print(shown)
    console.print("drop: what the full network has more, on test images")


def _variations(vary: list[str] | None) -> list[dict[str, str]]:
    axes = []
    for text in vary or []:
        key, equals, values = text.partition("=")
        if not equals or not values:
            raise OptionError(f"--vary '{text}' cannot be read; pass key=value,value such as penalty=1e-5,1e-4")
        axes.append([(key.strip(), value) for value in dict.fromkeys(map(str.strip, values.split(",")))])
    return [dict(combination) for combination in itertools.product(*axes)]
