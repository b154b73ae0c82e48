"""`reluctant demo`: the whole story on data that ships with scikit-learn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from reluctant._sweep import sweep
from reluctant.cli import _jobs
from reluctant.cli._show import Json, console, messages, percent, print_json, table
from reluctant.cli.linearize import make_job
from reluctant.cli.pretrain import train
from reluctant.runs import Run

BUDGETS = (3000, 1000, 500, 200, 50, 0)


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="Where the runs go.")] = Path("runs/demo"),
    settings: _jobs.Settings = None,
    force: _jobs.Force = False,
    as_json: Json = False,
) -> None:
    """Train a small ResNet on digits, linearize it down to no ReLU at all, and compare with masks drawn at random.

    About three minutes on two cores. A demo that was interrupted goes on; one that is finished is shown again.
    """
    recipe = _jobs.read_recipe("demo", settings)
    say = (lambda text: None) if as_json else console.print
    say("A small ResNet reads 8×8 digits placed anywhere on a 16×16 canvas. A linear classifier gets about 20 % right.")
    base_folder = output / "base"
    if force or not (base_folder / "result.json").exists():
        say("1. Train it with all its ReLUs.")
        train("digits", base_folder, "small", None, None, None, recipe, 0, force)
    base = _jobs.Base.open(base_folder, None)
    whole = Run.open(base_folder).result
    say(f"   {whole['total']:,} ReLUs, {whole['accuracy']['test']:.2f} % of the test images.")
    say("2. Search with SNL which ReLUs it can do without: one search, all budgets. Finetune each.")
    say("3. Do the same with as many ReLUs drawn at random.")
    found: dict[str, list[dict[str, Any]]] = {}
    with _jobs.progress_bar() as bar:
        for method in ("snl", "random"):
            job = make_job(base, recipe, 0, bar, method, "pixel", None, None, False, False)
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
    page = _report(output)
    if as_json:
        shown = {"total": whole["total"], "accuracy": whole["accuracy"]["test"], "frontier": frontier, "report": str(page)}
        print_json(shown)
        return
    _show(whole, frontier)
    console.print(f"\nAll of it on a page: {page}")


def _report(folder: Path) -> Path:
    from reluctant.report import report  # matplotlib takes a second

    with messages.status("drawing"):
        return report([folder], folder / "report.html")[0]


def _show(whole: dict[str, Any], frontier: list[dict[str, Any]]) -> None:
    rows = table("", "#ReLUs", "#kept", "#SNL, test %", "#random, test %", title="\nThe frontier")
    rows.add_row("all", f"{whole['total']:,}", "100.0 %", f"{whole['accuracy']['test']:.2f}", "")
    for row in frontier:
        name = Path(row["run"]).name
        share = percent(row["count"], whole["total"])
        rows.add_row(name, f"{row['count']:,}", share, f"{row['accuracy']:.2f}", f"{row['random']:.2f}")
    console.print(rows)
    folder = Path(frontier[0]["run"]).parent
    example = frontier[2]["run"]
    console.print(
        f"\nThe runs are in {folder}: masks, weights, metrics. Look at one: reluctant evaluate {example} --part test"
    )
    console.print(f"Where its ReLUs are: reluctant count --arch small --input 1x16x16 --mask {example}/mask.safetensors")
    console.print("\nYour own network, in Python (docs/your-model.md has all of it):")
    console.print(
        '    result = reluctant.linearize(model, budget="10%", train=train_loader, val=val_loader)', highlight=False
    )
