"""What a run depends on beside its recipe: versions and the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch


def environment() -> dict[str, Any]:
    """Return what a run depends on beside its recipe."""
    return {
        "reluctant": version("reluctant"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else _cpu(),
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
    }


def _cpu() -> str:
    """Return the CPU's name and the widest vectors that torch uses on it, such as `AMD EPYC, AVX2`."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(named, platform.processor() or platform.machine())
    return f"{name}, {torch.backends.cpu.get_cpu_capability()}"


def _commit() -> str | None:
    """The commit of the package, where it runs from a checkout."""
    try:
        ran = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip()
