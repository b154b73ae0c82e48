"""Many budgets from one search: as the count passes a budget on its way down, its mask and weights are a by-product.

Several processes may work at one sweep: each takes on what nobody else is at work on. While one searches, others finetune
what the search has passed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from reluctant._job import Job
from reluctant._linearize import begin, keep, run_job
from reluctant._shared_run import SharedRun
from reluctant.budget import Budget
from reluctant.errors import RunBusyError, RunError
from reluctant.methods.found import Found
from reluctant.runs import Run, lock

PAUSE = 5.0
"""Seconds between two looks at whether another process has come to an end."""


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

    Called by several processes for one folder, they share the work, and each returns when all of it is done.

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
    folders = {budget: folder / f"{job.method}-{budget}" for budget in relus}
    for path in (search_folder, *folders.values()) if force and job.trainer.is_main else ():
        if (path / "run.json").exists():
            lock(path).close()  # complains before anything is replaced
    runs = {budget: begin(job, budget, path, spec, force=force, keep_finished=True) for budget, path in folders.items()}
    while any(not run.run.finished for run in runs.values()):
        taken = not each and _search_for(job, relus, runs, search_folder, spec, told, force=force)
        force = False  # what was there is gone by now
        for budget, run in runs.items():
            if each or _is_found(run) or (search_folder / "result.json").exists():
                taken |= _finish(job, budget, run, told)
        if not taken:
            told("waiting for another process")
            time.sleep(PAUSE)
    return [run.run.result for run in runs.values()]


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
    job: Job,
    budgets: list[int],
    runs: Mapping[int, SharedRun],
    folder: Path,
    spec: Mapping[str, Any],
    told: Callable[[str], None],
    *,
    force: bool,
) -> bool:
    """Search down to the lowest budget, and put what is found on the way into the folders of the others.

    Returns:
        Whether this process has searched; there may be nothing left to find, or another process may be at it.
    """
    if all(run.run.finished or _is_found(run) for run in runs.values()):
        return False
    search = begin(job, budgets[-1], folder, {**spec, "budgets": budgets}, kind="search", force=force, keep_finished=True)
    if search.run.finished:
        return False

    def on_pass(budget: int, found: Found) -> None:
        run = runs[budget]
        if not (run.run.finished or _is_found(run)):  # else another process may be at work on it
            keep(found, run)

    try:
        with search.lock():
            if not search.run.finished:  # another process may have finished it a moment ago
                told(folder.name)
                on_pass(budgets[-1], job.search(budgets[-1], search, passing=budgets[:-1], on_pass=on_pass))
                search.finish({"budgets": budgets})
    except RunBusyError as error:
        return _left_to_another(job, error)
    return True


def _finish(job: Job, budget: int, run: SharedRun, told: Callable[[str], None]) -> bool:
    """Take a run to its end; return whether this process did."""
    if run.run.finished:
        return False
    told(run.folder.name)
    try:
        run_job(job, budget, run)
    except RunBusyError as error:
        return _left_to_another(job, error)
    return True


def _left_to_another(job: Job, error: RunBusyError) -> bool:
    """Return that nothing was done; under torchrun raise, since the other processes would go on and not know."""
    if job.trainer.accelerator.num_processes > 1:
        raise error
    return False


def _is_found(run: SharedRun) -> bool:
    return (run.folder / "searched.safetensors").exists()
