"""Pretrain, import, linearize, sweep and evaluate as a person runs them, on very little of `digits`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from reluctant import Mask, load, models
from reluctant.cli.demo import _between_two
from reluctant.private import engine

QUICK = ["pretrain.epochs=1", "pretrain.schedule=onecycle", "search.epochs=2", "finetune.epochs=1", "finetune.lr=0.01"]
SETTINGS = [part for setting in QUICK for part in ("--set", setting)]
BIN = Path(sys.executable).with_name("reluctant")


def reluctant(*arguments, ok=True, **options):
    ran = subprocess.run([BIN, *map(str, arguments)], capture_output=True, text=True, timeout=600, **options)
    assert (ran.returncode == 0) == ok, ran.stderr
    return ran


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "base"
    arch = ["--arch", "mlp", "--arch-arg", "hidden=[3000,1000]"]
    ran = reluctant("pretrain", "--data", "digits", *arch, "-o", folder, *SETTINGS, "--json")
    assert json.loads(ran.stdout)["total"] == 4000
    return folder


def test_linearize_and_evaluate(base, tmp_path):
    out = tmp_path / "out"
    ran = reluctant("linearize", base, "--budget", "10%", "-o", out, *SETTINGS, "--json", "--tensorboard")
    assert list(tmp_path.glob("out.logs/**/events.out.tfevents.*"))
    printed = json.loads(ran.stdout)
    keys = ["run", "total", "budget", "count", "granularity", "method", "schedule", "search_epochs", "seconds", "accuracy"]
    assert list(printed) == keys
    assert (printed["count"], printed["budget"], printed["search_epochs"]) == (400, 400, 2)
    assert {"base", "val", "test"} <= set(printed["accuracy"])
    loaded = load(out)
    assert loaded.mask.count == 400
    ran = reluctant("evaluate", base, out, "--part", "test", "--json")
    base_row, row = json.loads(ran.stdout)
    assert row["accuracy"] == pytest.approx(printed["accuracy"]["test"], abs=0.01)
    assert (base_row["count"], row["count"]) == (4000, 400)
    given = reluctant("linearize", base, "--mask", out, "-o", tmp_path / "given", *SETTINGS, "--json")
    assert (json.loads(given.stdout)["method"], load(tmp_path / "given").mask) == ("given", loaded.mask)
    reluctant("finetune", tmp_path / "given", "--epochs", "1", "-o", tmp_path / "longer")
    assert load(tmp_path / "longer").mask == loaded.mask
    again = reluctant("linearize", base, "--budget", "10%", "-o", out, *SETTINGS, ok=False)
    assert again.returncode == 2
    assert "holds a finished run" in again.stderr


def test_a_killed_process_loses_at_most_an_epoch(base, tmp_path):
    command = ["linearize", base, "--budget", "500", *SETTINGS, "--set", "search.epochs=4", "--set", "finetune.epochs=3"]
    reluctant(*command, "-o", tmp_path / "whole")
    for wanted in ("search.ckpt", "finetune.ckpt"):
        process = subprocess.Popen([BIN, *map(str, command), "-o", tmp_path / "run"], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        while not (tmp_path / "run" / wanted).exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not (tmp_path / "run" / "result.json").exists()
    reluctant(*command, "-o", tmp_path / "run")
    assert Mask.load(tmp_path / "run" / "mask.safetensors") == Mask.load(tmp_path / "whole" / "mask.safetensors")
    whole, run = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "run"))
    assert run["accuracy"] == whole["accuracy"]
    assert run["search_epochs"] == 4


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


def test_a_network_is_not_replaced_by_what_is_made_from_it(base):
    before = (base / "model.safetensors").read_bytes()
    refused = reluctant("linearize", base, "--budget", "10%", *SETTINGS, "--force", "-o", base, ok=False)
    assert refused.returncode == 2
    assert "cannot be replaced by what is made from it" in refused.stderr
    assert (base / "model.safetensors").read_bytes() == before


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


def test_demo(tmp_path):
    ran = reluctant("demo", "-o", tmp_path / "demo", *SETTINGS, "--json")
    printed = json.loads(ran.stdout)
    counts = [row["count"] for row in printed["frontier"]]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] == 0
    assert (tmp_path / "demo" / "base" / "model.safetensors").exists()
    for count in counts:
        for method in ("snl", "random"):
            assert Mask.load(tmp_path / "demo" / f"{method}-{count}" / "mask.safetensors").count == count
    shown = reluctant("demo", "-o", tmp_path / "demo", *SETTINGS).stdout
    assert "The frontier" in shown
    assert "reluctant.linearize(model" in shown
    assert "Between two parties" in shown or not engine.available()
    private = {Path(row["run"]).name: row for row in printed["private"]}
    if engine.available():
        assert all(row["agree"] == row["images"] == 5 for row in private.values())
        online = {name: row["online"]["bytes_sent"] + row["online"]["bytes_received"] for name, row in private.items()}
        assert online["snl-500"] < online["base"] / 5


def test_demo_without_spu(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "available", lambda: False)
    said = []
    assert _between_two([tmp_path], said.append, force=False) == []
    assert "SPU is not installed" in said[0]


def test_import(tmp_path):
    torch.manual_seed(3)
    net = models.create("small", input_shape=(1, 16, 16))
    torch.save({"state_dict": {f"module.{k}": v for k, v in net.state_dict().items()}}, tmp_path / "net.th")
    command = [
        "import",
        "--arch",
        "small",
        "--weights",
        tmp_path / "net.th",
        "--data",
        "digits",
        "--mean",
        "0.1",
        "--std",
        "0.3",
        "--validation",
        "0.05",
    ]
    reluctant(*command, "-o", tmp_path / "run")
    assert torch.equal(load_file(tmp_path / "run" / "model.safetensors")["fc.weight"], net.fc.weight)
    spec = json.loads((tmp_path / "run" / "run.json").read_text())
    assert spec["data"]["mean"] == [0.1]
    ran = reluctant("linearize", tmp_path / "run", "-b", "9", "-o", tmp_path / "out", *SETTINGS, "--scratch", "--zero-out")
    assert "9 of 14,336 ReLUs" in ran.stdout.replace("\n", " ")
    assert json.loads((tmp_path / "out" / "run.json").read_text())["data"] == spec["data"]
    assert spec["data"]["validation"] == 0.05


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["linearize", "{base}", "--budget", "0.1"], '"10%"'),
        (["linearize", "{base}", "--budget", "5", "--set", "search.epoch=3"], "did you mean 'search.epochs'"),
        (["linearize", "{base}", "--budget", "5", "--set", "epochs"], "pass key=value"),
        (["linearize", "{base}", "--budget", "5", "--method", "snlx"], "did you mean 'snl'"),
        (["linearize", "{base}", "--budget", "5", "--granularity", "pixels"], "did you mean 'pixel'"),
        (["linearize", "{base}", "--budget", "5", "--schedule", "papers"], "did you mean 'paper'"),
        (["linearize", "nowhere", "--budget", "5"], "is not a run folder"),
        (["linearize", "{base}"], "pass either a budget"),
        (["linearize", "{base}", "--mask", "{base}"], "there is no mask file"),
        (["linearize", "{base}", "--budget", "5", "--recipe", "labtop"], "did you mean 'laptop'"),
        (["sweep", "{base}", "--budgets", "5", "--vary", "penalty"], "pass key=value,value"),
        (["sweep", "{base}", "--budgets", "5", "--vary", "penaltie=1,2"], "did you mean 'penalty'"),
        (["pretrain", "--data", "digits", "--arch", "smal"], "did you mean 'small'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_input(base, tmp_path, arguments, said):
    arguments = [argument.format(base=base) for argument in arguments]
    ran = reluctant(*arguments, "-o", tmp_path / "out", ok=False)
    assert ran.returncode == 2
    assert said in ran.stderr
    assert len(ran.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists()


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


def test_count_reads_a_run(base):
    assert json.loads(reluctant("count", base, "--json").stdout)["total"] > 0
    unmet = reluctant("count", base, "--exclude", "layers.1", "--budget", "1").stdout
    assert "It cannot be met" in unmet
    failed = reluctant("linearize", base, "--exclude", "layers.1", "--budget", "1", "-o", base.parent / "no", ok=False)
    assert "below the" in failed.stderr
    assert not (base.parent / "no").exists()
