"""The commands as a person runs them: exit codes, what is printed where, what is left behind."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from reluctant import Mask, attach, binarize, models
from reluctant.cli import main

NETS = """
import torch
from torch import nn
from torch.nn import functional as F

def mine(width=8):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(5))

def half():
    return mine().half()

def gelu():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.GELU())

def broken():
    raise RuntimeError("no weights here")

def nothing():
    return 5

class Branch(nn.Module):
    def forward(self, x):
        return F.relu(x) if x.sum() > 0 else x
"""


@dataclass
class Ran:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder of the user's, and the current one; what it adds to this interpreter goes again."""
    (tmp_path / "nets.py").write_text(NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "nets", raising=False)
    return tmp_path


@pytest.fixture
def reluctant(monkeypatch, capsys):
    """Run a command in this process: starting a new one for each takes seconds."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["reluctant", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        printed = capsys.readouterr()
        return Ran(left.value.code or 0, printed.out, printed.err)

    return run


def test_the_installed_command_is_a_real_process(tmp_path):
    command = [Path(sys.executable).with_name("reluctant"), "count", "--arch", "small", "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert json.loads(ran.stdout)["total"] == 57344
    ran = subprocess.run([*command, "--budget", "0.1"], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr == (
        'reluctant: budget 0.1 is not a whole number of ReLUs; for that share of the network pass "10%"\n'
    )


def test_count_of_resnet18(reluctant):
    ran = reluctant("count", "--arch", "resnet18", "--input", "3x32x32", "--json")
    assert ran.returncode == 0, ran.stderr
    counted = json.loads(ran.stdout)
    assert counted["total"] == 491520
    assert counted["sites"][0] == {"name": "layer1.0.relu1", "shape": [64, 32, 32], "count": 65536}
    assert sum(site["count"] for site in counted["sites"]) == 491520
    assert counted["other_nonlinear"] == []


def test_count_of_anybodys_network(folder, reluctant):
    ran = reluctant(
        "count",
        "--model",
        "nets:mine",
        "--arch-arg",
        "width=4",
        "--input",
        "3x10x10",
        "--budget",
        "25%",
        "--json",
    )
    assert ran.returncode == 0, ran.stderr
    counted = json.loads(ran.stdout)
    assert (counted["total"], counted["budget"]) == (4 * 64, 64)
    assert counted["other_nonlinear"] == [{"name": "2", "kind": "max_pool2d", "count": 4 * 16}]
    table = reluctant("count", "--model", "nets:mine", "--input", "3x10x10")
    assert "max_pool2d" in table.stdout
    assert "512" in table.stdout


def test_count_of_what_a_mask_keeps(folder, reluctant):
    net = models.create("small")
    example = torch.zeros(1, 3, 32, 32)
    binarize(attach(net, example), 1000).save(folder / "mask.safetensors")
    ran = reluctant("count", "--arch", "small", "--mask", folder / "mask.safetensors", "--json")
    assert json.loads(ran.stdout)["total"] == 1000
    assert reluctant("count", "--arch", "small", "--mask", folder / "mask.safetensors").returncode == 0


def wrong_mask(folder):
    Mask({"relu": torch.ones(3, dtype=torch.bool)}).save(folder / "other.safetensors")
    return folder / "other.safetensors"


def cut_mask(folder):
    path = wrong_mask(folder)
    path.write_bytes(path.read_bytes()[:-1])
    return path


def empty_folder(folder):
    (folder / "empty").mkdir()
    return folder / "empty"


def damaged_folder(folder):
    (folder / "bad").mkdir()
    for name in ("train", "test"):
        (folder / "bad" / f"{name}-0.parquet").write_bytes(b"PAR1 and nothing else")
    return folder / "bad"


WRONG = {
    "negative budget": (["count", "--arch", "small", "--budget", "-5"], "negative"),
    "fraction": (["count", "--arch", "small", "--budget", "0.1"], '"10%"'),
    "too large": (["count", "--arch", "small", "--budget", "1M"], "above the network's 57344"),
    "no number": (["count", "--arch", "small", "--budget", "abc"], "cannot be read"),
    "110 percent": (["count", "--arch", "small", "--budget", "110%"], "at most 100%"),
    "wrong shape": (["count", "--arch", "small", "--input", "3x32"], "does not accept an example of shape 1×3×32"),
    "no input of a model": (["count", "--model", "nets:mine"], "pass it without the batch"),
    "pattern without a match": (["count", "--arch", "small", "--exclude", "layer9"], "matches no site"),
    "no shape": (["count", "--arch", "small", "--input", "big"], "such as 3x32x32"),
    "half": (["count", "--model", "nets:half", "--input", "3x8x8"], "is in float16"),
    "no relu": (["count", "--model", "nets:gelu", "--input", "3x8x8"], "calls no ReLU"),
    "untraceable": (["count", "--model", "nets:Branch", "--input", "3x8x8"], "nets.py:"),
    "raises": (["count", "--model", "nets:broken", "--input", "3x8x8"], "RuntimeError: no weights here"),
    "returns no module": (["count", "--model", "nets:nothing", "--input", "3x8x8"], "returned a int"),
    "no such factory": (["count", "--model", "nets:yours", "--input", "3x8x8"], "has no 'yours'; it has mine, half"),
    "no such module": (["count", "--model", "netz:mine", "--input", "3x8x8"], "'netz' cannot be imported"),
    "not a path": (["count", "--model", "nets.mine", "--input", "3x8x8"], "package.module:factory"),
    "neither": (["count"], "one of --arch and --model"),
    "both": (["count", "--arch", "small", "--model", "nets:mine", "--input", "3x8x8"], "one of --arch and --model"),
    "no such arch": (["count", "--arch", "resnet19"], "did you mean 'resnet18'"),
    "no such option": (["count", "--arch", "resnet18", "--arch-arg", "stem_relus=true"], "did you mean 'stem_relu'"),
    "not key=value": (["count", "--arch", "resnet18", "--arch-arg", "stem_relu"], "pass key=value"),
    "no mask": (["count", "--arch", "small", "--mask", "none.safetensors"], "there is no mask file"),
    "another network's mask": (["count", "--arch", "small", "--mask", wrong_mask], "has a site 'relu'"),
    "truncated mask": (["count", "--arch", "small", "--mask", cut_mask], "is damaged"),
    "empty data folder": (["data", "cifar10", "--data-dir", empty_folder], "put there"),
    "damaged data": (["data", "cifar10", "--data-dir", damaged_folder], "fetch it again"),
    "no such protocol": (["cost", "--arch", "small", "--protocol", "delfi"], "did you mean 'delphi'"),
    "no such network": (["cost", "--arch", "small", "--network", "lann"], "did you mean 'lan'"),
    "negative bandwidth": (["cost", "--arch", "small", "--bandwidth", "-1"], "the bandwidth is -1e+06 bits a second"),
    "negative round trip": (["cost", "--arch", "small", "--rtt", "-1"], "the round-trip time is -0.001 s"),
    "negative plaintext": (["cost", "--arch", "small", "--plaintext-seconds", "-1"], "pass 0 or more"),
    "negative latency": (["cost", "--arch", "small", "--latency", "-1"], "pass a number above 0"),
    "too fast": (
        ["cost", "--arch", "small", "--latency", "1e-3", "--plaintext-seconds", "1"],
        "without any ReLU it already takes 1 s",
    ),
    "cost of nothing": (["cost"], "pass a run, or one of --arch and --model"),
    "cost of no run": (["cost", "nowhere"], "is not a run folder"),
    "cost of both": (["cost", "nowhere", "--arch", "small"], "pass a run or a network, not both"),
    "too many relus": (["cost", "--arch", "small", "--relus", "1M"], "above the network's 57344"),
    "report of nothing": (["report", empty_folder], "there is no finished linearized run"),
    "report of no folder": (["report", "nowhere"], "is not a folder"),
    "no widths": (["theory", "split", "--widths", "a,b", "--budget", "3"], "pass whole numbers such as 50000,5000"),
    "a width of zero": (["theory", "split", "--widths", "0,5", "--budget", "3"], "not whole numbers above 0"),
    "too large a split": (["theory", "split", "--widths", "5,5", "--budget", "30"], "above the network's 10"),
    "no fractions": (["theory", "capacity", "--widths", "5,5", "--keep", "0.5"], "for each of the 2 layers"),
    "a fraction above one": (["theory", "capacity", "--widths", "5,5", "--keep", "0.5,2"], "a fraction of 0 … 1"),
    "one piece": (["theory", "capacity", "--widths", "5,5", "--keep", "1,1", "--pieces", "1"], "pass 2 or more"),
    "no such data": (["data", "mnist"], "unknown data set 'mnist'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_bad_input_is_one_sentence_and_exit_code_2(case, folder, reluctant):
    arguments, said = WRONG[case]
    arguments = [argument(folder) if callable(argument) else argument for argument in arguments]
    before = sorted(path.name for path in folder.rglob("*"))
    ran = reluctant(*arguments)
    assert ran.returncode == 2
    assert ran.stdout == ""
    lines = [line for line in ran.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, ran.stderr
    assert lines[0].startswith("reluctant: ")
    assert said in lines[0]
    after = sorted(path.name for path in folder.rglob("*") if "__pycache__" not in str(path))
    assert [name for name in after if name not in before] == []


def test_an_unknown_flag_and_no_command(reluctant):
    assert reluctant("count", "--archi", "small").returncode == 2
    assert "Usage" in reluctant("--help").stdout
    assert reluctant("--version").stdout.startswith("reluctant 0.")


def test_cost_of_resnet18_as_the_paper_has_it(reluctant):
    asked = ["cost", "--arch", "resnet18", "--num-classes", "100", "--relus", "49.9k", "--protocol", "snl-paper"]
    ran = reluctant(*asked, "--plaintext-seconds", "0.019", "--latency", "1", "--json")
    found = json.loads(ran.stdout)
    assert found["online"]["seconds"] == pytest.approx(1.0669)
    assert found["estimated"] is True
    assert found["relus"] == 49_900
    assert found["budget"] == 46_714
    shown = reluctant(*asked, "--sources").stdout
    assert "All figures are estimated" in shown
    assert "measured here" in shown
    assert "0.021 s for 1000 ReLUs" in " ".join(shown.split())


def test_theory_of_the_papers_example(reluctant):
    found = json.loads(reluctant("theory", "split", "--widths", "50000,5000", "--budget", "10000", "--json").stdout)
    assert found["paper"]["alpha"] == [0.14999, 0.5001]
    assert set(found["paper"]) == set(found["shared"]) == {"alpha", "kept", "bound", "interior"}
    assert found["shared"]["kept"] == [5000, 5000]
    bounds = json.loads(reluctant("theory", "capacity", "--widths", "50000,5000", "--keep", "0.15,0.5", "--json").stdout)
    assert bounds["bound"] == {"paper": 7500 * 7500 + 2500 + 2, "shared": 7501 * 2501}
    assert "5,000, 5,000" in reluctant("theory", "split", "--widths", "50000,5000", "--budget", "10000").stdout


def test_data_of_digits(reluctant):
    ran = reluctant("data", "digits", "--json")
    assert json.loads(ran.stdout)["images"] == {"train": 5028, "val": 720, "test": 1440}
    assert "5,028" in reluctant("data", "digits").stdout
