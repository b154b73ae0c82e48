"""Groups of commands, all with the same manners."""

from __future__ import annotations

from typing import Any

import typer


def group(name: str, about: str, **options: Any) -> typer.Typer:
    """Make a group: shows its help when it is called alone, also with -h, and errors as they are."""
    return typer.Typer(
        name=name,
        help=about,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        **options,
    )
