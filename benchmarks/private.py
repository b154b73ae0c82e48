"""What private inference of a linearized network costs online, against the full one: two processes over loopback each.

The two networks take turns, so that both see the same machine; seconds are medians over all queries, bytes repeat exactly.
Run: python benchmarks/private.py FULL_RUN LINEARIZED_RUN --images 20
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from pathlib import Path
from typing import Any

from reluctant.private.bench import Options, bench


def measure(runs: list[Path], images: int, turns: int, data_dir: Path | None) -> dict[str, dict[str, Any]]:
    """Bench the runs in turns, and return what is worth a table for each."""
    turned: dict[str, list[dict[str, Any]]] = {str(run): [] for run in runs}
    each = math.ceil(images / turns)
    for turn in range(turns):
        for run in runs:
            turned[str(run)].append(bench(run, Options(images=each, skip=turn * each, data_dir=data_dir)))
    return {run: summary(found) for run, found in turned.items()}


def summary(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the turns of one network together."""
    last = turns[-1]
    relu_steps = [step for step in last["steps"]["online"] if step["kind"] == "relu"]
    online, offline = (statistics.median(turn[phase]["seconds"] for turn in turns) for phase in ("online", "offline"))
    return {
        "relus": last["relus"],
        "images": sum(turn["images"] for turn in turns),
        "agree": sum(turn["agree"] for turn in turns),
        "agree_with_torch": sum(turn["agree_with_torch"] for turn in turns),
        "max_logit_error": max(turn["max_logit_error"] for turn in turns),
        "max_relative_error": max(turn["max_relative_error"] for turn in turns),
        "expected_wraps": last["expected_wraps"],
        "online_bytes": both_ways(last["online"]),
        "relu_bytes": sum(both_ways(step) for step in relu_steps),
        "online_seconds": online,
        "offline_bytes": both_ways(last["offline"]),
        "offline_seconds": offline,
        "setup_seconds": statistics.median(turn["setup"]["seconds"] for turn in turns),
        "setup_bytes": both_ways(last["setup"]),
        "peak_memory_bytes": {
            party: max(turn["peak_memory_bytes"][party] for turn in turns) for party in ("server", "client")
        },
    }


def both_ways(phase: dict[str, Any]) -> float:
    """Return the bytes of a phase, sent and received."""
    return float(phase["bytes_sent"] + phase["bytes_received"])


def ratios(full: dict[str, Any], few: dict[str, Any]) -> dict[str, float]:
    """Compare a linearized network with the full one."""
    return {
        "relus": few["relus"] / full["relus"],
        "online bytes": few["online_bytes"] / full["online_bytes"],
        "ReLU bytes per ReLU": (few["relu_bytes"] / few["relus"]) / (full["relu_bytes"] / full["relus"]),
        "online seconds": few["online_seconds"] / full["online_seconds"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="the full network's run first")
    parser.add_argument("--images", type=int, default=20)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.runs, options.images, options.turns, options.data_dir)
    full, *others = found
    compared = {other: ratios(found[full], found[other]) for other in others}
    if options.json:
        print(json.dumps({"runs": found, "ratios": compared}, indent=2))
        return
    for run, each in found.items():
        print(f"\n{run}: {each['relus']:,} ReLUs")
        print(f"  same class as plain fixed point {each['agree']}/{each['images']}, as torch {each['agree_with_torch']}")
        print(
            f"  logits differ by {each['max_logit_error']:.2g}; from torch {each['max_relative_error']:.2g} of the largest"
        )
        for phase in ("setup", "offline", "online"):
            print(f"  {phase:<8} {each[f'{phase}_seconds']:8.3f} s {each[f'{phase}_bytes'] / 1e6:10.3f} MB")
        per_relu = each["relu_bytes"] / max(1, each["relus"])
        print(
            f"  {per_relu:.1f} bytes a ReLU, {1e6 * each['online_seconds'] / max(1, each['relus']):.1f} ms online for 1000"
        )
        memory = each["peak_memory_bytes"]
        print(f"  memory: server {memory['server'] / 1e9:.2f} GB, client {memory['client'] / 1e9:.2f} GB")
    for run, each in compared.items():
        print(f"\n{run} / {full}: " + ", ".join(f"{name} {ratio:.4f}" for name, ratio in each.items()))


if __name__ == "__main__":
    main()
