"""The figures of a report: matplotlib draws them once, for the page and for papers."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np

from reluctant import published
from reluctant.report.drawing import (
    COLOURS,
    MARKERS,
    Figure,
    columns_below,
    ink_of,
    legend_below,
    new_axes,
    spell_powers,
    spell_thousands,
)
from reluctant.report.gather import Evidence, Linearized, as_typed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


Rows = list[dict[str, Any]]
"""The epochs of a search."""

Searches = dict[str, list[Rows]]
"""Searches by what was varied, one for each seed."""


def all_figures(evidence: Evidence) -> list[Figure]:
    """Return the figures that these runs have something to show in."""
    found = [accuracy_against_relus(evidence), relus_by_site(evidence)]
    searched = _searches(evidence)
    if searched:
        lowest = next(iter(searched.values()))[0][-1]["count"]
        found.append(over_the_search(searched, sorted({run.count for run in evidence.shown(4)} or {lowest})))
    mapped = [run for run in evidence.shown(3) if _has_images(run)]
    top = max((float(each.max()) for run in mapped for each in _maps(run).values()), default=1.0) or 1.0
    found += [kept_pixels(run, top) for run in mapped]
    if any(run.cost is not None for run in evidence.runs):
        found.append(cost_by_run(evidence))
    return found


def accuracy_against_relus(evidence: Evidence) -> Figure:
    """Accuracy against ReLUs on a log axis, with published points of the same data set behind."""
    theirs = [p for p in published.load() if p.dataset == evidence.dataset]
    papers = list(dict.fromkeys(point.method for point in theirs))
    spelled = {method: f"{'all ReLUs' if method == 'none' else method} (published)" for method in papers}
    methods = list(dict.fromkeys(run.method for run in evidence.runs))

    def draw() -> Drawing:
        labels = [*spelled.values(), *methods]
        figure, axes = new_axes(6.6, 3.6 + 0.2 * -(-len(labels) // columns_below(labels)))
        for number, method in enumerate(papers):
            points = sorted((p for p in theirs if p.method == method), key=lambda p: p.count)
            axes.plot(
                [p.count for p in points], [p.accuracy for p in points], MARKERS[number % len(MARKERS)],
                color="#8a8a8a", markerfacecolor="none", markersize=4.5, label=spelled[method], zorder=1,
            )  # fmt: skip
        for number, method in enumerate(methods):
            mine = [run for run in evidence.runs if run.method == method and run.count]
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            axes.plot(
                [run.count for run in mine], [run.accuracy for run in mine], marker,
                color=colour, markersize=6.5, label=method, zorder=4,
            )  # fmt: skip
            best = [point for point in evidence.frontier(method) if point.count]
            if len(best) > 1:
                axes.plot([p.count for p in best], [p.accuracy for p in best], color=colour, lw=1.6, zorder=3)
        axes.axhline(evidence.base, color=ink_of(axes), lw=1, ls=(0, (4, 3)), zorder=2)
        axes.annotate(
            f"all {evidence.total:,} ReLUs: {evidence.base:.2f} %", (0, evidence.base), (4, 4),
            xycoords=("axes fraction", "data"), textcoords="offset points", fontsize=8.5,
        )  # fmt: skip
        axes.set_xscale("log")
        counts = [run.count for run in evidence.runs if run.count] + [point.count for point in theirs]
        axes.set_xlim(min(counts) / 1.3, max(counts) * 1.3)
        axes.set_xlabel("ReLUs kept")
        axes.set_ylabel(f"accuracy on {evidence.part} data (%)")
        spell_thousands(axes, each=(1, 2, 5) if max(counts) / min(counts) < 300 else (1,))
        legend_below(figure, axes)
        return figure

    best = max(evidence.points, key=lambda point: point.accuracy)
    counts = [run.count for run in evidence.runs]
    none = [run for run in evidence.runs if not run.count]
    seeds = " Where there are several seeds, it goes through their means." if evidence.several_seeds else ""
    zero = f" Without any ReLU it is {none[0].accuracy:.2f} %, which has no place on a logarithmic axis." if none else ""
    return Figure(
        "frontier",
        "Accuracy against ReLUs",
        f"The line joins the points that no other of the same method beats.{seeds}{zero}"
        + (" Open grey marks are what others have published for this data set." if theirs else ""),
        f"Scatter plot on a logarithmic axis: {len(counts)} runs between {min(counts):,} and {max(counts):,} ReLUs; "
        f"the best reaches {best.accuracy:.2f} % with {best.count:,} ReLUs, "
        f"the full network {evidence.base:.2f} %.",
        draw,
    )


def relus_by_site(evidence: Evidence) -> Figure:
    """ReLUs before and after, site by site, and which share of them that is."""
    runs = evidence.shown(4) or list(evidence.runs[:1])
    sites = list(runs[0].mask.shapes)
    runs = [run for run in runs if list(run.mask.shapes) == sites]
    before = np.array([int(np.prod(runs[0].mask.shapes[site])) for site in sites])

    def draw() -> Drawing:
        from matplotlib import pyplot

        figure, (above, below) = pyplot.subplots(2, figsize=(max(6.6, 0.32 * len(sites) + 1.5), 4.8), sharex=True)
        places, width = np.arange(len(sites)), 0.8 / len(runs)
        above.bar(places, before, 0.86, color="none", edgecolor=ink_of(above), lw=0.9, label="before")
        for number, run in enumerate(runs):
            kept = np.array([run.mask.counts[site] for site in sites])
            left = places - 0.4 + (number + 0.5) * width
            above.bar(left, kept, width, color=COLOURS[number], label=f"{run.count:,} kept")
            below.bar(left, 100 * kept / np.maximum(1, before), width, color=COLOURS[number])
        above.set_ylabel("ReLUs")
        spell_thousands(above, x=False)
        below.set_ylabel("kept (%)")
        below.set_xticks(places, sites, rotation=60, ha="right", rotation_mode="anchor", fontsize=8)
        for axes in (above, below):
            axes.grid(axis="x", visible=False)
        figure.legend(*above.get_legend_handles_labels(), loc="outside upper center", ncols=len(runs) + 1, fontsize=8.5)
        return figure

    chosen = runs[-1]
    shares = {site: chosen.mask.counts[site] / max(1, int(np.prod(shape))) for site, shape in chosen.mask.shapes.items()}
    most = max(shares, key=lambda site: shares[site])
    return Figure(
        "relus-by-site",
        "Where the ReLUs are",
        "Each site of the network in the order of its calls. Above: all its ReLUs as an outline, those that are kept as "
        f"bars ({', '.join(run.name for run in runs)}). Below: which share of them that is.",
        f"Two bar charts of {len(sites)} sites. Of {chosen.count:,} kept ReLUs the largest share stays at {most}: "
        f"{100 * shares[most]:.1f} % of its ReLUs.",
        draw,
    )


def over_the_search(searches: Searches, budgets: list[int]) -> Figure:
    """Count, λ and accuracy over the epochs of the searches: a colour for each variation, a line for each seed."""
    each = [(varied, rows) for varied, seeds in searches.items() for rows in seeds]
    scored = all("val" in rows[0] for _, rows in each)
    panels = [("count", "ReLUs"), ("penalty", "penalty λ")] + ([("val", "validation accuracy (%)")] if scored else [])

    def draw() -> Drawing:
        from matplotlib import pyplot

        height = 2.5 if len(searches) == 1 else 2.8
        figure, all_axes = pyplot.subplots(1, len(panels), figsize=(6.6, height), squeeze=False)
        for axes, (key, label) in zip(all_axes[0], panels, strict=True):
            for colour, (varied, seeds) in zip(COLOURS, searches.items(), strict=False):
                for number, rows in enumerate(seeds):
                    width = 0.7 if key == "val" and len(rows) > 60 else 1.8 if len(seeds) == 1 else 1.2  # it jitters
                    axes.plot(
                        [row["epoch"] + 1 for row in rows], [row[key] for row in rows],
                        color=colour, lw=width, label=None if number else varied,
                    )  # fmt: skip
            axes.set_xlabel("search epoch")
            axes.locator_params(axis="x", integer=True)
            axes.set_title(label, fontsize=9.5)
            if key == "penalty":
                spell_powers(axes, as_typed)
            if key == "count":
                axes.set_ylim(bottom=0)
                spell_thousands(axes, x=False)
                for budget in budgets:
                    axes.axhline(budget, color=ink_of(axes), lw=0.7, ls=(0, (2, 3)))
        if len(searches) > 1:
            legend_below(figure, all_axes[0][0])
        return figure

    first = each[0][1]
    alone = f"{len(panels)} line charts over {len(first)} epochs: the count falls from {first[0]['count']:,} to "
    alone += f"{first[-1]['count']:,}, λ goes from {first[0]['penalty']:.2g} to {first[-1]['penalty']:.2g}."
    ends = ", ".join(f"{varied or 'seed'}: {rows[-1]['count']:,} after {len(rows)}" for varied, rows in each)
    return Figure(
        "search",
        "The search",
        f"How the count falls and λ goes on the way to {min(budgets):,} ReLUs; dotted lines are the budgets shown."
        + (" There is a line for each seed." if len(each) > len(searches) else "")
        + (" The accuracy is that of the network with its slopes on validation data, before binarizing." if scored else ""),
        alone if len(each) == 1 else f"{len(panels)} line charts over the epochs; ReLUs left at the end: {ends}.",
        draw,
    )


def _searches(evidence: Evidence) -> Searches:
    """Return the search that went furthest of every seed and variation of the first method, as far as the colours go."""
    found: dict[str, dict[int, Rows]] = defaultdict(dict)
    for run in evidence.runs:  # each method's from high to low
        rows = [row for row in run.metrics if row["phase"] == "search"]
        if rows and run.variant == evidence.runs[0].variant:
            found[run.varied][run.run.spec.get("seed", 0)] = rows
    return {varied: list(seeds.values()) for varied, seeds in list(found.items())[: len(COLOURS)]}


def kept_pixels(run: Linearized, top: float) -> Figure:
    """For every site with images, which share of the channels keeps the ReLU of a pixel."""
    maps = _maps(run)
    columns = min(6, len(maps))
    lines = -(-len(maps) // columns)

    def draw() -> Drawing:
        from matplotlib import pyplot

        figure, all_axes = pyplot.subplots(lines, columns, figsize=(6.6, 1.15 * lines + 0.3), squeeze=False)
        for axes in all_axes.flat:
            axes.axis("off")
        for axes, (site, values) in zip(all_axes.flat, maps.items(), strict=False):
            image = axes.imshow(values, cmap="viridis", vmin=0, vmax=top, interpolation="nearest")
            axes.set_title(f"{site}\n{run.mask.counts[site]:,}", fontsize=6.5)
        bar = figure.colorbar(image, ax=all_axes, shrink=0.8, pad=0.02)
        bar.ax.tick_params(labelsize=7)
        bar.set_label("channels that keep it", fontsize=7.5)
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
        return figure

    return Figure(
        f"kept-pixels-{run.count}",
        "Which pixels keep their ReLU",
        f"{run.name}, {run.count:,} kept: one map for every site, each pixel coloured by the share of channels in which "
        "its ReLU is kept.",
        f"Heat maps of {len(maps)} sites of {run.name}; the numbers kept are "
        + ", ".join(f"{site} {run.mask.counts[site]:,}" for site in maps)
        + ".",
        draw,
    )


def _maps(run: Linearized) -> dict[str, Any]:
    """Return for each site with images the share of channels that keep a pixel's ReLU."""
    return {site: run.mask[site].float().mean(0).numpy() for site, shape in run.mask.shapes.items() if len(shape) == 3}


