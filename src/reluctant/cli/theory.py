"""`reluctant theory`: how much a linearized network can memorise, and how a budget is best split."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from reluctant import budget as budgets
from reluctant import theory
from reluctant.cli._group import group
from reluctant.cli._show import Json, console, print_json, table
from reluctant.errors import OptionError

app = group("theory", "Bounds on what a linearized network can memorise: the paper's, and a tighter one (docs/theory.md).")

Widths = Annotated[str, typer.Option("--widths", help="Of the hidden layers, separated by commas: 50000,5000.")]
Pieces = Annotated[int, typer.Option("--pieces", help="Linear pieces of the activation; 2 for a ReLU.")]


@app.command()
def capacity(
    widths: Widths,
    keep: Annotated[
        str, typer.Option("--keep", help="The fraction of units that stay non-linear in each layer: 0.15,0.5 or 15%,50%.")
    ],
    pieces: Pieces = 2,
    as_json: Json = False,
) -> None:
    """Bound the memorisation capacity of a network of which only some units are kept.

    For instance: reluctant theory capacity --widths 50000,5000 --keep 0.15,0.5
    """
    layers = _whole_numbers(widths)
    fractions = _fractions(keep, len(layers))
    kept = [fraction * width for fraction, width in zip(fractions, layers, strict=True)]
    bounds = theory.capacity(layers, kept, pieces)
    if as_json:
        print_json({"widths": layers, "kept": kept, "pieces": pieces, "bound": bounds})
        return
    shown = table("bound", "#value", "what it counts")
    if bounds["paper"] is not None:
        shown.add_row("paper", f"{bounds['paper']:,.0f}", "data points")
    shown.add_row("shared", f"{bounds['shared']:,.0f}", "pieces along a line; data points: one more")
    console.print(shown)
    if bounds["paper"] is None:
        console.print(f"The paper's bound is for two hidden layers, these are {len(layers)}.")


@app.command()
def split(
    widths: Widths,
    budget: Annotated[str, typer.Option("--budget", help='How many units stay non-linear: 10000, "10k" or "10%".')],
    pieces: Pieces = 2,
    as_json: Json = False,
) -> None:
    """Split a budget over the layers so that each bound is largest.

    For instance: reluctant theory split --widths 50000,5000 --budget 10000
    """
    layers = _whole_numbers(widths)
    theory.capacity(layers, [0] * len(layers), pieces)  # complains about widths before the budget is read
    relus = budgets.parse(budget, sum(layers))
    found = {"paper": theory.best_split_paper(layers, relus, pieces) if len(layers) == 2 else None}
    found["shared"] = theory.best_split_shared(layers, relus, pieces)
    if as_json:
        each = {name: None if one is None else asdict(one) for name, one in found.items()}
        print_json({"widths": layers, "budget": relus, "pieces": pieces, **each})
        return
    shown = table("bound", "kept", "fractions", "#value", "")
    for name, one in found.items():
        if one is not None:
            fractions = ", ".join(f"{alpha:.5g}" for alpha in one.alpha)
            note = "" if one.interior else "a layer is at its limit"
            shown.add_row(name, ", ".join(f"{k:,}" for k in one.kept), fractions, f"{one.bound:,}", note)
    console.print(shown)
    console.print("Fractions are those of the best split if units could be divided; kept is the best in whole numbers.")
    if found["paper"] is None:
        console.print(f"The paper's bound is for two hidden layers, these are {len(layers)}.")


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise OptionError(f"--widths '{text}' cannot be read; pass whole numbers such as 50000,5000") from None


def _fraction(text: str) -> float:
    return float(text.removesuffix("%")) / 100 if text.endswith("%") else float(text)


def _fractions(text: str, count: int) -> list[float]:
    try:
        values = [_fraction(part.strip()) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != count or not all(0 <= value <= 1 for value in values):
        raise OptionError(f"--keep '{text}' cannot be read; pass a fraction of 0 … 1 for each of the {count} layers")
    return values
