"""What the commands that train have in common: the data, the recipe, the run to start from, the progress bar."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from torch import nn

from reluctant import data, recipes
from reluctant._job import Batches
from reluctant._load import load, make
from reluctant.cli._show import messages
from reluctant.data import Splits
from reluctant.errors import OptionError
from reluctant.recipes import Recipe
from reluctant.runs import Run
from reluctant.train import Trainer

RecipeName = Annotated[
    str | None, typer.Option("--recipe", help="A TOML file, or one that comes with Reluctant: laptop, cifar100-resnet18, …")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a value of the recipe: search.epochs=20, or penalty=1e-4. Repeatable."),
]
Output = Annotated[Path, typer.Option("--output", "-o", help="The run folder to write.")]
Force = Annotated[bool, typer.Option("--force", help="Replace a run that is there.")]
Seed = Annotated[int, typer.Option("--seed", help="Of everything random.")]
TensorBoard = Annotated[
    bool, typer.Option("--tensorboard", help="Write figures for TensorBoard too, beside the run folder.")
]
AnswersFile = Annotated[
    Path | None,
    typer.Option(
        "--answers",
        help="A file to keep what the teacher says in: runs with the same seed, at once or later, need not ask it again.",
    ),
]


def read_recipe(name: str | None, settings: list[str] | None, base: Recipe | None = None) -> Recipe:
    """Read a recipe and override some of its values."""
    recipe = recipes.load(name) if name is not None or base is None else base
    changes = {}
    for setting in settings or []:
        key, equals, value = setting.partition("=")
        if not equals:
            raise OptionError(f"--set '{setting}' cannot be read; pass key=value, such as search.epochs=20")
        changes[key.strip()] = value.strip()
    return recipe.override(changes)


@dataclass(frozen=True)
class Base:
    """A run to start from: its network, and its data with the normalisation it was trained with."""

    run: Run
    model: nn.Module
    splits: Splits

    @classmethod
    def open(cls, folder: Path, data_dir: Path | None, *, scratch: bool = False) -> Base:
        """Read a run and its data."""
        run = Run.open(folder)
        if run.spec.get("kind") == "linearize":
            parent = run.spec.get("parent", "the full network")
            raise OptionError(f"{folder} is linearized already; start from the network that it came from, {parent}")
        model = make(run.spec["model"], folder) if scratch else load(run).model
        return cls(run, model, read_splits(run.spec["data"], data_dir))

    def spec(self) -> dict[str, Any]:
        """Return what a run made from this one has to say."""
        keys = ("model", "data", "input_shape")
        parent = {"parent": str(self.run.folder), "parent_weights": self.run.digest()}
        return {key: self.run.spec[key] for key in keys} | parent

    def batches(self, recipe: Recipe, seed: int) -> Batches:
        """Return the loaders of a linearization."""
        splits = self.splits
        return Batches(
            splits.loader("train", batch_size=recipe.search.batch_size, seed=seed),
            splits.loader("train", batch_size=recipe.finetune.batch_size, seed=seed),
            splits.loader("val", batch_size=EVALUATION_BATCH),
            splits.loader("test", batch_size=EVALUATION_BATCH),
        )


EVALUATION_BATCH = 500


def describe_data(name: str, folder: Path | None, validation: float | None = None) -> dict[str, Any]:
    """Return what a run says of its data."""
    spec: dict[str, Any] = {"name": name, "dir": None if folder is None else str(folder)}
    return spec if validation is None else {**spec, "validation": validation}


def read_splits(spec: Mapping[str, Any], data_dir: Path | None = None) -> Splits:
    """Read the data that a run names, normalised as it says."""
    with messages.status(f"reading {spec['name']}"):
        splits = data.load(spec["name"], data_dir or spec.get("dir"), validation=spec.get("validation"))
    changes: dict[str, Any] = {key: tuple(spec[key]) for key in ("mean", "std") if spec.get(key)}
    return replace(splits, **changes)


def trainer(
    recipe: Recipe, seed: int, bar: Bar | None, tensorboard: Path | None = None, answers: Path | None = None
) -> Trainer:
    """Make the trainer of a recipe."""
    advance = None if bar is None else bar.advance
    return Trainer(seed=seed, **asdict(recipe.training), advance=advance, tensorboard=tensorboard, answers=answers)


class Bar:
    """One bar for the phase that runs, on standard error, with the latest figures beside it."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._task = progress.add_task("", total=None, figures="", visible=False)
        self.title = ""

    def advance(self, phase: str, epoch: int, epochs: int, step: int, steps: int) -> None:
        """Move the bar."""
        name = f"{self.title} {phase}".strip()
        done = epoch * steps + step
        self._progress.update(self._task, description=name, completed=done, total=epochs * steps, visible=True)

    def on_epoch(self, row: dict[str, Any]) -> None:
        """Show the figures of an epoch."""
        figures = f"epoch {row['epoch'] + 1}  loss {row['loss']:.3f}"
        if "count" in row:
            figures += f"  {row['count']:,} ReLUs"
        if "val" in row:
            figures += f"  val {row['val']:.2f}"
        self._progress.update(self._task, figures=figures)


@contextmanager
def progress_bar() -> Iterator[Bar]:
    """Show a progress bar while the block runs; it goes when it is done."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    with Progress(*columns, console=messages, transient=True) as progress:
        yield Bar(progress)
