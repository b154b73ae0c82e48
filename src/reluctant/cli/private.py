"""`reluctant private`: inference between two parties, a client with an image and a server with weights."""

from __future__ import annotations

import json
import re
import resource
import signal
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from reluctant._files import replacing
from reluctant.cli._show import Json, console, messages, octets, print_json, table
from reluctant.cli.data import DataDir
from reluctant.errors import DataError, OptionError, unknown

THREATS = """

Two parties that follow the protocol and try to learn from what they see. Public: the architecture, the mask (which was
made from the server's weights and data) and the input's size. The weights stay with the server, the image and the logits
with the client. Not covered: a party that deviates from the protocol; who the other one is and whether messages were
changed on the way (put TLS around it); what logits tell about a model to somebody who asks often enough.
"""

app = typer.Typer(
    name="private",
    help="Run a linearized network between two parties." + THREATS,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Timeout = Annotated[float, typer.Option("--timeout", min=1, help="Seconds to wait for the other side at most.")]
Material = Annotated[
    Path | None,
    typer.Option(
        "--material", help="A folder for offline material, private to this party; ~/.cache/reluctant if not given."
    ),
]


SimulateNetwork = Annotated[
    str | None,
    typer.Option("--simulate-network", help="Pretend a network: round-trip time and bandwidth, such as 40ms,100mbit."),
]
MODES = ("split", "whole", "whole-naive")


def _parse_network(text: str) -> tuple[float, float]:
    """Read a round-trip time and a bandwidth.

    >>> _parse_network("40ms,100mbit")
    (0.04, 100000000.0)
    """
    found = re.fullmatch(r"([0-9.]+)ms,([0-9.]+)mbit", text.replace(" ", "").lower())
    try:
        rtt, bandwidth = (float(part) for part in found.groups()) if found else (0.0, 0.0)
    except ValueError:
        bandwidth = 0.0
    if not bandwidth > 0:
        raise OptionError(
            f"the network '{text}' cannot be read; pass a round-trip time and a bandwidth, such as 40ms,100mbit"
        )
    return rtt / 1e3, bandwidth * 1e6


def _material(folder: Path | None, party: str) -> Path:
    return folder if folder is not None else Path.home() / ".cache" / "reluctant" / party


@app.command()
def serve(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The finished run whose network is served.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="To listen on; 0 for any that is free.")] = 7077,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    material: Material = None,
    clients: Annotated[int, typer.Option("--clients", min=1, help="How many are served at the same time.")] = 4,
    timeout: Timeout = 120.0,
) -> None:
    """Serve a network: clients ask about images that the server never sees, and never get its weights."""
    from reluctant.private import engine
    from reluctant.private.bundle import from_run
    from reluctant.private.server import PrivateServer

    engine.require()
    with messages.status("making the plan"):
        bundle = from_run(run)
    server = PrivateServer(
        bundle, host, port, _material(material, "server"), timeout=timeout, clients=clients, on_session=_left
    )
    plan = bundle.plan
    console.print(
        f"serving {run} on {host}:{server.port}: plan {plan.version}, {plan.relus:,} ReLUs, {plan.scales.value_bits} bits, "
        f"{plan.scales.expected_wraps:.1g} wrapped values expected in an image",
        soft_wrap=True,
    )
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        server.serve()
    except KeyboardInterrupt:
        console.print("stopped")
    finally:
        server.close()


def _left(did: dict[str, int]) -> None:
    console.print(
        f"a client has left: {did['answered']} queries answered, material for {did['prepared']} prepared, "
        f"{did['peak_memory_bytes']} bytes of memory at most",
        soft_wrap=True,
    )


