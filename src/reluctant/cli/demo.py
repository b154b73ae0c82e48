"""`reluctant demo`: the whole story on data that ships with scikit-learn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from reluctant._sweep import sweep
from reluctant.cli import _jobs
from reluctant.cli._show import Json, console, messages, octets, percent, print_json, table
from reluctant.cli.linearize import make_job
from reluctant.cli.pretrain import train
from reluctant.runs import Run

BUDGETS = (3000, 1000, 500, 200, 50, 0)
ASKED, IMAGES = 500, 5
"""The budget of the network that is run between two parties beside the full one, and about how many images it is asked."""


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the runs go.")] = Path("runs/demo"),
    settings: _jobs.Settings = None,
    force: _jobs.Force = False,
    as_json: Json = False,
) -> None:
    """Train a small ResNet on digits, linearize it down to no ReLU at all, and run it between two parties.

    About five minutes on two cores. A demo that was interrupted goes on; one that is finished is shown again.
    """
    recipe = _jobs.read_recipe("demo", settings)
    say = (lambda text: None) if as_json else console.print
    say("A small ResNet reads 8×8 digits placed anywhere on a 16×16 canvas. A linear classifier gets about 20 % right.")
    base_folder = output / "base"
    if force or not (base_folder / "result.json").exists():
        say("1. Train it with all its ReLUs.")
        train(_jobs.describe_data("digits", None), base_folder, "small", None, None, recipe, 0, force)
    base = _jobs.Base.open(base_folder, None)
    whole = Run.open(base_folder).result
    say(f"   {whole['total']:,} ReLUs, {whole['accuracy']['test']:.2f} % of the test images.")
    say("2. Search with SNL which ReLUs it can do without: one search, all budgets. Finetune each.")
    say("3. Do the same with as many ReLUs drawn at random.")
    found: dict[str, list[dict[str, Any]]] = {}
    with _jobs.progress_bar() as bar:
        for method in ("snl", "random"):
            job = make_job(base, recipe, _jobs.trainer(recipe, 0, bar), bar, method=method)
            found[method] = sweep(
                job,
                BUDGETS,
                output,
                base.spec(),
                force=force,
                on_run=lambda part: setattr(bar, "title", part),
            )
    frontier = [
        {
            "run": snl["run"],
            "count": snl["count"],
            "share": snl["count"] / snl["total"],
            "accuracy": snl["accuracy"]["test"],
            "random": random["accuracy"]["test"],
        }
        for snl, random in zip(found["snl"], found["random"], strict=True)
    ]
    private = _between_two([base_folder, output / f"snl-{ASKED}"], say, force)
    page = _report(output)
    if as_json:
        shown = {"total": whole["total"], "accuracy": whole["accuracy"]["test"], "frontier": frontier}
        print_json({**shown, "private": private, "report": str(page)})
        return
    _show(whole, frontier)
    _show_private(private)
    _show_what_next(frontier)
    console.print(f"\nAll of it on a page: {page}")


def _between_two(folders: list[Path], say: Callable[[str], None], force: bool) -> list[dict[str, Any]]:
    """Ask each network about a few images, a server and a client as two processes; nothing where SPU is missing."""
    from reluctant.private import engine
    from reluctant.private.bench import Options, bench

    if not engine.available():
        say(
            "4. Private inference is left out: SPU is not installed. With pip install 'reluctant[private]' the demo has it."
        )
        return []
    say(f"4. Ask about {IMAGES} images between two processes: one has the images, the other the weights.")
    found = []
    for folder in folders:
        run = Run.open(folder)
        cost = None if force else run.private_cost
        if cost is None:
            with messages.status(f"private inference of {folder}"):
                cost = bench(folder, Options(images=IMAGES))
            run.keep_private_cost(cost)
        found.append(cost)
    return found


def _report(folder: Path) -> Path:
    from reluctant.report import report  # matplotlib takes a second

    with messages.status("drawing"):
        return report([folder], folder / "report.html", protocol="reluctant")[0]  # what the demo runs, and measures


def _show(whole: dict[str, Any], frontier: list[dict[str, Any]]) -> None:
    rows = table("", "#ReLUs", "#kept", "#SNL, test %", "#random, test %", title="\nThe frontier")
    rows.add_row("all", f"{whole['total']:,}", "100.0 %", f"{whole['accuracy']['test']:.2f}", "")
    for row in frontier:
        name = Path(row["run"]).name
        share = percent(row["count"], whole["total"])
        rows.add_row(name, f"{row['count']:,}", share, f"{row['accuracy']:.2f}", f"{row['random']:.2f}")
    console.print(rows)


def _show_private(private: list[dict[str, Any]]) -> None:
    if not private:
        return
    title = f"\nBetween two parties, one query of {IMAGES}"
    rows = table("", "#ReLUs", "#online s", "#online", "#offline s", "#offline", "#same class as in clear", title=title)
    for each in private:
        figures = [
            text
            for phase in (each["online"], each["offline"])
            for text in (f"{phase['seconds']:.3f}", octets(phase["bytes_sent"] + phase["bytes_received"]))
        ]
        rows.add_row(Path(each["run"]).name, f"{each['relus']:,}", *figures, f"{each['agree']} of {each['images']}")
    console.print(rows)


def _show_what_next(frontier: list[dict[str, Any]]) -> None:
    folder = Path(frontier[0]["run"]).parent
    example = frontier[2]["run"]
    console.print(
        f"\nThe runs are in {folder}: masks, weights, metrics. Look at one: reluctant evaluate {example} --part test"
    )
    console.print(f"Where its ReLUs are: reluctant count {example}")
    console.print("\nYour own network, in Python (docs/your-model.md has all of it):")
    console.print(
        '    result = reluctant.linearize(model, budget="10%", train=train_loader, val=val_loader)', highlight=False
    )
