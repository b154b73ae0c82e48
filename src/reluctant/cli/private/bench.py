"""`reluctant private bench`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from reluctant.cli._show import Json, console, messages, octets, print_json, table
from reluctant.cli.data import DataDir
from reluctant.cli.private._options import SimulateNetwork, Timeout, parse_network


def bench(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The finished run to measure.")],
    images: Annotated[int, typer.Option("--images", min=1, help="How many test images to ask about.")] = 5,
    simulate_network: SimulateNetwork = None,
    compare_mask_multiply: Annotated[
        bool,
        typer.Option(
            "--compare-mask-multiply", help="Also run everything inside SPU, with masks gathered and multiplied in."
        ),
    ] = False,
    data_dir: DataDir = None,
    timeout: Timeout = 600.0,
    as_json: Json = False,
) -> None:
    """Measure private inference here: both parties as processes on this machine, beside plaintext and the estimate.

    What is measured without a network to pretend is kept in the run folder, and `reluctant report` shows it.
    """
    from reluctant.private.bench import Options
    from reluctant.private.bench import bench as measure
    from reluctant.runs import Run

    network = None if simulate_network is None else parse_network(simulate_network)
    options = Options(images=images, network=network, timeout=timeout, data_dir=data_dir)
    with messages.status(f"asking about {images} images"):
        found = measure(run, options)
    if network is None:
        Run.open(run).keep_private_cost(found)
    if compare_mask_multiply:
        found["compared"] = {}
        for naive in (False, True):
            with messages.status("asking with one SPU program" + (", masks multiplied in" if naive else "")):
                other = measure(run, replace(options, images=min(images, 2), mode="whole", naive=naive))
            found["compared"][other["mode"]] = {key: other[key] for key in ("online", "agree", "images", "max_logit_error")}
    if as_json:
        print_json(found)
        return
    _show_bench(found)


def _show_bench(found: dict[str, Any]) -> None:
    shown = table(
        "phase", "#seconds", "#sent", "#received", "#messages", "#estimated s", "#estimated bytes", title=found["run"]
    )
    for phase in ("setup", "offline", "online"):
        each, guess = found[phase], found["estimated"].get(phase)
        both = None if guess is None or guess["bytes_sent"] is None else guess["bytes_sent"] + guess["bytes_received"]
        shown.add_row(
            phase + (" (once)" if phase == "setup" else ""),
            f"{each['seconds']:.3f}",
            octets(each["bytes_sent"]),
            octets(each["bytes_received"]),
            f"{each['messages']:,.0f}",
            "" if guess is None else f"{guess['seconds']:.3f}",
            "" if guess is None else octets(both),
        )
    for mode, other in found.get("compared", {}).items():
        each = other["online"]
        sizes = (octets(each["bytes_sent"]), octets(each["bytes_received"]))
        shown.add_row(f"online, {mode}", f"{each['seconds']:.3f}", *sizes, f"{each['messages']:,.0f}", "", "")
    console.print(shown)
    memory = found["peak_memory_bytes"]
    console.print(
        f"{found['relus']:,} ReLUs. The same class as in plain fixed point for {found['agree']} of {found['images']} "
        f"images, and as torch for {found['agree_with_torch']}; logits differ by at most {found['max_logit_error']:.2g}. "
        f"Memory: server {octets(memory['server'])}, client {octets(memory['client'])}. Wrapped values expected in an "
        f"image: {found['expected_wraps']:.1g}. Seconds and bytes are those of one query, as the client sees them."
    )
