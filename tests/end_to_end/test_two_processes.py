import os
import subprocess
import sys
from pathlib import Path

from reluctant import Mask

ROOT = Path(__file__).parents[2]


def test_two_processes_find_one_and_the_same_mask(tmp_path):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "ACCELERATE_USE_CPU": "1"}
    script = ROOT / "tests" / "end_to_end" / "two_processes.py"
    ran = subprocess.run(
        [*command, script, str(tmp_path)], capture_output=True, text=True, timeout=300, env=environment, cwd=tmp_path
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    first, second = (Mask.load(tmp_path / f"mask-{rank}.safetensors") for rank in (0, 1))
    assert first == second
    assert first.count == 40
    assert (tmp_path / "accuracy-0").read_text() == (tmp_path / "accuracy-1").read_text()
    assert Mask.load(tmp_path / "run" / "mask.safetensors") == first
