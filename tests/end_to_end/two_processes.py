"""Run by test_two_processes.py under torchrun: a linearization whose mask every process writes down."""

import sys
from pathlib import Path

from accelerate import PartialState

import reluctant
from tests import toys


def main(folder: Path) -> None:
    result = reluctant.linearize(
        toys.toy(),
        budget=40,
        train=toys.batches(shuffle=True),
        val=toys.batches(32, seed=1),
        recipe=toys.recipe(),
        run_dir=folder / "run",
    )
    rank = PartialState().process_index
    result.mask.save(folder / f"mask-{rank}.safetensors")
    (folder / f"accuracy-{rank}").write_text(str(result.accuracy))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
