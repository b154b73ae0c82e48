"""The run folder: everything a run was made of and everything it gave.

run.json              what was asked for: the network, the data, the budget, the method, the seed
recipe.toml           the hyper-parameters
environment.json      versions, device, threads, commit
metrics.jsonl         one row for every epoch
search.ckpt, …        while it runs: the last epoch of a phase, written whole, and the one before it
mask.safetensors      the mask
searched.safetensors  the network's tensors as the search left them
model.safetensors     the network's tensors
result.json           the figures; a run that has it is finished
private-bench.json    what private inference was measured to cost, if it was
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from reluctant import recipes
from reluctant._environment import environment
from reluctant._files import replacing
from reluctant._same import check_same
from reluctant.errors import RunBusyError, RunError, first_line
from reluctant.mask import Mask
from reluctant.recipes import Recipe

log = logging.getLogger(__name__)

FORMAT = 1
PRIVATE_COST = "private-bench.json"


@dataclass(frozen=True)
class Run:
    """A folder with a run in it, finished or not."""

    folder: Path
    spec: dict[str, Any]
    recipe: Recipe

    @classmethod
    def begin(
        cls,
        folder: str | Path,
        spec: Mapping[str, Any],
        recipe: Recipe,
        *,
        force: bool = False,
        keep_finished: bool = False,
        computed: Mapping[str, Any] | None = None,
    ) -> Run:
        """Start a run in a folder, or go on with the same one that was interrupted there.

        Args:
            folder: of the run.
            spec: what is asked for.
            recipe: with which hyper-parameters.
            force: replace a run that is there.
            keep_finished: return the same run also where it is finished.
            computed: how it is computed, for its environment.

        Raises:
            RunError: the folder has a finished run, another one, or the one that this is made from.
        """
        folder = Path(folder)
        if "parent" in spec:
            check_elsewhere(folder, spec["parent"])
        wanted = json.loads(json.dumps({"format": FORMAT, **spec}))
        begun = folder / "run.json"
        if force and begun.exists():
            with lock(folder):  # not under the hands of a process that is at work there
                _empty(folder)
        elif begun.exists():
            run = cls.open(folder)
            if run.finished and not keep_finished:
                raise RunError(
                    f"{folder} holds a finished run; pass another folder, or replace it with --force (force=True)"
                )
            check_same(folder, (run.spec, run.recipe), (wanted, recipe))
            if run.finished:
                return run
        elif folder.exists() and not folder.is_dir():
            raise RunError(f"{folder} is a file; pass a folder")
        elif folder.is_dir() and any(map(_is_strange, folder.iterdir())) and not begun.exists():
            raise RunError(f"{folder} has files in it but no run; pass a new folder")
        run = cls(folder, wanted, recipe)
        # run.json comes last: where it is, another process that begins the same run finds the rest too.
        run._write("recipe.toml", recipes.write(recipe))
        run._write("environment.json", json.dumps(environment() | dict(computed or {}), indent=2))
        run._write("run.json", json.dumps(wanted, indent=2))
        return run

    @classmethod
    def open(cls, folder: str | Path) -> Run:
        """Open a run that is there.

        Raises:
            RunError: there is none, or it cannot be read.
        """
        folder = Path(folder)
        if not (folder / "run.json").is_file():
            below = [path.parent.name for path in sorted(folder.glob("*/run.json"))] if folder.is_dir() else []
            one = f"one of those in it: {', '.join(below)}" if below else "one that reluctant made"
            raise RunError(f"{folder} is not a run folder (it has no run.json); pass {one}")
        try:
            spec = json.loads((folder / "run.json").read_text())
            recipe = recipes.load(folder / "recipe.toml")
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"the run in {folder} cannot be read: {error}") from error
        if not isinstance(spec, dict):
            raise RunError(f"the run in {folder} cannot be read: its run.json is not an object")
        if spec.get("format") != FORMAT:
            raise RunError(f"{folder} is a run of format {spec.get('format')}, this reluctant reads {FORMAT}; upgrade it")
        return cls(folder, spec, recipe)

    @property
    def finished(self) -> bool:
        """Whether it has come to its end."""
        return (self.folder / "result.json").exists()

    def require_finished(self) -> None:
        """Refuse a run that has not come to its end."""
        if not self.finished:
            raise RunError(f"the run in {self.folder} is not finished; give the command that began it again to go on")

    @property
    def result(self) -> dict[str, Any]:
        """The figures of a finished run."""
        self.require_finished()
        return self._read("result.json", f"the result of {self.folder}")

    @property
    def private_cost(self) -> dict[str, Any] | None:
        """What private inference was measured to cost, if it was."""
        if not (self.folder / PRIVATE_COST).is_file():
            return None
        return self._read(PRIVATE_COST, f"what was measured in {self.folder} (reluctant private bench measures it again)")

    def digest(self, name: str = "model") -> str:
        """Return what tells this run's weights from any others."""
        try:
            return hashlib.sha256((self.folder / f"{name}.safetensors").read_bytes()).hexdigest()[:16]
        except OSError as error:
            raise RunError(f"the weights of {self.folder} cannot be read: {error}") from error

    def keep_private_cost(self, found: Mapping[str, Any]) -> None:
        """Write down what private inference was measured to cost."""
        self._write(PRIVATE_COST, json.dumps(found, indent=2))

    def lock(self) -> Any:
        """Keep other processes out for as long as the returned file is open."""
        return lock(self.folder)

    def load(self, phase: str) -> dict[str, Any] | None:
        """Return the state of the last epoch of a phase."""
        path = self.folder / f"{phase}.ckpt"
        if not path.exists():
            return None
        try:
            state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
        except Exception as error:  # torch.load has many ways to say that a file is damaged
            previous = self.folder / f"{phase}.ckpt.previous"
            to_do = (
                f"move {previous.name} there to go on one epoch earlier"
                if previous.exists()
                else "begin again with --force"
            )
            raise RunError(f"the checkpoint {path} is damaged ({first_line(error)}); {to_do}") from error
        return state

    def save(self, phase: str, state: dict[str, Any]) -> None:
        """Write the state of an epoch, whole or not at all, and keep the one before it."""
        path = self.folder / f"{phase}.ckpt"
        try:
            with replacing(path) as part:
                torch.save(state, part)
                if path.exists():
                    previous = self.folder / f"{phase}.ckpt.previous"
                    previous.unlink(missing_ok=True)
                    os.link(path, previous)
        except (OSError, RuntimeError) as error:
            raise RunError(
                f"the checkpoint {path} cannot be written ({first_line(error)}); the one before it is intact, "
                "so give the same command again when there is room"
            ) from error

    def log(self, row: Mapping[str, Any]) -> None:
        """Add a row to the metrics."""
        with (self.folder / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def replace_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write all rows anew."""
        self._write("metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))

    def drop_metrics(self, phase: str, *, after: int) -> None:
        """Forget the rows of a phase from an epoch on: those that its checkpoint does not know."""
        self.replace_metrics(row for row in self.metrics() if row.get("phase") != phase or row.get("epoch", 0) < after)

    def metrics(self) -> list[dict[str, Any]]:
        """Return all rows; a last one that was cut off is left out."""
        path = self.folder / "metrics.jsonl"
        rows = []
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def save_network(self, model: nn.Module, mask: Mask | None, name: str = "model") -> None:
        """Write a network's tensors, and its mask."""
        if mask is not None:
            mask.save(self.folder / "mask.safetensors")
        try:
            with replacing(self.folder / f"{name}.safetensors") as part:
                save_model(model, str(part))
        except (OSError, SafetensorError) as error:
            raise RunError(f"the network cannot be written to {self.folder}: {first_line(error)}") from error

    def require_weights(self, name: str = "model") -> Path:
        """Return the file of a network's tensors; refuse a run that has none."""
        path = self.folder / f"{name}.safetensors"
        if not path.is_file():
            self.require_finished()
            has_mask = (self.folder / "mask.safetensors").is_file()
            raise RunError(
                f"{self.folder} has no {path.name}: it was kept without its weights, or they were removed; "
                + (
                    "reluctant linearize BASE --mask with this folder makes a network with its mask"
                    if has_mask
                    else "make it again with --force"
                )
            )
        return path

    def load_tensors_(self, model: nn.Module, name: str = "model") -> None:
        """Read the tensors of a network of the same architecture and mask into it."""
        path = self.require_weights(name)
        try:
            load_model(model, path)
        except (OSError, SafetensorError, RuntimeError) as error:
            raise RunError(f"{path} is damaged or of another network: {first_line(error)}") from error

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the figures, and remove the checkpoints."""
        self._write("result.json", json.dumps(result, indent=2))
        for path in [*self.folder.glob("*.ckpt"), *self.folder.glob("*.ckpt.previous")]:
            path.unlink()

    def _read(self, name: str, what: str) -> dict[str, Any]:
        try:
            found = json.loads((self.folder / name).read_text())
        except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
            raise RunError(f"{what} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise RunError(f"{what} cannot be read: it is not an object")
        return found

    def _write(self, name: str, text: str) -> None:
        try:
            with replacing(self.folder / name) as part:
                part.write_text(text)
        except OSError as error:
            raise RunError(f"{self.folder / name} cannot be written: {error}") from error


def lock(folder: Path) -> Any:
    """Keep other processes out of a run's folder for as long as the returned file is open.

    Raises:
        RunBusyError: one is in there.
    """
    file = (folder / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        file.close()
        raise RunBusyError(f"another process is at work in {folder}; wait for it, or pass another folder") from None
    return file


def check_elsewhere(folder: Path, source: str | Path) -> None:
    """See that a folder can be written and emptied without losing the run that goes into it.

    Raises:
        RunError: it is that run's folder, or one around it.
    """
    if Path(source).resolve().is_relative_to(folder.resolve()):
        raise RunError(f"{source} cannot be replaced by what is made from it; pass another folder as --output")


def finished_below(folder: Path) -> list[Run]:
    """Return the finished runs in a folder and in those below it; those that are not finished are named in a warning.

    Raises:
        RunError: it is not a folder, or a run in it cannot be read.
    """
    if not folder.is_dir():
        raise RunError(f"{folder} is not a folder; pass run folders, or a folder that holds some")
    runs = [Run.open(path.parent) for path in sorted(folder.glob("**/run.json"))]
    for run in runs:
        if not run.finished:
            log.warning("%s is not finished and left out", run.folder)
    return [run for run in runs if run.finished]


def _is_strange(path: Path) -> bool:
    """Tell whether a file is none of those that a run begins with, whole or half-written."""
    return re.fullmatch(r"recipe\.toml|environment\.json|\.(recipe|environment|run)\.\w+\..*\.part", path.name) is None


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
