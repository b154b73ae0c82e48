"""How a figure is drawn, whatever it shows: its style, its colours, its files."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Drawing

# Okabe and Ito's colours, which readers with any kind of colour vision can tell apart, on white and on black.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7F7F7F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "h", "<", ">", "d", "p", "x", "+")
_INK, _GRID = "#010203", "#040506"
"""Stand for the page's own colours until the SVG is written into it."""

STYLE = {
    "font.size": 9.5,
    "font.family": "sans-serif",
    "svg.fonttype": "none",
    "svg.hashsalt": "reluctant",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
    "pdf.fonttype": 42,
}


@dataclass(frozen=True)
class Figure:
    """One figure: how to draw it, and what it says to somebody who does not see it."""

    name: str
    title: str
    caption: str
    alt: str
    draw: Callable[[], Drawing]

    def svg(self) -> str:
        """Return it for the page: colours follow the page's, whether light or dark."""
        text = self._rendered("svg", ink=_INK, grid=_GRID).decode()
        text = text[text.index("<svg") :]
        text = re.sub(r' id="(?:figure|axes|patch|line2d|text|matplotlib|xtick|ytick|legend|Path|Line)[^"]*"', "", text)
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        text = re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"', r"<svg \1", text, count=1)
        return text.replace(_INK, "currentColor").replace(_GRID, "var(--line)")

    def save(self, folder: Path) -> list[Path]:
        """Write it as SVG and PDF, black on white."""
        written = []
        for kind in ("svg", "pdf"):
            path = folder / f"{self.name}.{kind}"
            path.write_bytes(self._rendered(kind, ink="black", grid="#cccccc"))
            written.append(path)
        return written

    def _rendered(self, kind: str, *, ink: str, grid: str) -> bytes:
        import matplotlib
        from matplotlib import pyplot

        names = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
        style: Any = {**STYLE, **dict.fromkeys(names, ink), "grid.color": grid}
        with matplotlib.rc_context(style):
            matplotlib.use("agg", force=False)
            drawing = self.draw()
            out = io.BytesIO()
            # No date: the same runs give the same file.
            drawing.savefig(
                out, format=kind, transparent=ink == _INK, metadata={"Date" if kind == "svg" else "CreationDate": None}
            )
            pyplot.close(drawing)
        return out.getvalue()


def new_axes(width: float, height: float) -> tuple[Drawing, Axes]:
    """Return a drawing of one panel, in inches."""
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(width, height))


def columns_below(labels: Sequence[str]) -> int:
    """Return how many labels of a legend stand side by side below a figure."""
    return max(1, 100 // (max(map(len, labels)) + 11))


def legend_below(figure: Drawing, axes: Axes) -> None:
    """Explain what is drawn in these axes below the figure."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=columns_below(labels), fontsize=8.5)


def ink_of(axes: Axes) -> Any:
    """Return the colour that text is written in."""
    return axes.xaxis.label.get_color()


def spell_thousands(axes: Axes, *, x: bool = True, each: tuple[int, ...] | None = None) -> None:
    """Spell the numbers of an axis; on a logarithmic one, label these multiples of the powers of ten."""
    _spell(
        axes.xaxis if x else axes.yaxis,
        lambda value: f"{value:,.0f}" if value < 10_000 else f"{value / 1000:,.0f}K",
        each,
    )


def spell_powers(axes: Axes, spelled: Callable[[float], str]) -> None:
    """Make the upright axis logarithmic and spell its powers of ten; where they are few, with something between them."""
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    _spell(axes.yaxis, spelled, (1, 3) if high / low < 1000 else (1,))


def _spell(axis: Axis, spelled: Callable[[float], str], each: tuple[int, ...] | None) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if each is not None:
        axis.set_major_locator(LogLocator(subs=each, numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: spelled(value)))
    axis.set_minor_formatter(NullFormatter())
