"""From a trained network and a budget to a finetuned one: search, binarize, finetune, in one call."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from reluctant import recipes
from reluctant._example import Example
from reluctant._job import Batches, Job
from reluctant._shared_run import SharedRun
from reluctant.budget import Budget
from reluctant.data.batches import first_batch
from reluctant.errors import OptionError, RunBusyError
from reluctant.mask import Mask
from reluctant.methods.found import Found, OnEpoch
from reluctant.recipes import Recipe
from reluctant.runs import Run
from reluctant.sites import Patterns
from reluctant.slopes import Granularity
from reluctant.train import Trainer
from reluctant.train.evaluate import Metric, accuracy
from reluctant.train.losses import Loss


@dataclass(frozen=True)
class Result:
    """A linearized network and what is known of it."""

    model: nn.Module
    """In evaluation mode."""
    mask: Mask
    accuracy: dict[str, float]
    """In percent, or of the metric given: `base` and `val` on validation data, `base_test` and `test` on test data."""
    budget: int
    method: str
    schedule: str
    seconds: float
    history: list[dict[str, Any]] = field(default_factory=list)
    run_dir: Path | None = None

    @property
    def count(self) -> int:
        """How many ReLUs it evaluates."""
        return self.mask.count

    def as_dict(self) -> dict[str, Any]:
        """Return what `reluctant linearize --json` prints."""
        return {
            "run": None if self.run_dir is None else str(self.run_dir),
            "total": self.mask.total,
            "budget": self.budget,
            "count": self.count,
            "granularity": self.mask.granularity,
            "method": self.method,
            "schedule": self.schedule,
            "search_epochs": sum(row["phase"] == "search" for row in self.history),
            "seconds": round(self.seconds, 1),
            "accuracy": self.accuracy,
        }


def linearize(
    model: nn.Module,
    *,
    budget: Budget | None = None,
    mask: Mask | str | Path | None = None,
    train: Iterable[Any],
    val: Iterable[Any],
    test: Iterable[Any] | None = None,
    example: Example | None = None,
    method: str = "snl",
    schedule: str | None = None,
    granularity: Granularity = "pixel",
    zero_out: bool = False,
    include: Patterns = None,
    exclude: Patterns = None,
    recipe: str | Path | Mapping[str, Any] | Recipe | None = None,
    loss: Loss | None = None,
    metric: Metric | None = None,
    run_dir: str | Path | None = None,
    force: bool = False,
    seed: int = 0,
    answers: str | Path | None = None,
    on_epoch: OnEpoch | None = None,
) -> Result:
    """Give a trained network a ReLU budget.

    Args:
        model: any trained network; it is not changed, and it is the teacher.
        budget: the most ReLUs to keep: a number, "50k" or "10%".
        mask: instead of a budget: one that was chosen already, or the file or run folder of one. Nothing is searched
            for, and finetuning begins with the model's own weights.
        train: batches of training data: (inputs, targets) or dicts.
        val: batches to choose the best epoch by.
        test: batches to evaluate once, at the end.
        example: an input with a batch dimension; by default the first of `val`.
        method: how the ReLUs are chosen; one of `reluctant.methods.names()`.
        schedule: `anneal` or `paper`, instead of the recipe's.
        granularity: `pixel`, `channel` or `layer`.
        zero_out: let what is not kept become zero instead of linear.
        include: only these sites: names with `*` and `?`, or modules of the model.
        exclude: and not these.
        recipe: hyper-parameters: the name of a recipe, a TOML file, a dict of sections.
        loss: of outputs and targets; by default cross-entropy.
        metric: of outputs and targets, higher is better; by default the accuracy in percent.
        run_dir: a folder to keep everything in; a run that was interrupted there goes on.
        force: replace a run that is there.
        seed: of everything random.
        answers: a file to keep what the teacher says in, for other calls that show it the same images.
        on_epoch: told the figures of every epoch.

    Returns:
        Result: model, mask, count, accuracy, history.

    Raises:
        ReluctantError: of the kind that fits.
    """
    chosen = recipes.load(recipe)
    if schedule is not None:
        chosen = chosen.override({"search.schedule": schedule})
    trainer = Trainer(seed=seed, **asdict(chosen.training), answers=answers)
    job = Job(
        model,
        Batches(train, train, val, test),
        example if example is not None else first_batch(val, "validation")[0],
        chosen,
        trainer,
        method=method,
        granularity=granularity,
        zero_out=zero_out,
        include=include,
        exclude=exclude,
        loss=loss,
        metric=metric or accuracy,
        on_epoch=on_epoch,
    )
    (job, relus), run = decide(job, budget, mask), None
    job.try_training_batch()
    if run_dir is not None:
        run = begin(job, relus, run_dir, {"model": {"class": type(model).__qualname__}}, force=force)
    return run_job(job, relus, run)


def decide(job: Job, budget: Budget | None, mask: Mask | str | Path | None) -> tuple[Job, int]:
    """Return a job and how many ReLUs it may keep, by a budget to search for or by a mask.

    Raises:
        OptionError: there are both, or neither.
    """
    if budget is not None and mask is None:
        [relus] = job.relus(budget)
        return job, relus
    if mask is not None and budget is None:
        given = mask if isinstance(mask, Mask) else Mask.load(mask)
        return job.given(given), given.count
    raise OptionError("pass either a budget, to search within it, or a mask that was chosen already")


def begin(
    job: Job,
    relus: int,
    folder: str | Path,
    spec: Mapping[str, Any],
    *,
    kind: str = "linearize",
    force: bool = False,
    keep_finished: bool = False,
) -> SharedRun:
    """Start the run folder of a job, or go on with it."""
    job.trainer.settle(job.model, job.example)
    asked = {
        "kind": kind,
        "input_shape": list(job.example.shape[1:]) if isinstance(job.example, Tensor) else None,
        **spec,
        "budget": relus,
        "method": job.method,
        "granularity": job.granularity,
        "zero_out": job.zero_out,
        "include": _spelled(job.include),
        "exclude": _spelled(job.exclude),
        "scratch": job.scratch,
        "seed": job.trainer.seed,
    }
    if job.mask is not None:
        asked["mask"] = job.mask.checksum
    return SharedRun.begin(job.trainer, folder, asked, job.recipe, force=force, keep_finished=keep_finished)


def adopt(job: Job, run: SharedRun, earlier: Run) -> None:
    """Take over what the search of an earlier run has found."""
    with run.lock():
        if not (run.folder / "searched.safetensors").exists():
            keep(_found_in(job, earlier), run)
    job.trainer.wait()


def keep(found: Found, run: SharedRun) -> None:
    """Keep what a search has found in the run that goes on with it; the network last, since that is looked for."""
    run.replace_metrics(found.history)
    run.save_network(found.model, found.mask, "searched")


def run_job(job: Job, relus: int, run: SharedRun | None) -> Result:
    """Search, finetune and evaluate; each phase goes on where it was interrupted."""
    began = time.perf_counter()
    job.trainer.settle(job.model, job.example)
    with run.lock() if run else nullcontext():
        if run is not None and run.run.finished:
            raise RunBusyError(f"another process has just finished the run in {run.folder}; there is nothing left to do")
        scores = {"base": job.base_val}
        found = _searched(job, relus, run)
        tuned = job.finetune(found, run)
        scores["val"] = job.score(tuned, job.batches.val)
        if job.batches.test is not None and job.base_test is not None:
            scores |= {"test": job.score(tuned, job.batches.test), "base_test": job.base_test}
        history = run.run.metrics() if run else found.history
        seconds = time.perf_counter() - began
        if run is not None:
            seconds = max(seconds, sum(row.get("seconds", 0.0) for row in history))
        result = Result(
            tuned.eval(),
            found.mask,
            {part: round(score, 3) for part, score in scores.items()},
            relus,
            job.method,
            job.recipe.search.schedule if job.method == "snl" else "none",
            seconds,
            history,
            None if run is None else run.folder,
        )
        if run is not None:
            run.save_network(tuned, found.mask)
            run.finish(result.as_dict())
    return result


def _searched(job: Job, relus: int, run: SharedRun | None) -> Found:
    """Search, or take what an earlier start of this run has found."""
    if run is not None and (run.folder / "searched.safetensors").exists():
        return _found_in(job, run.run)
    found = job.search(relus, run)
    if run is not None:
        run.save_network(found.model, found.mask, "searched")
    return found


def _found_in(job: Job, run: Run) -> Found:
    mask = Mask.load(run.folder / "mask.safetensors")
    model = mask.apply(job.model, job.example)
    run.load_tensors_(model, "searched")
    return Found(mask, model, [row for row in run.metrics() if row["phase"] == "search"])


def _spelled(patterns: Patterns) -> list[str] | None:
    if patterns is None:
        return None
    each = [patterns] if isinstance(patterns, str | nn.Module) else list(patterns)
    return [one if isinstance(one, str) else type(one).__qualname__ for one in each]
