"""`reluctant private serve`."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from reluctant.cli._show import console, messages
from reluctant.cli.private._options import Material, Timeout, material_folder


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
    from reluctant.runs import Run

    engine.require()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with messages.status("making the plan"):
        bundle = from_run(Run.open(run))
    server = PrivateServer(
        bundle, host, port, material_folder(material, "server"), timeout=timeout, clients=clients, on_session=_left
    )
    try:
        plan = bundle.plan
        console.print(
            f"serving {run} on {host}:{server.port}: plan {plan.version}, {plan.relus:,} ReLUs, "
            f"{plan.scales.value_bits} bits, {plan.scales.expected_wraps:.1g} wrapped values expected in an image",
            soft_wrap=True,
        )
        server.serve()
    except KeyboardInterrupt:
        for again in (signal.SIGTERM, signal.SIGINT):  # what is cleaned up now is not interrupted
            signal.signal(again, signal.SIG_IGN)
        console.print("stopped")
    finally:
        server.close()


def _left(did: dict[str, int]) -> None:
    console.print(
        f"a client has left: {did['answered']} queries answered, material for {did['prepared']} prepared, "
        f"{did['peak_memory_bytes']} bytes of memory at most",
        soft_wrap=True,
    )
