"""Many budgets from one search: as the count passes a budget on its way down, its mask and weights are a by-product."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reluctant._job import Job
from reluctant._linearize import begin, run_job
from reluctant._shared_run import SharedRun
from reluctant.budget import Budget, parse
from reluctant.methods.found import Found
from reluctant.slopes import size


def sweep(
    job: Job,
    budgets: Sequence[Budget],
    folder: str | Path,
    spec: Mapping[str, Any],
    *,
    each: bool = False,
    force: bool = False,
    on_run: Callable[[str], None] | None = None,
) -> list[dict[str, Any]]:
    """Linearize one network for several budgets, from high to low, each into `folder/METHOD-BUDGET`.

    Args:
        job: what the linearizations have in common.
        budgets: numbers of ReLUs, "50k" or "10%".
        folder: where the runs go; those that are finished there already are kept.
        spec: what the runs have to say about their network and data.
        each: search anew for every budget.
        force: replace runs that are there.
        on_run: told the name of each part as it begins.

    Returns:
        The results, from the highest budget to the lowest.
    """
    told = on_run or (lambda name: None)
    total = size(job.student())
    relus = sorted({parse(budget, total) for budget in budgets}, reverse=True)
    runs = {
        budget: begin(job, budget, Path(folder) / f"{job.method}-{budget}", spec, force=force, keep_finished=True)
        for budget in relus
    }
    todo = [budget for budget, run in runs.items() if not run.run.finished]
    if not each and any(not (runs[budget].folder / "searched.safetensors").exists() for budget in todo):
        told(f"{job.method}-search")
        _search_for(job, todo, runs, Path(folder) / f"{job.method}-search", spec, force=force)
    results = []
    for budget, run in runs.items():
        told(run.folder.name)
        results.append(run.run.result if run.run.finished else run_job(job, budget, run).as_dict())
    return results


def _search_for(
    job: Job, budgets: list[int], runs: Mapping[int, SharedRun], folder: Path, spec: Mapping[str, Any], *, force: bool
) -> None:
    """Search down to the lowest budget, and put what is found on the way into the folders of the others."""
    search = begin(job, budgets[-1], folder, {**spec, "budgets": budgets}, kind="search", force=force, keep_finished=True)
    if search.run.finished:
        return

    def keep(budget: int, found: Found) -> None:
        runs[budget].save_network(found.model, found.mask, "searched")
        runs[budget].replace_metrics(found.history)

    with search.lock():
        keep(budgets[-1], job.search(budgets[-1], search, passing=budgets[:-1], on_pass=keep))
        search.finish({"budgets": budgets})
