"""Pretrain, import, linearize and evaluate as a person runs them, on very little of `digits`."""

import json
import os
import signal
import subprocess
import time

import pytest
import torch
from safetensors.torch import load_file

from reluctant import Mask, load, models
from tests.end_to_end.commands import BIN, SETTINGS, reluctant


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
    (out / "model.safetensors").unlink()  # as results are kept
    assert json.loads(reluctant("count", out, "--json").stdout)["total"] == 400
    refused = reluctant("evaluate", out, ok=False)
    assert (refused.returncode, "was kept without its weights" in refused.stderr) == (2, True)


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


def test_a_network_is_not_replaced_by_what_is_made_from_it(base):
    before = (base / "model.safetensors").read_bytes()
    refused = reluctant("linearize", base, "--budget", "10%", *SETTINGS, "--force", "-o", base, ok=False)
    assert refused.returncode == 2
    assert "cannot be replaced by what is made from it" in refused.stderr
    assert (base / "model.safetensors").read_bytes() == before


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


def test_count_reads_a_run(base):
    assert json.loads(reluctant("count", base, "--json").stdout)["total"] > 0
    unmet = reluctant("count", base, "--exclude", "layers.1", "--budget", "1").stdout
    assert "It cannot be met" in unmet
    failed = reluctant("linearize", base, "--exclude", "layers.1", "--budget", "1", "-o", base.parent / "no", ok=False)
    assert "below the" in failed.stderr
    assert not (base.parent / "no").exists()
