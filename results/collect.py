"""Keep what is small of finished runs: what was asked for, what came out, every epoch, the mask. No weights, no data.

    python results/collect.py runs/real results/cifar10

What is kept is still a run folder: `reluctant report results/cifar10` draws its figures, `reluctant.Mask.load` reads its
masks, and only what weights would be needed for is missing.
"""

import json
import shutil
import sys
from copy import deepcopy
from pathlib import Path

from reluctant.errors import ReluctantError, RunError
from reluctant.runs import finished_below

KEPT = ("recipe.toml", "environment.json", "metrics.jsonl", "mask.safetensors", "result.json", "private-bench.json")


def collect(source: Path, target: Path) -> None:
    """Copy the finished linearizations below a folder.

    Raises:
        RunError: there are none, one cannot be read, or the target is no other folder.
    """
    runs = [run for run in finished_below(source) if run.spec["kind"] == "linearize"]
    if not runs:
        raise RunError(f"there is no finished linearization below {source}; pass the folder that runs were written to")
    if target.exists() and (not target.is_dir() or target.samefile(source)):
        raise RunError(
            f"{target} is {'the folder of the runs' if target.is_dir() else 'a file'}; pass another folder to keep them in"
        )
    for run in runs:
        spec = deepcopy(dict(run.spec))
        spec.get("data", {}).pop("dir", None)  # where the data lay says nothing to anybody else
        folder = target / run.folder.relative_to(source)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text(json.dumps(spec, indent=2) + "\n")
        for name in KEPT:
            if (run.folder / name).exists():
                shutil.copyfile(run.folder / name, folder / name)
        print(folder)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.stderr.write("usage: python results/collect.py RUNS KEPT\n")
        sys.exit(2)
    try:
        collect(Path(sys.argv[1]), Path(sys.argv[2]))
    except ReluctantError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
