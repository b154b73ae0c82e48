"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import math
import os
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_SPEAKS = os.environ.get("RANK", "0") == "0"
"""Of several processes under torchrun, the first."""

console = Console(quiet=not _SPEAKS, soft_wrap=not sys.stdout.isatty())
"""A pipe or a file gets every sentence and every row on a line of its own."""

messages = Console(stderr=True, quiet=not _SPEAKS)


def print_json(content: Any) -> None:
    """Print one JSON value."""
    if _SPEAKS:
        typer.echo(json.dumps(content, indent=2, ensure_ascii=False))


def table(*columns: str, title: str | None = None) -> Table:
    """Start a table; a column whose name begins with # holds numbers."""
    made = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    for column in columns:
        made.add_column(column.lstrip("#"), justify="right" if column.startswith("#") else "left", no_wrap=True)
    return made


def octets(size: float | None) -> str:
    """Spell a number of bytes.

    >>> octets(999), octets(1_234_567), octets(None)
    ('999 B', '1.23 MB', '–')
    """
    if size is None:
        return "–"
    power = max(0, min(3, int(math.log10(max(size, 1))) // 3))
    return f"{size:.0f} B" if power == 0 else f"{size / 1000**power:.3g} {('kB', 'MB', 'GB')[power - 1]}"


def percent(part: float, whole: float) -> str:
    """Spell a share.

    >>> percent(1, 8), percent(0, 0)
    ('12.5 %', '–')
    """
    return f"{100 * part / whole:.1f} %" if whole else "–"
