"""The command line: one small file per command."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

import reluctant
from reluctant.cli._group import group
from reluctant.cli.cost import cost
from reluctant.cli.count import count
from reluctant.cli.data import data
from reluctant.cli.demo import demo
from reluctant.cli.evaluate import evaluate
from reluctant.cli.finetune import finetune
from reluctant.cli.import_weights import import_weights
from reluctant.cli.linearize import linearize
from reluctant.cli.pretrain import pretrain
from reluctant.cli.private import app as private
from reluctant.cli.report import report
from reluctant.cli.sweep import sweep
from reluctant.cli.theory import app as theory
from reluctant.errors import ReluctantError

app = group("reluctant", "Give a trained PyTorch network a ReLU budget.", add_completion=False)
app.command()(demo)
app.command()(pretrain)
app.command("import")(import_weights)
app.command()(linearize)
app.command()(sweep)
app.command()(finetune)
app.command()(evaluate)
app.command()(count)
app.command()(cost)
app.command()(report)
app.add_typer(private)
app.add_typer(theory)
app.command()(data)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"reluctant {reluctant.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop."),
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Tell what is going on, on standard error.")] = False,
) -> None:
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(name)s: %(message)s")


def main() -> None:
    """Run the command line; an error of ours is one sentence on standard error and exit code 2."""
    try:
        app()
    except SystemExit as ended:
        if ended.code == 130:  # Ctrl-C, which Typer has turned into this
            typer.echo("interrupted; the same command goes on with what has been done", err=True)
        raise
    except ReluctantError as error:
        typer.echo(f"reluctant: {error}", err=True)
        sys.exit(2)
    except BrokenPipeError:  # `reluctant … | head`
        sys.stderr.close()
        sys.exit(141)
