"""Measure private inference on this machine: a server and a client as two processes, beside plaintext and the estimate."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reluctant import cost
from reluctant._load import load
from reluctant.errors import PeerError
from reluctant.private import clear, engine
from reluctant.private.bundle import Bundle, from_run
from reluctant.runs import Run

PATIENCE = 30.0
"""Seconds to wait for what the server says about a client that has left."""
PHASE = ("seconds", "bytes_sent", "bytes_received", "messages")


@dataclass(frozen=True)
class Options:
    """What to measure."""

    images: int = 5
    skip: int = 0
    """How many test images come before them."""
    mode: str = "split"
    """`split`, or `whole`: everything as one SPU program."""
    naive: bool = False
    """With `whole`: multiply by masks instead of gathering."""
    network: tuple[float, float] | None = None
    """A round-trip time in seconds and a bandwidth in bits a second to pretend."""
    timeout: float = 600.0
    data_dir: Path | None = None


def bench(folder: Path, options: Options) -> dict[str, Any]:
    """Run queries about test images between two processes, and return what they took, per query, as the client sees it.

    Raises:
        OptionError, RunError, PlanError: SPU is missing, or the run cannot be served.
        PeerError: one of the processes failed.
    """
    engine.require()
    run = Run.open(folder)
    bundle = from_run(run)
    if options.data_dir is None:
        known = run.spec.get("data", {}).get("dir")
        options = replace(options, data_dir=None if known is None else Path(known))
    with tempfile.TemporaryDirectory(prefix="reluctant-bench-") as temporary:
        asked, memory = _two_processes(folder, Path(temporary), options)
    return _compared(run, bundle, asked, memory, options)


def _two_processes(folder: Path, temporary: Path, options: Options) -> tuple[dict[str, Any], int]:
    """Start the server, ask it as a client, and return what the client says and the server's peak memory."""
    reluctant = [sys.executable, "-m", "reluctant", "private"]
    times = ["--timeout", str(options.timeout)]
    serve = [*reluctant, "serve", str(folder), "--port", "0", "--material", str(temporary / "server"), *times]
    said = temporary / "server.log"
    with said.open("w") as log:
        server = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=log, text=True)
    assert server.stdout is not None
    try:
        found = re.search(r":(\d+): plan", server.stdout.readline())
        if not found:
            raise PeerError(f"the server did not start: {_last_line(said.read_text())}")
        query = [
            *reluctant,
            "query",
            "--server",
            f"127.0.0.1:{found[1]}",
            "--test-set",
            str(options.images),
            "--skip",
            str(options.skip),
            "--json",
            *times,
        ]
        query += ["--material", str(temporary / "client"), "--mode", options.mode + ("-naive" if options.naive else "")]
        if options.data_dir is not None:
            query += ["--data-dir", str(options.data_dir)]
        if options.network is not None:
            query += ["--simulate-network", f"{1000 * options.network[0]:g}ms,{options.network[1] / 1e6:g}mbit"]
        client = subprocess.run(query, capture_output=True, text=True, check=False)
        if client.returncode:
            raise PeerError(f"the client failed: {_last_line(client.stderr)}")
        return json.loads(client.stdout), _memory_of(server)
    finally:
        server.terminate()
        server.wait(timeout=PATIENCE)
        server.stdout.close()


def _memory_of(server: subprocess.Popen[str]) -> int:
    """Return the peak memory that a server tells when its client has left; 0 where it does not in time."""
    found: list[int] = []

    def read() -> None:
        assert server.stdout is not None
        for line in server.stdout:
            found.extend(map(int, re.findall(r"(\d+) bytes of memory", line)[:1]))
            if found:
                return

    reader = threading.Thread(target=read, daemon=True)  # ends with the server, at the latest
    reader.start()
    reader.join(timeout=PATIENCE)
    return found[0] if found else 0


def _last_line(said: str) -> str:
    return said.strip().splitlines()[-1].removeprefix("reluctant: ") if said.strip() else "it said nothing"


def _compared(run: Run, bundle: Bundle, asked: dict[str, Any], server_memory: int, options: Options) -> dict[str, Any]:
    """Put what was measured beside plaintext and the estimate."""
    from reluctant import data

    model = load(run).model.eval()
    splits = data.load(bundle.plan.data, options.data_dir)
    images = splits.test.pixels[options.skip :][: options.images].numpy() / 255
    private = np.array([row["logits"] for row in asked["queries"]])
    assert bundle.floats is not None
    in_clear = np.array([clear.infer(bundle.plan, bundle.floats, image) for image in images])
    with torch.no_grad():
        normal = torch.from_numpy(np.stack([bundle.plan.normalised(image) for image in images])).float()
        plain = model(normal).numpy()
    estimated = cost.estimate(
        model, normal[:1], protocol="cheetah" if options.mode == "whole" else "reluctant",
        network=cost.Network(options.network[1], options.network[0]) if options.network else "none",
    )  # fmt: skip
    online = [row["online"] for row in asked["queries"]]
    return {
        "run": str(run.folder),
        "network": None if options.network is None else {"rtt": options.network[0], "bandwidth": options.network[1]},
        "mode": options.mode + ("-naive" if options.naive else ""),
        "images": len(private),
        "agree": int((private.argmax(1) == in_clear.argmax(1)).sum()),
        "agree_with_torch": int((private.argmax(1) == plain.argmax(1)).sum()),
        "max_logit_error": float(np.abs(private - in_clear).max()),
        "max_relative_error": float(np.abs(private - plain).max() / np.abs(plain).max()),
        "relus": bundle.plan.relus,
        "expected_wraps": bundle.plan.scales.expected_wraps,
        "setup": {key: asked["setup"][key] for key in PHASE},
        "offline": _median(asked["offline"]),
        "online": _median(online),
        "steps": {"offline": _steps(asked["offline"]), "online": _steps(online)},
        "peak_memory_bytes": {"server": server_memory, "client": asked["peak_memory_bytes"]},
        "estimated": {
            "protocol": estimated.protocol.name,
            "online": _estimate(estimated.online),
            "offline": _estimate(estimated.offline),
        },
    }


def _estimate(phase: cost.Phase) -> dict[str, Any]:
    return {"seconds": phase.seconds, "bytes_sent": phase.bytes_up, "bytes_received": phase.bytes_down}


def _median(phases: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median of each figure; nothing was prepared where there is none."""
    return {key: float(statistics.median(phase[key] for phase in phases)) if phases else 0.0 for key in PHASE}


def _steps(phases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the steps of the last query."""
    return phases[-1]["steps"] if phases else []
