"""What the commands of `reluctant private` share."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from reluctant.errors import OptionError

Timeout = Annotated[float, typer.Option("--timeout", min=1, max=86400, help="Seconds to wait for the other side at most.")]
Material = Annotated[
    Path | None,
    typer.Option(
        "--material", help="A folder for offline material, private to this party; ~/.cache/reluctant if not given."
    ),
]
SimulateNetwork = Annotated[
    str | None,
    typer.Option("--simulate-network", help="Pretend a network: round-trip time and bandwidth, such as 40ms,100mbit."),
]


def parse_network(text: str) -> tuple[float, float]:
    """Read a round-trip time and a bandwidth.

    >>> parse_network("40ms,100mbit")
    (0.04, 100000000.0)
    """
    found = re.fullmatch(r"([0-9.]+)ms,([0-9.]+)mbit", text.replace(" ", "").lower())
    try:
        rtt, bandwidth = (float(part) for part in found.groups()) if found else (0.0, 0.0)
    except ValueError:
        bandwidth = 0.0
    if not bandwidth > 0:
        raise OptionError(
            f"the network '{text}' cannot be read; pass a round-trip time and a bandwidth, such as 40ms,100mbit"
        )
    return rtt / 1e3, bandwidth * 1e6


def material_folder(folder: Path | None, party: str) -> Path:
    """Return where a party keeps its material."""
    return folder if folder is not None else Path.home() / ".cache" / "reluctant" / party
