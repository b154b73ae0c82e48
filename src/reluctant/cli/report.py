"""`reluctant report`: a page that a person would rather look at than read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reluctant import cost as costs
from reluctant.cli._show import Json, console, messages, print_json


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Finished runs, or folders full of them.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    figures: Annotated[
        Path | None,
        typer.Option("--figures", help="A folder for the figures (SVG, PDF) and the tables (Markdown, LaTeX, CSV)."),
    ] = None,
    protocol: Annotated[
        str, typer.Option("--protocol", help=f"Estimate the cost of {', '.join(costs.names())}, or of a TOML file.")
    ] = "delphi",
    network: Annotated[str, typer.Option("--network", help=f"One of {', '.join(costs.NETWORKS)}.")] = "lan",
    as_json: Json = False,
) -> None:
    """Draw the frontier of runs, where their ReLUs are, how the search went and what a query costs, on one page.

    For instance: reluctant report runs/sweep -o report.html
    """
    from reluctant.report import report as write  # matplotlib takes a second

    with messages.status("drawing"):
        written = write(runs, output, protocol=protocol, network=network, figures=figures)
    if as_json:
        print_json({"report": str(written[0]), "files": [str(path) for path in written[1:]]})
        return
    console.print(f"{written[0]}" + (f", and {len(written) - 1} files in {figures}" if figures else ""))
