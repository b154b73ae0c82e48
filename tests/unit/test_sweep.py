"""Several processes at one sweep: what one is at work on, the others leave to it, and take over if it dies."""

import json
import shutil
from types import SimpleNamespace

import pytest

from reluctant import _sweep, errors
from reluctant._job import Batches, Job
from reluctant.runs import Run
from reluctant.train import Trainer
from tests import toys

BUDGETS = [60, 20]


def sweep(folder, **options):
    train = toys.batches()
    job = Job(toys.toy(), Batches(train, train, train), toys.examples()[0][:2], toys.recipe(), Trainer())
    return _sweep.sweep(job, BUDGETS, folder, {}, **options)


def without_places(results):
    return [{**result, "run": 0, "seconds": 0} for result in results]


@pytest.fixture
def pauses(monkeypatch):
    """What happens while a process waits: nobody sleeps in tests."""
    taken, to_happen = [], []

    def pause(seconds):
        taken.append(seconds)
        assert len(taken) < 5, "waits for ever"
        if to_happen:
            to_happen.pop(0)()

    monkeypatch.setattr(_sweep, "time", SimpleNamespace(sleep=pause))
    return taken, to_happen


def undo(folder, *kept):
    """Leave a run as it was when it began."""
    for path in folder.iterdir():
        if path.name not in ("run.json", "recipe.toml", "environment.json", *kept):
            path.unlink()


@pytest.mark.parametrize("busy", ["search", "60", "20"])
def test_what_another_process_leaves_undone_is_taken_over(tmp_path, pauses, busy):
    whole, parts = sweep(tmp_path), []
    if busy == "search":
        undo(tmp_path / "snl-search")
        undo(tmp_path / "snl-20")
    else:
        undo(tmp_path / f"snl-{busy}", "searched.safetensors", "mask.safetensors", "metrics.jsonl")
    taken, to_happen = pauses
    to_happen.append(Run.open(tmp_path / f"snl-{busy}").lock().close)
    assert without_places(sweep(tmp_path, on_run=parts.append)) == without_places(whole)
    assert len(taken) == 1
    assert "waiting for another process" in parts
    assert parts[-1] == ("snl-20" if busy == "search" else f"snl-{busy}")


def test_a_search_that_goes_on_does_not_disturb_who_finetunes_what_it_has_passed(tmp_path):
    sweep(tmp_path)
    search, passed = tmp_path / "snl-search", tmp_path / "snl-60"
    for folder in (search, tmp_path / "snl-20"):
        undo(folder)
    before = {path.name: path.read_bytes() for path in passed.iterdir()}
    sweep(tmp_path)
    assert {path.name: path.read_bytes() for path in passed.iterdir()} == before
    assert json.loads((search / "result.json").read_text()) == {"budgets": BUDGETS}


def test_a_budget_whose_folder_is_gone_is_searched_for_anew(tmp_path):
    whole = sweep(tmp_path)
    for path in (tmp_path / "snl-20").iterdir():
        path.unlink()
    assert sweep(tmp_path)[-1]["count"] == whole[-1]["count"] == 20


def test_a_finished_run_is_not_done_again(tmp_path, monkeypatch):
    """Another process may finish it between a look and the lock."""
    whole = sweep(tmp_path)
    finished = iter([False, False])
    look = Run.finished.fget
    monkeypatch.setattr(Run, "finished", property(lambda run: next(finished, None) is not False and look(run)))
    monkeypatch.setattr(_sweep, "time", SimpleNamespace(sleep=lambda seconds: None))
    assert sweep(tmp_path) == whole


def test_under_torchrun_a_busy_folder_is_an_error(tmp_path):
    class Several:
        num_processes = 2

    class Fake:
        accelerator = Several()

    job = Job(toys.toy(), Batches([], [], []), None, toys.recipe(), Fake())
    with pytest.raises(errors.RunBusyError, match="at work"):
        _sweep._left_to_another(job, errors.RunBusyError("another process is at work"))


@pytest.mark.parametrize("busy", ["search", "60", "20"])
def test_nothing_is_replaced_while_another_process_is_at_work(tmp_path, busy):
    before = sweep(tmp_path)
    with Run.open(tmp_path / f"snl-{busy}").lock(), pytest.raises(errors.RunBusyError, match=f"snl-{busy}; wait for it"):
        sweep(tmp_path, force=True)
    assert sweep(tmp_path) == before
    assert without_places(sweep(tmp_path, force=True)) == without_places(before)


def test_a_search_leaves_finished_runs_as_they_are(tmp_path):
    sweep(tmp_path)
    for path in [*tmp_path.glob("*/searched.safetensors"), tmp_path / "snl-20" / "result.json"]:
        path.unlink()
    shutil.rmtree(tmp_path / "snl-search")
    mask = tmp_path / "snl-60" / "mask.safetensors"
    mask.write_bytes(b"whatever was kept")
    sweep(tmp_path)
    assert mask.read_bytes() == b"whatever was kept"


def test_the_full_network_is_evaluated_once_for_all_budgets(tmp_path, monkeypatch):
    train, test, scored = toys.batches(), toys.batches(), []
    job = Job(toys.toy(), Batches(train, train, train, test), toys.examples()[0][:2], toys.recipe(), Trainer())
    score = Job.score

    def noted(job, model, batches):
        scored.append((model, batches))
        return score(job, model, batches)

    monkeypatch.setattr(Job, "score", noted)
    results = _sweep.sweep(job, BUDGETS, tmp_path, {})
    assert [batches is test for model, batches in scored if model is job.model] == [False, True]
    assert [result["accuracy"]["base"] for result in results] == [results[0]["accuracy"]["base_test"]] * 2  # the same data
