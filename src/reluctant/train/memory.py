"""Keep freed memory for the next step instead of giving it back to the system.

glibc gives every block above 32 MB back as soon as it is freed, and gets it page by page again a moment later. A training
step frees and wants the same blocks over and over: keeping them made a float32 step of ResNet-18 a fifth faster.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
_THEIRS = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD")
"""Who sets these has decided about memory already."""


@cache
def keep_freed_memory() -> bool:
    """Ask the allocator to, where it is glibc's and nobody has asked it for anything else; tell whether it will."""
    if not sys.platform.startswith("linux") or any(name.startswith(_THEIRS) for name in os.environ):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # musl has none
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, 1 << 30) and mallopt(_M_TRIM_THRESHOLD, (1 << 31) - 1))
