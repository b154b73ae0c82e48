"""What teachers have said, kept in a file.

Two runs with one seed see the same images in the same order, whatever their budgets and masks, and their teacher says the
same to both. An answer is known by the digests of who said it and to what: nothing has to be told about seeds, epochs or
data.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from reluctant.errors import OptionError, first_line

PATIENCE = 60.0
"""Seconds to wait for another process that writes."""


class Answers:
    """Logits by who said them and to what, in a file that several processes may use at once.

    Args:
        path: of the file; it is made where it is not there.

    Raises:
        OptionError: the file cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        with self._explained():
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = sqlite3.connect(self._path, timeout=PATIENCE, isolation_level=None)
            self._file.execute("PRAGMA journal_mode=WAL")  # readers need not wait, and a power cut damages nothing
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.execute("CREATE TABLE IF NOT EXISTS answers (said BLOB PRIMARY KEY, width INTEGER, logits BLOB)")

    def find(self, key: bytes) -> Tensor | None:
        """Return the logits that were kept under a key."""
        with self._explained():
            row = self._file.execute("SELECT width, logits FROM answers WHERE said = ?", (key,)).fetchone()
        return None if row is None else torch.from_numpy(np.frombuffer(row[1], np.float32).reshape(-1, row[0]).copy())

    def keep(self, key: bytes, logits: Tensor) -> None:
        """Keep logits, one row for an example."""
        values = logits.float().cpu().contiguous().numpy()
        with self._explained():
            self._file.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?)", (key, values.shape[-1], values.tobytes()))

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise OptionError(
                f"the answers of teachers cannot be kept in {self._path}: {first_line(error)}; pass another file, or none"
            ) from error


def digest_of_network(network: nn.Module, *computed: Any) -> bytes:
    """Return what tells a network, and the way it is computed, from others."""
    made = hashlib.blake2b(repr((network, computed)).encode(), digest_size=16)
    for name, tensor in network.state_dict().items():
        made.update(name.encode())
        _add(made, tensor)
    return made.digest()


def key_of(network: bytes, inputs: Any) -> bytes:
    """Return the key of what a network says to some inputs."""
    made = hashlib.blake2b(network, digest_size=16)
    leaves, structure = pytree.tree_flatten(inputs)
    made.update(repr(structure).encode())
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            _add(made, leaf)
        else:
            made.update(repr(leaf).encode())
    return made.digest()


def _add(made: Any, tensor: Tensor) -> None:
    made.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    ordered = tensor.movedim(1, -1) if last else tensor
    made.update(ordered.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy())
