"""Offline material on disk: prepared ahead, private to its owner, used once.

A query takes material by leaving a mark first, flushed to the disk, and reading after. Whatever crashes in between, the
mark stays, and the same material is refused from then on: two inputs under one mask would tell the server their difference.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load as read_arrays
from safetensors.numpy import save as write_arrays

from reluctant.errors import MaterialError
from reluctant.private.fixed import Ring

_NAME = re.compile(r"[0-9a-f]{32}")


class Store:
    """A folder of one party's material for one plan.

    Args:
        folder: made if it is not there, and readable by its owner alone.
        version: of the plan.
    """

    def __init__(self, folder: Path, version: str) -> None:
        self._folder = folder / version
        try:
            for each in (folder, self._folder):
                each.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise MaterialError(f"material cannot be kept in {folder}: {error}") from error

    def put(self, name: str, arrays: dict[str, Ring]) -> None:
        """Keep material under a name that was never used."""
        path, mark = self._paths(name)
        if path.exists() or mark.exists():
            raise MaterialError(f"there has been material {name} already")
        part = path.with_suffix(".part")
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(write_arrays({key: np.ascontiguousarray(values) for key, values in arrays.items()}))
                file.flush()
                os.fsync(file.fileno())
            part.rename(path)
            self._flush()
        except OSError as error:
            raise MaterialError(f"material cannot be kept in {self._folder}: {error}") from error

    def take(self, name: str) -> dict[str, Ring]:
        """Mark material as spent, then return it.

        Raises:
            MaterialError: it is spent, or was never there, or cannot be read.
        """
        path, mark = self._paths(name)
        if not path.exists() and not mark.exists():  # whoever asks for names that never were leaves no marks
            raise MaterialError(f"there is no material {name}; prepare some first")
        try:
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            raise MaterialError(f"material {name} is spent; prepare new material") from None
        except OSError as error:
            raise MaterialError(f"material cannot be marked as spent in {self._folder}: {error}") from error
        self._flush()
        try:
            arrays = read_arrays(path.read_bytes())
            path.unlink()
        except (OSError, SafetensorError) as error:
            raise MaterialError(f"material {name} cannot be read ({error}); prepare new material") from error
        return dict(arrays)

    def ready(self) -> list[str]:
        """Return the names of material that is not spent, the oldest first."""
        found = []
        for path in self._folder.glob("*.material"):
            with suppress(FileNotFoundError):  # another process may take it meanwhile
                if not path.with_suffix(".spent").exists():
                    found.append((path.stat().st_mtime, path.stem))
        return [name for _, name in sorted(found)]

    def _paths(self, name: str) -> tuple[Path, Path]:
        if not _NAME.fullmatch(name):
            raise MaterialError(f"{name!r:.60} is not a name of material")
        return self._folder / f"{name}.material", self._folder / f"{name}.spent"

    def _flush(self) -> None:
        """Make sure that what the folder says is on the disk."""
        descriptor = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
