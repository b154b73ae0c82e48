"""Sweep, and finetune what a sweep has found, as a person runs them, on very little of `digits`."""

import json
import subprocess
from pathlib import Path

import torch
from safetensors.torch import load_file

from reluctant import Mask
from tests.end_to_end.commands import BIN, SETTINGS, reluctant


def test_sweep_with_one_search_and_with_variations(base, tmp_path):
    command = ["sweep", base, "--budgets", "5%,0,2000", *SETTINGS, "-o", tmp_path / "sweep"]
    rows = json.loads(reluctant(*command, "--json").stdout)
    assert [row["count"] for row in rows] == [2000, 200, 0]
    assert {path.name for path in (tmp_path / "sweep").iterdir()} == {"snl-2000", "snl-200", "snl-0", "snl-search"}
    masks = [Mask.load(tmp_path / "sweep" / f"snl-{count}" / "mask.safetensors") for count in (0, 200, 2000)]
    assert masks[0] <= masks[1]
    again = json.loads(reluctant(*command, "--json").stdout)
    assert again == rows
    table = reluctant(*command).stdout
    assert "2,000" in table
    vary = ["sweep", base, "--budgets", "300", *SETTINGS, "--vary", "penalty=1e-5,1e-3", "-o", tmp_path / "vary", "--json"]
    rows = json.loads(reluctant(*vary).stdout)
    assert [row["varied"] for row in rows] == [{"penalty": "1e-5"}, {"penalty": "1e-3"}]
    assert all(row["count"] == 300 for row in rows)


def test_two_processes_share_a_sweep(base, tmp_path):
    command = ["sweep", base, "--budgets", "1000,300,50", *SETTINGS, "--json"]
    alone = json.loads(reluctant(*command, "-o", tmp_path / "alone").stdout)
    together = [
        subprocess.Popen([BIN, *map(str, command), "-o", tmp_path / "both"], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    printed = [json.loads(process.communicate(timeout=600)[0]) for process in together]
    assert printed[0] == printed[1]
    for one, both in zip(alone, printed[0], strict=True):
        assert {**both, "run": 0, "seconds": 0} == {**one, "run": 0, "seconds": 0}
        rows = [json.loads(row) for row in (Path(both["run"]) / "metrics.jsonl").read_text().splitlines()]
        assert [row["epoch"] for row in rows if row["phase"] == "finetune"] == [0], "nothing is done twice"


def test_finetune_what_a_search_has_found_again(base, tmp_path):
    longer = ["--set", "finetune.epochs=2"]
    reluctant("sweep", base, "--budgets", "300,50", *SETTINGS, "-o", tmp_path / "short")
    reluctant("sweep", base, "--budgets", "300,50", *SETTINGS, *longer, "-o", tmp_path / "long")
    command = ["finetune", tmp_path / "short" / "snl-300", "--epochs", "2", "-o", tmp_path / "again"]
    printed = json.loads(reluctant(*command, "--json").stdout)
    whole = json.loads((tmp_path / "long" / "snl-300" / "result.json").read_text())
    assert {**printed, "run": 0, "seconds": 0} == {**whole, "run": 0, "seconds": 0}
    ours, theirs = (
        load_file(folder / "model.safetensors") for folder in (tmp_path / "again", tmp_path / "long" / "snl-300")
    )
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    spec = tmp_path / "again" / "run.json"
    spec.write_text(spec.read_text().replace(str(base), str(tmp_path / "moved")))
    assert "moved is not a run folder" in reluctant("finetune", tmp_path / "again", "-o", tmp_path / "no", ok=False).stderr
    found = reluctant("finetune", tmp_path / "again", "--base", base, "-o", tmp_path / "third")
    assert "4,000 ReLUs" in found.stdout
    for arguments, said in (
        ([base], "is not a linearized run"),
        ([tmp_path / "again", "--set", "penalty=1"], "the search is over"),
        ([tmp_path / "again", "--base", tmp_path / "long" / "snl-300"], "linearized already"),
    ):
        refused = reluctant("finetune", *arguments, "-o", tmp_path / "refused", ok=False)
        assert refused.returncode == 2
        assert said in refused.stderr
    assert not (tmp_path / "refused").exists()
    onto_itself = reluctant("finetune", tmp_path / "third", "--force", "-o", tmp_path / "third", ok=False)
    assert "cannot be replaced by what is made from it" in onto_itself.stderr
    assert (tmp_path / "third" / "searched.safetensors").exists()


def test_each_budget_can_be_searched_for_anew(base, tmp_path):
    command = [
        "sweep",
        base,
        "--budgets",
        "100,300",
        "--each",
        *SETTINGS,
        "-o",
        tmp_path / "each",
        "--granularity",
        "channel",
    ]
    rows = json.loads(reluctant(*command, "--json").stdout)
    assert [row["search_epochs"] for row in rows] == [2, 2]
    assert all(row["count"] <= row["budget"] and row["granularity"] == "channel" for row in rows)


def test_a_sweep_is_told_apart_from_searches_for_each_budget(base, tmp_path):
    command = ["sweep", base, "--budgets", "200,100", *SETTINGS, "-o", tmp_path / "sweep"]
    reluctant(*command)
    assert "search" in reluctant(*command, "--each", ok=False).stderr
    more = reluctant("sweep", base, "--budgets", "300,100", *SETTINGS, "-o", tmp_path / "sweep", ok=False).stderr
    assert "has searched for the budgets 200, 100 and not for 300" in more
    assert not (tmp_path / "sweep" / "snl-300").exists()
    fewer = reluctant("sweep", base, "--budgets", "100", *SETTINGS, "-o", tmp_path / "sweep", "--json").stdout
    assert [row["budget"] for row in json.loads(fewer)] == [100]
    all_of_it = json.loads(reluctant("evaluate", tmp_path / "sweep", "--json").stdout)
    assert [row["count"] for row in all_of_it] == [100, 200]
    assert "is a run itself" in reluctant("sweep", base, "--budgets", "9", *SETTINGS, "-o", base, ok=False).stderr
    again = reluctant("linearize", tmp_path / "sweep" / "snl-100", "--budget", "50", "-o", tmp_path / "x", ok=False).stderr
    assert "is linearized already; start from the network that it came from" in again


def test_the_same_network_by_another_path_is_the_same(base, tmp_path):
    command = ["--budgets", "0", "--method", "random", *SETTINGS, "-o", tmp_path / "zero", "--json"]
    made = json.loads(reluctant("sweep", base.name, *command, cwd=base.parent).stdout)
    again = json.loads(reluctant("sweep", base.resolve(), *command).stdout)
    assert made == again
    assert made[0]["count"] == 0
