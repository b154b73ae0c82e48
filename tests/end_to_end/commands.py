"""Commands as a person runs them, with settings that train very little."""

import subprocess
import sys
from pathlib import Path

QUICK = ["pretrain.epochs=1", "pretrain.schedule=onecycle", "search.epochs=2", "finetune.epochs=1", "finetune.lr=0.01"]
SETTINGS = [part for setting in QUICK for part in ("--set", setting)]
BIN = Path(sys.executable).with_name("reluctant")


def reluctant(*arguments, ok=True, **options):
    ran = subprocess.run([BIN, *map(str, arguments)], capture_output=True, text=True, timeout=600, **options)
    assert (ran.returncode == 0) == ok, ran.stderr
    return ran
