"""`reluctant count`: how many ReLUs a network evaluates, and where."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from reluctant import budget as budgets
from reluctant import sites
from reluctant._example import spell
from reluctant.cli import _network
from reluctant.cli._show import Json, console, percent, print_json, table
from reluctant.mask import Mask


def count(
    run: _network.MaybeRun = None,
    arch: _network.Arch = None,
    model: _network.Model = None,
    inputs: _network.Input = None,
    arch_arg: _network.ArchArg = None,
    num_classes: _network.Classes = 10,
    mask: Annotated[Path | None, typer.Option(help="Count what this mask file keeps.")] = None,
    include: Annotated[list[str] | None, typer.Option(help="Only these sites could be linearized. Repeatable.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Not these sites; * and ? are wild. Repeatable.")] = None,
    budget: Annotated[str | None, typer.Option(help='Say what a budget means here: 50000, "50k" or "10%".')] = None,
    as_json: Json = False,
) -> None:
    """Count the ReLUs that one input evaluates, site by site, and list the other non-linear operations.

    For instance: reluctant count runs/ten, or reluctant count --arch resnet18 --input 3x32x32
    """
    network, example = _network.named(run, arch, model, inputs, arch_arg, num_classes)
    if mask is not None:
        network = Mask.load(mask).apply(network, example)
    found = sites.count(network, example, include=include or None, exclude=exclude)
    relus = None if budget is None else budgets.parse(budget, found.size)
    if as_json:
        extra = {} if relus is None else {"budget": relus}
        print_json({**found.as_dict(), **extra})
        return
    _print(found, relus)


def _print(found: sites.Sites, relus: int | None) -> None:
    masked = found.total != found.size
    rows = table("site", "shape", "#ReLUs", *(["#of"] if masked else []), "#kept" if masked else "#share", "")
    for site in found:
        of = [f"{site.size:,}"] if masked else []
        share = percent(site.count, site.size if masked else found.total)
        rows.add_row(site.name, spell(site.shape), f"{site.count:,}", *of, share, _remark(site))
    rows.add_section()
    of = [f"{found.size:,}"] if masked else []
    rows.add_row("total", "", f"{found.total:,}", *of, percent(found.total, found.size) if masked else "", style="bold")
    console.print(rows)
    if found.other_nonlinear:
        others = table("other non-linear operation", "kind", "#elements")
        for other in found.other_nonlinear:
            others.add_row(other.name, other.kind, f"{other.count:,}")
        console.print()
        console.print(others)
        console.print("These stay as they are: no ReLU budget governs them, and under private inference they cost too.")
    if relus is not None:
        console.print(f"\nA budget of {relus:,} keeps {percent(relus, found.size)} of the {found.size:,} ReLUs.")
        stay = sum(site.count for site in found if site.fixed)
        if relus < stay:
            console.print(f"It cannot be met: {stay:,} ReLUs stay whatever is searched for.")
        elif found.total > relus:
            console.print(f"The network is {found.total - relus:,} above it.")


def _remark(site: sites.Site) -> str:
    if not site.reachable:
        return "out of reach: stays"
    return "left alone: stays" if site.fixed else ""
