"""One client's session on the server, in a process of its own: a crash or a hang of native code stays in it."""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import signal
import socket
import sys
from pathlib import Path

from reluctant.errors import ReluctantError
from reluctant.private.bundle import Bundle
from reluctant.private.engine import CONNECTING, SERVER, Engine
from reluctant.private.material import Store
from reluctant.private.parties import Server
from reluctant.private.wire import Channel


def main() -> None:
    """Serve the client on an inherited socket until it hangs up."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--socket", type=int, required=True)
    parser.add_argument("--bundle", type=int, required=True, help="a file descriptor")
    parser.add_argument("--material", type=Path, required=True)
    parser.add_argument("--addresses", nargs=2, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    options = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    channel = Channel(socket.socket(fileno=options.socket), options.timeout)
    try:
        bundle = Bundle.load(os.pread(options.bundle, os.fstat(options.bundle).st_size, 0))
        signal.alarm(CONNECTING)  # native code may wait longer than it was told to
        engine = Engine(SERVER, tuple(options.addresses), options.timeout)
        signal.alarm(0)
        engine.warm_up(bundle.plan)
        store = Store(options.material, bundle.plan.version)
        server = Server(bundle.plan, bundle.weights, engine, channel, store)
        server.serve()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        done = {"prepared": server.prepared, "answered": server.answered, "peak_memory_bytes": memory}
        print(json.dumps(done), flush=True)
        engine.close()
    except ReluctantError as error:
        channel.refuse(str(error))
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
