"""The tables of a report, in the forms that people paste into their own pages."""

from __future__ import annotations

import csv
import io
import statistics
from dataclasses import dataclass
from pathlib import Path

from reluctant import theory
from reluctant.frontier import per_thousand
from reluctant.report.gather import Evidence


@dataclass(frozen=True)
class Table:
    """Rows of plain text; columns whose name begins with # hold numbers."""

    name: str
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def headings(self) -> list[tuple[str, bool]]:
        """The columns' names, and whether they hold numbers."""
        return [(column.lstrip("#"), column.startswith("#")) for column in self.columns]

    def markdown(self) -> str:
        """Return it as Markdown."""
        lines = [[name for name, _ in self.headings], ["---:" if number else "---" for _, number in self.headings]]
        lines += [[cell.replace("|", "\\|") for cell in row] for row in self.rows]
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)

    def latex(self) -> str:
        """Return it as a LaTeX tabular with booktabs' rules."""
        kinds = "".join("r" if number else "l" for _, number in self.headings)
        body = [_latex_row(name for name, _ in self.headings), "\\midrule", *map(_latex_row, self.rows)]
        return "\n".join([f"\\begin{{tabular}}{{{kinds}}}", "\\toprule", *body, "\\bottomrule", "\\end{tabular}", ""])

    def csv(self) -> str:
        """Return it as CSV."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([name for name, _ in self.headings])
        writer.writerows(
            [cell.replace(",", "") if number else cell for cell, (_, number) in zip(row, self.headings, strict=True)]
            for row in self.rows
        )
        return out.getvalue()

    def save(self, folder: Path) -> list[Path]:
        """Write all three."""
        written = []
        for ending, text in (("md", self.markdown()), ("tex", self.latex()), ("csv", self.csv())):
            path = folder / f"{self.name}.{ending}"
            path.write_text(text, encoding="utf-8")
            written.append(path)
        return written


def all_tables(evidence: Evidence) -> list[Table]:
    """Return the tables that these runs have something to show in."""
    found = [runs(evidence), sites(evidence), split(evidence)]
    if evidence.several_seeds:
        found.append(seeds(evidence))
    if any(run.cost is not None for run in evidence.runs):
        found.append(costs(evidence))
    if any(run.measured for run in evidence.runs):
        found.append(measured(evidence))
    return found


def runs(evidence: Evidence) -> Table:
    """All runs."""
    best = {id(run) for point in evidence.frontier() for run in point.runs}
    return Table(
        "runs",
        "The runs",
        (
            "run",
            "method",
            "#ReLUs",
            "#kept %",
            "#val %",
            f"#{evidence.part} %",
            "#drop",
            "#per 1000",
            "#search epochs",
            "#finetune epochs",
            "#minutes",
            "frontier",
        ),
        tuple(
            (
                run.name,
                run.method,
                f"{run.count:,}",
                f"{100 * run.count / run.mask.total:.1f}",
                f"{run.result['accuracy']['val']:.2f}",
                f"{run.accuracy:.2f}",
                f"{run.base - run.accuracy:.2f}",
                f"{per_thousand(run):.2f}" if run.count else "–",
                str(run.result["search_epochs"] or "–"),
                str(run.finetune_epochs or "–"),
                f"{run.result['seconds'] / 60:,.1f}",
                "yes" if id(run) in best else "",
            )
            for run in evidence.runs
        ),
    )


def seeds(evidence: Evidence) -> Table:
    """Runs that differ in their seeds only, together."""
    return Table(
        "seeds",
        "Over seeds",
        ("method", "#ReLUs", "#runs", f"#{evidence.part} %", "#drop", "#search epochs", "#finetune epochs", "#minutes"),
        tuple(
            (
                point.method,
                f"{point.budget:,}",
                str(len(point.runs)),
                _spread([run.accuracy for run in point.runs]),
                _spread([run.base - run.accuracy for run in point.runs]),
                _range([run.result["search_epochs"] or 0 for run in point.runs]),
                _range([run.finetune_epochs for run in point.runs]),
                _spread([run.result["seconds"] / 60 for run in point.runs], 1),
            )
            for point in evidence.points
        ),
    )


def _spread(values: list[float], digits: int = 2) -> str:
    """Return the mean, and the standard deviation of a sample where there is one."""
    mean = f"{statistics.mean(values):,.{digits}f}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return str(low or "–") if low == high else f"{low}–{high}"


def sites(evidence: Evidence) -> Table:
    """What is kept where."""
    chosen = evidence.shown(4) or list(evidence.runs[:1])
    names = list(chosen[0].mask.shapes)
    chosen = [run for run in chosen if list(run.mask.shapes) == names]
    shapes = chosen[0].mask.shapes
    return Table(
        "sites",
        "ReLUs by site",
        ("site", "shape", "#before", *(f"#{run.count:,} kept" for run in chosen)),
        tuple(
            (
                site,
                "×".join(map(str, shapes[site])),
                f"{_size(shapes[site]):,}",
                *(f"{run.mask.counts[site]:,}" for run in chosen),
            )
            for site in names
        ),
    )


def split(evidence: Evidence) -> Table:
    """How the budget is split over the sites, and how bounds on capacity would split it."""
    run = (evidence.shown(3) or list(evidence.runs[:1]))[-1]
    sizes = {site: _size(shape) for site, shape in run.mask.shapes.items()}
    widths = list(sizes.values())
    shared = theory.best_split_shared(widths, run.count).kept
    paper = theory.best_split_paper(widths, run.count).kept if len(widths) == 2 else None
    rows = [
        (site, f"{size:,}", f"{run.mask.counts[site]:,}", f"{shared[number]:,}", *([f"{paper[number]:,}"] if paper else []))
        for number, (site, size) in enumerate(sizes.items())
    ]
    analogy = any(len(shape) > 1 for shape in run.mask.shapes.values())
    title = f"How {run.name} splits its {run.count:,} ReLUs, and how bounds on capacity would"
    columns = ("site", "#before", "#kept", "#shared bound", *(["#paper's bound"] if paper else []))
    return Table("split", title + (": an analogy" if analogy else ""), columns, tuple(rows))


def costs(evidence: Evidence) -> Table:
    """What a query is estimated to cost."""
    rows = []
    for run in evidence.runs:
        if run.cost is None:
            continue
        online, offline = run.cost.online, run.cost.offline
        rows.append(
            (
                run.name,
                f"{run.count:,}",
                f"{online.seconds:.3f}",
                _megabytes(online.bytes_up),
                _megabytes(online.bytes_down),
                f"{offline.seconds:.3f}" if run.cost.protocol.offline else "–",
                f"{run.cost.total.seconds:.3f}",
                _megabytes(run.cost.stored_by_client),
            )
        )
    return Table(
        "cost",
        "Estimated cost of a query",
        ("run", "#ReLUs", "#online s", "#MB up", "#MB down", "#offline s", "#together s", "#MB stored"),
        tuple(rows),
    )


def measured(evidence: Evidence) -> Table:
    """What a query was measured to cost between two parties."""
    rows = []
    for run in evidence.runs:
        if run.measured:
            online, offline = run.measured["online"], run.measured["offline"]
            rows.append(
                (
                    run.name,
                    f"{run.count:,}",
                    f"{online['seconds']:.3f}",
                    _megabytes(online["bytes_sent"]),
                    _megabytes(online["bytes_received"]),
                    f"{offline['seconds']:.3f}",
                    f"{run.measured['agree']} of {run.measured['images']}",
                )
            )
    return Table(
        "measured",
        "Measured cost of a query",
        ("run", "#ReLUs", "#online s", "#MB up", "#MB down", "#offline s", "same class as in plaintext"),
        tuple(rows),
    )


def _megabytes(octets: float | None) -> str:
    return "–" if octets is None else f"{octets / 1e6:.2f}"


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for each in shape:
        size *= each
    return size


def _latex_row(cells: object) -> str:
    special = str.maketrans(
        {"%": "\\%", "_": "\\_", "&": "\\&", "#": "\\#", "–": "--", "×": "$\\times$", "±": "$\\pm$", "$": "\\$"}
    )
    return " & ".join(str(cell).translate(special) for cell in cells) + r" \\"  # type: ignore[attr-defined]
