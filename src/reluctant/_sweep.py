"""Many budgets from one search: as the count passes a budget on its way down, its mask and weights are a by-product."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reluctant._job import Job
from reluctant._linearize import begin, keep, run_job
from reluctant._shared_run import SharedRun
from reluctant.budget import Budget
from reluctant.errors import RunError
from reluctant.methods.found import Found
from reluctant.runs import Run


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
    folder = Path(folder)
    relus = sorted(set(job.relus(*budgets)), reverse=True)
    search_folder = folder / f"{job.method}-search"
    if folder.is_file():
        raise RunError(f"{folder} is a file; pass a folder")
    if (folder / "run.json").exists():
        raise RunError(f"{folder} is a run itself; pass a folder for the runs of the sweep")
    if not each and not force:
        _check_budgets(folder, search_folder, relus)
    spec = {**spec, "search": "for each budget" if each else "one for all budgets"}
    runs = {
        budget: begin(job, budget, folder / f"{job.method}-{budget}", spec, force=force, keep_finished=True)
        for budget in relus
    }
    todo = [budget for budget, run in runs.items() if not run.run.finished]
    if not each and any(not (runs[budget].folder / "searched.safetensors").exists() for budget in todo):
        told(f"{job.method}-search")
        _search_for(job, todo, runs, search_folder, spec, force=force)
    results = []
    for budget, run in runs.items():
        told(run.folder.name)
        results.append(run.run.result if run.run.finished else run_job(job, budget, run).as_dict())
    return results


def _check_budgets(folder: Path, search_folder: Path, budgets: list[int]) -> None:
    """Refuse budgets that the search of an earlier sweep in this folder did not look for, before anything is written."""
    if not (search_folder / "run.json").exists():
        return
    before = Run.open(search_folder).spec.get("budgets", [])
    new = [budget for budget in budgets if budget not in before]
    if new:
        raise RunError(
            f"the sweep in {folder} has searched for the budgets {', '.join(map(str, before))} and not for "
            f"{', '.join(map(str, new))}, and one search serves all budgets; pass another folder, --each, or --force to "
            "search again"
        )


def _search_for(
    job: Job, budgets: list[int], runs: Mapping[int, SharedRun], folder: Path, spec: Mapping[str, Any], *, force: bool
) -> None:
    """Search down to the lowest budget, and put what is found on the way into the folders of the others."""
    search = begin(job, budgets[-1], folder, {**spec, "budgets": budgets}, kind="search", force=force, keep_finished=True)
    if search.run.finished:
        return

    def on_pass(budget: int, found: Found) -> None:
        keep(found, runs[budget])

    with search.lock():
        keep(job.search(budgets[-1], search, passing=budgets[:-1], on_pass=on_pass), runs[budgets[-1]])
        search.finish({"budgets": budgets})
