"""`reluctant private query`."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from reluctant.cli._show import Json, console, messages, octets, print_json, table
from reluctant.cli.data import DataDir
from reluctant.cli.private._options import Material, SimulateNetwork, Timeout, material_folder, parse_network
from reluctant.errors import DataError, OptionError, unknown

MODES = ("split", "whole", "whole-naive")


def query(
    server: Annotated[str, typer.Option("--server", help="Where the server is: host:port.")],
    images: Annotated[list[Path] | None, typer.Argument(metavar="[IMAGE…]", help="Image files of this party.")] = None,
    test_set: Annotated[int, typer.Option("--test-set", min=0, help="Ask about the first N test images instead.")] = 0,
    skip: Annotated[int, typer.Option("--skip", min=0, help="With --test-set: leave out so many first.")] = 0,
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
    network = None if simulate_network is None else parse_network(simulate_network)
    if not images and not test_set and not prepare:
        raise OptionError("there is nothing to ask; pass image files, --test-set N, or --prepare N")
    opened = _opened(images or [])
    with messages.status("connecting"):
        session = Session(address, material_folder(material, "client"), timeout=timeout, network=network)
    with session:
        plan = session.plan
        asked = _pixels(opened, plan.input_shape) + _of_test_set(test_set, skip, plan, data_dir)
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
            rows.append(
                {"image": name, "class": _name(plan, best), "label": label, "logits": logits.tolist(), "spent": spent}
            )
        figures = [each.as_dict() for each in offline]
        for row in rows:
            row["online"] = row.pop("spent").as_dict()
        setup = session.setup.as_dict()
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


def _opened(paths: list[Path]) -> list[tuple[str, Any]]:
    """Read image files, and complain about what is none before a connection is made."""
    from PIL import Image

    found = []
    for path in paths:
        try:
            with Image.open(path) as image:
                found.append((path.name, image.copy()))
        except (OSError, SyntaxError) as error:
            raise DataError(f"the image {path} cannot be read: {error}") from error
    return found


def _pixels(images: list[tuple[str, Any]], shape: tuple[int, ...]) -> list[tuple[str, NDArray[np.float64], None]]:
    """Return images as numbers of 0…1, in the size that the network takes."""
    from PIL import Image

    found: list[tuple[str, NDArray[np.float64], None]] = []
    for name, image in images:
        if len(shape) != 3 or shape[0] not in (1, 3):
            raise OptionError(f"the server's network takes {shape}, which is not an image")
        sized = image.convert("L" if shape[0] == 1 else "RGB").resize((shape[2], shape[1]), Image.Resampling.BILINEAR)
        pixels = np.asarray(sized, np.float64).reshape(shape[1], shape[2], shape[0]) / 255
        found.append((name, np.moveaxis(pixels, -1, 0), None))
    return found


def _of_test_set(count: int, skip: int, plan: Any, data_dir: Path | None) -> list[tuple[str, NDArray[np.float64], Any]]:
    if not count:
        return []
    from reluctant import data

    if not plan.data:
        raise OptionError("the server's network was not made for a named data set; pass image files")
    splits = data.load(plan.data, data_dir)
    some = slice(skip, skip + count)
    pixels, labels = splits.test.pixels[some].numpy() / 255, splits.test.labels[some].tolist()
    return [
        (f"test {number}", image, _name(plan, label))
        for number, (image, label) in enumerate(zip(pixels, labels, strict=True), skip)
    ]
