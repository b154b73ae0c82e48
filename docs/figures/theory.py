"""Draw docs/figures/capacity.svg and print the tables of docs/theory.md.

Run: python docs/figures/theory.py [SWEEP…], where each SWEEP is a folder that `reluctant sweep` made of a network with two
hidden layers.
"""

from __future__ import annotations

import random
import statistics
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

from reluctant import Mask, theory
from reluctant.report.drawing import COLOURS, STYLE
from reluctant.runs import finished_below

HERE = Path(__file__).parent
WIDTHS = (400, 100)


def splits_found(sweeps: list[Path]) -> dict[int, list[tuple[int, ...]]]:
    """Return how many units the searches kept in each layer, by budget."""
    found: dict[int, list[tuple[int, ...]]] = {}
    for sweep in sweeps:
        for run in finished_below(sweep):
            if run.spec["kind"] == "linearize":
                mask = Mask.load(run.folder / "mask.safetensors")
                found.setdefault(mask.count, []).append(tuple(mask.counts.values()))
    return found


def draw(found: dict[int, list[tuple[int, ...]]]) -> None:
    """Draw both bounds against the split, and where the searches ended."""
    budgets = sorted(found, reverse=True)[:4] or [250, 150, 50]
    with pyplot.rc_context(STYLE):
        figure, all_axes = pyplot.subplots(1, len(budgets), figsize=(2.3 * len(budgets), 2.7), sharey=True)
        for axes, budget in zip(all_axes, budgets, strict=True):
            first = range(max(0, budget - WIDTHS[1]), min(WIDTHS[0], budget) + 1)
            for name, colour in zip(("paper", "shared"), COLOURS, strict=False):
                heights = [theory.capacity(WIDTHS, (k, budget - k))[name] or 0 for k in first]
                best = max(range(len(heights)), key=heights.__getitem__)
                axes.plot(first, heights, color=colour, label=f"{name} bound")
                axes.plot(first[best], heights[best], "o", color=colour, markersize=5)
            for k, _ in found.get(budget, []):
                axes.axvline(k, color=COLOURS[6], linewidth=0.8, linestyle="--", label="found by SNL")
            axes.set_title(f"{budget} ReLUs", fontsize=9.5)
            axes.set_xlabel("kept in the first layer")
            axes.set_yscale("log")
        all_axes[0].set_ylabel("bound")
        handles, labels = all_axes[0].get_legend_handles_labels()
        unique = dict(zip(labels, handles, strict=True))
        figure.legend(unique.values(), unique.keys(), loc="outside upper center", ncols=3)
        figure.savefig(HERE / "capacity.svg", metadata={"Date": None})


def table_of_splits(found: dict[int, list[tuple[int, ...]]]) -> None:
    """Print what the searches kept beside what the bounds would."""
    print("| ReLUs | kept by SNL | share of the first layer | paper's bound | shared bound |\n|---:|---|---:|---|---|")
    for budget in sorted(found, reverse=True):
        firsts = [kept[0] for kept in found[budget]]
        paper, shared = (split(WIDTHS, budget).kept for split in (theory.best_split_paper, theory.best_split_shared))
        kept = "; ".join(", ".join(map(str, each)) for each in found[budget])
        share = statistics.mean(firsts) / budget
        print(f"| {budget} | {kept} | {100 * share:.0f} % | {paper[0]}, {paper[1]} | {shared[0]}, {shared[1]} |")


def table_of_pieces(trials: int = 200) -> None:
    """Print how many pieces random networks have along random lines, beside both bounds and the construction."""
    print("\n| widths | kept | linearized: mean, most | pruned: mean, most | constructed | shared bound | paper's bound |")
    print("|---|---|---:|---:|---:|---:|---:|")
    rng = random.Random(0)
    for widths, kept in [((8, 4), (4, 2)), ((8, 4), (2, 3)), ((16, 8), (8, 4)), ((16, 8), (4, 7)), ((16, 8), (15, 7))]:
        counted = {
            name: [_pieces(widths if name == "linearized" else kept, kept, rng) for _ in range(trials)]
            for name in ("linearized", "pruned")
        }
        made = theory.count_pieces(*theory.attaining(widths, kept))
        bounds = theory.capacity(widths, kept)
        cells = [f"{statistics.mean(each):.1f}, {max(each)}" for each in counted.values()]
        sizes = [", ".join(map(str, each)) for each in (widths, kept)]
        print(f"| {' | '.join([*sizes, *cells, str(made), str(bounds['shared']), str(bounds['paper'])])} |")


def _pieces(widths: tuple[int, ...], kept: tuple[int, ...], rng: random.Random) -> int:
    """Count the pieces of a network with normally distributed weights along a line in its first coordinate."""
    layers, inputs = [], 1
    for width, k in zip(widths, kept, strict=True):
        weight = [[rng.gauss(0, 1) for _ in range(inputs)] for _ in range(width)]
        layers.append(theory.Layer(weight, [rng.gauss(0, 1) for _ in range(width)], [n < k for n in range(width)]))
        inputs = width
    return theory.count_pieces(layers, [rng.gauss(0, 1) for _ in range(inputs)], [1])


if __name__ == "__main__":
    searched = splits_found([Path(folder) for folder in sys.argv[1:]])
    table_of_splits(searched)
    table_of_pieces()
    draw(searched)
