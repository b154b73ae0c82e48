"""Which precision a device trains in."""

from __future__ import annotations

import subprocess
import sys
from functools import cache

import torch

from reluctant.errors import OptionError, unknown

PRECISIONS = ("auto", "float32", "bfloat16")


def choose(precision: str, device: torch.device) -> torch.dtype:
    """Return the dtype of a precision; `auto` is bfloat16 where the hardware multiplies matrices in it, else float32.

    Raises:
        OptionError: there is no such precision, or it does not work here.
    """
    if precision not in PRECISIONS:
        raise unknown("precision", precision, PRECISIONS)
    if precision == "auto":
        return torch.bfloat16 if _is_fast(device) else torch.float32
    if precision == "bfloat16" and device.type == "cpu" and not _works_on_this_cpu():
        raise OptionError(
            "bfloat16 does not work on this CPU, which announces AMX and does not let it be used; "
            "use float32, or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 before Python starts"
        )
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[precision]


def _is_fast(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return device.type == "cpu" and _announces_amx() and _works_on_this_cpu()


def _announces_amx() -> bool:
    return bool(torch.cpu._is_amx_tile_supported())


@cache
def _works_on_this_cpu() -> bool:
    """Try a matrix product in a process of its own: in some virtual machines it is an illegal instruction."""
    if not _announces_amx():
        return True
    product = "import torch; a = torch.ones(128, 512).bfloat16(); torch.nn.functional.linear(a, a)"
    return subprocess.run([sys.executable, "-c", product], capture_output=True, check=False).returncode == 0
