"""The page: one file that needs nothing but a browser."""

from __future__ import annotations

import json
from importlib import resources
from itertools import groupby
from pathlib import Path

from jinja2 import Environment, StrictUndefined

from reluctant import recipes
from reluctant._files import replacing
from reluctant.cost import Network, Protocol, named, read
from reluctant.errors import RunError
from reluctant.report.figures import all_figures
from reluctant.report.gather import Evidence, gather
from reluctant.report.tables import all_tables


def report(
    runs: list[Path],
    output: Path,
    *,
    protocol: str | Path | Protocol = "delphi",
    network: str | Network = "lan",
    figures: Path | None = None,
) -> list[Path]:
    """Write a page about runs, and what else was asked for.

    Args:
        runs: run folders, or folders full of them.
        output: the HTML file to write.
        protocol: that the cost is estimated for.
        network: between the parties.
        figures: a folder for the figures as SVG and PDF and the tables as Markdown, LaTeX and CSV.

    Returns:
        The files written, the page first.

    Raises:
        OptionError, RunError: there is nothing to show, or it cannot be read or written.
    """
    rules = protocol if isinstance(protocol, Protocol) else read(protocol)
    evidence = gather(runs, rules, named(network))
    drawn, tables = all_figures(evidence), all_tables(evidence)
    source = resources.files("reluctant.report").joinpath("page.html.j2").read_text(encoding="utf-8")
    template = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True).from_string(
        source
    )
    lead = evidence.runs[0]
    html = template.render(
        evidence=evidence,
        headline=_headline(evidence),
        sections=[(title, list(group)) for title, group in groupby(drawn, key=lambda figure: figure.title)],
        tables={table.name: table for table in tables},
        bottleneck=next((run.cost.bottleneck() for run in evidence.runs if run.cost), None),
        recipe=recipes.write(lead.run.recipe),
        environment=json.loads((lead.run.folder / "environment.json").read_text()),
    )
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with replacing(output) as part:
            part.write_text(html, encoding="utf-8")
        written = [output]
        if figures is not None:
            figures.mkdir(parents=True, exist_ok=True)
            written += [path for figure in drawn for path in figure.save(figures)]
            written += [path for table in tables for path in table.save(figures)]
    except OSError as error:
        raise RunError(f"the report cannot be written: {error}") from error
    return written


def _headline(evidence: Evidence) -> str:
    """Say the most telling thing: how few ReLUs cost how little accuracy."""
    near = [point for point in evidence.points if evidence.base - point.accuracy <= 2.0 and point.count]
    chosen = min(near, key=lambda point: point.count) if near else max(evidence.points, key=lambda point: point.accuracy)
    share = 100 * chosen.count / evidence.total
    several = len({point.method for point in evidence.points}) > 1
    return (
        f"{chosen.count:,} of {evidence.total:,} ReLUs ({share:.1f} %) give {chosen.accuracy:.2f} %"
        f"{f' ({chosen.method})' if several else ''}; "
        f"all of them give {evidence.base:.2f} %."
    )
