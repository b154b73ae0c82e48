import json
import os
import subprocess
import sys
from pathlib import Path

from reluctant import Mask

ROOT = Path(__file__).parents[2]


def in_two_processes(folder, *command):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "1"}
    ran = subprocess.run([*torchrun, *command], capture_output=True, text=True, timeout=300, env=environment, cwd=folder)
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran


def test_two_processes_find_one_and_the_same_mask(tmp_path):
    in_two_processes(tmp_path, ROOT / "tests" / "end_to_end" / "two_processes.py", str(tmp_path))
    first, second = (Mask.load(tmp_path / f"mask-{rank}.safetensors") for rank in (0, 1))
    assert first == second
    assert first.count == 40
    assert (tmp_path / "accuracy-0").read_text() == (tmp_path / "accuracy-1").read_text()
    assert Mask.load(tmp_path / "run" / "mask.safetensors") == first


def test_the_commands_work_in_two_processes_and_one_of_them_speaks(tmp_path):
    short = ["--recipe", "demo", "--set", "pretrain.epochs=1", "--set", "search.epochs=1", "--set", "finetune.epochs=1"]
    begin = ["-m", "reluctant", "pretrain", "--data", "digits", "--arch", "mlp", "-o", "base", *short, "--json"]
    trained = json.loads(in_two_processes(tmp_path, *begin).stdout)
    budget = trained["total"] // 2
    go_on = ["-m", "reluctant", "sweep", "base", "-b", str(budget), "-o", "sweep", *short, "--json"]
    (swept,) = json.loads(in_two_processes(tmp_path, *go_on).stdout)
    assert swept["count"] == budget == Mask.load(tmp_path / "sweep" / f"snl-{budget}" / "mask.safetensors").count
    rows = (tmp_path / "sweep" / f"snl-{budget}" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(row)["phase"] for row in rows] == ["search", "finetune"]