def cost_by_run(evidence: Evidence) -> Figure:
    """Estimated seconds of linear layers and ReLUs, online and offline, with what was measured beside them."""
    runs = [run for run in evidence.shown(6) or evidence.runs[:1] if run.cost is not None]
    protocol = runs[0].cost.protocol  # type: ignore[union-attr]
    phases = ["online", "offline"] if protocol.offline else ["online"]

    def draw() -> Drawing:
        from matplotlib import pyplot

        height = 0.5 + 0.42 * len(runs)
        figure, all_axes = pyplot.subplots(1, len(phases), figsize=(6.6, max(1.9, height)), squeeze=False, sharey=True)
        places = np.arange(len(runs))[::-1]
        for axes, phase in zip(all_axes[0], phases, strict=True):
            left = np.zeros(len(runs))
            for number, kind in enumerate(("linear", "relu")):
                seconds = np.array([_seconds(run, phase, kind) for run in runs])
                label = {"linear": "linear layers", "relu": "ReLUs"}[kind]
                axes.barh(places, seconds, 0.62, left=left, color=COLOURS[number], label=f"{label}, estimated")
                left += seconds
            measured = [
                (place, run.measured[phase]["seconds"]) for place, run in zip(places, runs, strict=True) if run.measured
            ]
            if measured:
                axes.plot(
                    [s for _, s in measured], [p for p, _ in measured], "D", color=COLOURS[2], ms=6, label="measured",
                )  # fmt: skip
            axes.set_xlim(0, 1.05 * max([*left, *(s for _, s in measured)]) or None)
            axes.set_yticks(places, [f"{run.count:,}" for run in runs])
            axes.set_title(phase, fontsize=9.5)
            axes.set_xlabel("seconds for one query")
            axes.grid(axis="y", visible=False)
        all_axes[0][0].set_ylabel("ReLUs kept")
        figure.legend(*all_axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=3, fontsize=8.5)
        return figure

    least, most = min(runs, key=lambda run: run.count), max(runs, key=lambda run: run.count)
    return Figure(
        "cost",
        "What a query costs",
        f"{protocol.title}, {_spelled_network(runs[0])}: {protocol.about} Estimated"
        + (", with what was measured as diamonds." if any(r.measured for r in runs) else "."),
        f"Bar chart of estimated seconds: online {_seconds(most, 'online'):.3g} s with {most.count:,} ReLUs and "
        f"{_seconds(least, 'online'):.3g} s with {least.count:,}.",
        draw,
    )


def _spelled_network(run: Linearized) -> str:
    assert run.cost is not None
    network = run.cost.network
    if network.bandwidth == float("inf") or not run.cost.protocol.bytes:
        return "no network counted"
    return f"{network.bandwidth / 1e6:,.0f} Mbit/s and {1000 * network.rtt:g} ms"


def _seconds(run: Linearized, phase: str, kind: str | None = None) -> float:
    assert run.cost is not None
    return float(sum(getattr(each, phase).seconds for each in run.cost.layers if kind in (None, each.layer.kind)))


def _has_images(run: Linearized) -> bool:
    return any(len(shape) == 3 for shape in run.mask.shapes.values())