@app.command()
def query(
    server: Annotated[str, typer.Option("--server", help="Where the server is: host:port.")],
    images: Annotated[list[Path] | None, typer.Argument(metavar="[IMAGE…]", help="Image files of this party.")] = None,
    test_set: Annotated[int, typer.Option("--test-set", min=0, help="Ask about the first N test images instead.")] = 0,
    prepare: Annotated[int, typer.Option("--prepare", min=0, help="Prepare material for N queries, ahead of any.")] = 0,
    material: Material = None,
    mode: Annotated[
        str,
        typer.Option(
            "--mode", help="split; or for comparison whole (one SPU program) or whole-naive (masks multiplied in)."
        ),
    ] = "split",
    simulate_network: SimulateNetwork = None,
    data_dir: DataDir = None,
    timeout: Timeout = 120.0,
    as_json: Json = False,
) -> None:
    """Ask a server about images that it never sees.

    For instance: reluctant private query cat.png --server localhost:7077
    """
    from reluctant.private.session import Session, parse_address

    address = parse_address(server)
    if mode not in MODES:
        raise unknown("mode", mode, MODES)
    network = None if simulate_network is None else _parse_network(simulate_network)
    if not images and not test_set and not prepare:
        raise OptionError("there is nothing to ask; pass image files, --test-set N, or --prepare N")
    with messages.status("connecting"):
        session = Session(address, _material(material, "client"), timeout=timeout, network=network)
    plan = session.plan
    asked = _read(images or [], plan.input_shape) + _of_test_set(test_set, plan, data_dir)
    offline, rows = [], []
    missing = max(prepare, len(asked) - len(session.store.ready())) if mode == "split" else 0
    for number in range(missing):
        with messages.status(f"preparing {number + 1} of {missing}"):
            offline.append(session.prepare()[1])
    for name, image, label in asked:
        with messages.status(f"asking about {name}"):
            if mode == "split":
                logits, spent = session.query(image)
            else:
                logits, spent = session.whole(image, naive=mode == "whole-naive")
        best = int(logits.argmax())
        rows.append({"image": name, "class": _name(plan, best), "label": label, "logits": logits.tolist(), "spent": spent})
    figures = [each.as_dict() for each in offline]
    for row in rows:
        row["online"] = row.pop("spent").as_dict()
    setup = session.setup.as_dict()
    session.close()
    if as_json:
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        about = {"plan": plan.version, "relus": plan.relus, "expected_wraps": plan.scales.expected_wraps}
        phases = {"setup": setup, "offline": figures, "queries": rows}
        print_json({**about, **phases, "peak_memory_bytes": memory})
        return
    _show(rows, figures, plan)


def _show(rows: list[dict[str, Any]], offline: list[Any], plan: Any) -> None:
    if offline:
        each = offline[-1]
        console.print(
            f"prepared material for {len(offline)} queries: {each['seconds']:.2f} s, {octets(each['bytes_sent'])} sent and "
            f"{octets(each['bytes_received'])} received for the last"
        )
    if rows:
        shown = table("image", "class", "#logit", "#online s", "#sent", "#received")
        for row in rows:
            online = row["online"]
            logit = f"{max(row['logits']):.3f}"
            shown.add_row(
                row["image"],
                row["class"],
                logit,
                f"{online['seconds']:.3f}",
                octets(online["bytes_sent"]),
                octets(online["bytes_received"]),
            )
        console.print(shown)
        console.print(f"{plan.relus:,} ReLUs for every query.")


def _name(plan: Any, number: int) -> str:
    return plan.classes[number] if number < len(plan.classes) else str(number)


def _read(paths: list[Path], shape: tuple[int, ...]) -> list[tuple[str, NDArray[np.float64], None]]:
    """Read image files as numbers of 0…1, in the size that the network takes."""
    from PIL import Image, UnidentifiedImageError

    found: list[tuple[str, NDArray[np.float64], None]] = []
    for path in paths:
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise OptionError(f"the server's network takes {shape}, which is not an image")
        try:
            with Image.open(path) as opened:
                image = opened.convert("L" if shape[0] == 1 else "RGB").resize(
                    (shape[2], shape[1]), Image.Resampling.BILINEAR
                )
        except (OSError, UnidentifiedImageError) as error:
            raise DataError(f"the image {path} cannot be read: {error}") from error
        pixels = np.asarray(image, np.float64).reshape(shape[1], shape[2], shape[0]) / 255
        found.append((path.name, np.moveaxis(pixels, -1, 0), None))
    return found


def _of_test_set(count: int, plan: Any, data_dir: Path | None) -> list[tuple[str, NDArray[np.float64], Any]]:
    if not count:
        return []
    from reluctant import data

    if not plan.data:
        raise OptionError("the server's network was not made for a named data set; pass image files")
    splits = data.load(plan.data, data_dir)
    pixels, labels = splits.test.pixels[:count].numpy() / 255, splits.test.labels[:count].tolist()
    return [
        (f"test {number}", image, _name(plan, label))
        for number, (image, label) in enumerate(zip(pixels, labels, strict=True))
    ]


@app.command()
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

    What is measured is kept in the run folder, and `reluctant report` shows it.
    """
    from reluctant.private.bench import Options
    from reluctant.private.bench import bench as measure
    from reluctant.report.gather import BENCH

    network = None if simulate_network is None else _parse_network(simulate_network)
    options = Options(images=images, network=network, timeout=timeout, data_dir=data_dir)
    with messages.status(f"asking about {images} images"):
        found = measure(run, options)
    with replacing(run / BENCH) as part:
        part.write_text(json.dumps(found, indent=2))
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
