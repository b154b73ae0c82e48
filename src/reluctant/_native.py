"""C code of ours, compiled on the machine that runs it, once."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shlex
import shutil
import subprocess
from pathlib import Path

from reluctant._files import replacing
from reluctant.errors import first_line

FLAGS = ("-O3", "-mavx2", "-mfma", "-ffp-contract=fast", "-fopenmp", "-shared", "-fPIC")


class NotCompiledError(Exception):
    """There is no library: why not."""


def compiled(source: Path) -> ctypes.CDLL:
    """Compile a file of C, or take what was compiled from it before, and load it.

    What was compiled stays in the user's cache, under a name that tells source and flags apart.

    Raises:
        NotCompiledError: there is no compiler, it fails, or there is no place to keep the library.
    """
    key = hashlib.sha256(source.read_bytes() + " ".join(FLAGS).encode()).hexdigest()[:16]
    try:
        library = _cache() / f"{source.stem}-{key}.so"
        if not library.exists():
            with replacing(library) as part:
                _compile(source, part)
        return ctypes.CDLL(str(library))
    except (OSError, RuntimeError) as error:  # the second: nobody knows where the user's home is
        raise NotCompiledError(first_line(error)) from error


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "reluctant"


def _compile(source: Path, target: Path) -> None:
    compiler = shlex.split(os.environ.get("CC", "")) or [c for c in ("cc", "gcc", "clang") if shutil.which(c)][:1]
    if not compiler:
        raise NotCompiledError("there is no C compiler")
    command = [*compiler, *FLAGS, str(source), "-o", str(target)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        said = ran.stderr.strip() or f"exit code {ran.returncode}"
        raise NotCompiledError(f"{compiler[0]} fails: {said.splitlines()[0]}")
