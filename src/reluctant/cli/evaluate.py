"""`reluctant evaluate`: how good a finished run is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reluctant._load import load
from reluctant.cli import _jobs
from reluctant.cli._show import Json, console, messages, print_json, table
from reluctant.cli.data import DataDir
from reluctant.data import Loader
from reluctant.errors import OptionError, unknown
from reluctant.runs import Run, finished_below
from reluctant.train import evaluate as evaluate_network


def evaluate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Finished runs, or folders that hold some.")],
    part: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Evaluate the networks of finished runs.

    For instance: reluctant evaluate runs/base runs/ten --part test
    """
    if part not in ("train", "val", "test"):
        raise unknown("part", part, ("train", "val", "test"))
    rows: list[dict[str, Any]] = []
    for folder in _with_networks(runs):
        run = load(folder)
        splits = _jobs.read_splits(run.spec["data"], data_dir)
        images = {"train": splits.train, "val": splits.val, "test": splits.test}[part]
        batches = Loader(images.pixels, images.labels, batch_size=_jobs.EVALUATION_BATCH, mean=splits.mean, std=splits.std)
        with messages.status(f"evaluating {folder}"):
            score = round(evaluate_network(run.model, batches), 3)
        count = run.mask.count if run.mask is not None else run.result["total"]
        rows.append({"run": str(folder), "part": part, "count": count, "accuracy": score})
    if as_json:
        print_json(rows)
        return
    shown = table("run", "#ReLUs", f"#{part} %")
    for row in rows:
        shown.add_row(row["run"], f"{row['count']:,}", f"{row['accuracy']:.2f}")
    console.print(shown)


def _with_networks(folders: list[Path]) -> list[Path]:
    """Return the run folders that have a network of their own; a sweep's search has none."""
    found = []
    for folder in folders:
        several = folder.is_dir() and not (folder / "run.json").is_file()
        runs = finished_below(folder) if several else [Run.open(folder)]
        found += [run.folder for run in runs if run.spec.get("kind") != "search"]
    if not found:
        raise OptionError(f"there is no finished run in {', '.join(map(str, folders))}")
    return found
