"""The server: greets clients and gives each a worker process."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from reluctant.errors import OptionError, PeerError
from reluctant.private import engine as spu
from reluctant.private.bundle import Bundle
from reluctant.private.session import free_port, greet
from reluctant.private.wire import Channel, printable

log = logging.getLogger(__name__)

GREETING_TIMEOUT = 10.0
MOST_CONNECTIONS = 100
"""Of clients that are served or still greet; more are turned away at once."""


class PrivateServer:
    """Listens for clients of one plan.

    Args:
        bundle: what is served.
        host: the address to listen on.
        port: 0 for any that is free.
        material: a folder to keep offline material in.
        timeout: how many seconds to wait for a client at most.
        clients: how many are served at the same time.
        on_session: told what a client did, when it has left.
    """

    def __init__(
        self,
        bundle: Bundle,
        host: str,
        port: int,
        material: Path,
        *,
        timeout: float = 120.0,
        clients: int = 4,
        on_session: Callable[[dict[str, int]], None] | None = None,
    ) -> None:
        spu.require()
        self._bundle, self._data = bundle, bundle.plan.save()
        self._material, self._timeout = material, timeout
        self._on_session = on_session
        self._places = threading.BoundedSemaphore(clients)
        self._folder = tempfile.TemporaryDirectory(prefix="reluctant-server-")
        """Where workers keep what they need for a while: logs, no secrets."""
        try:
            self._listening = socket.create_server((host, port))
        except OSError as error:
            reason = (error.strerror or str(error)).partition(" (while")[0]
            self._folder.cleanup()
            raise OptionError(f"cannot listen on {host}:{port}: {reason}; pass another --port or --host") from error
        self.port = int(self._listening.getsockname()[1])
        self._shared = tempfile.TemporaryFile()  # noqa: SIM115 (it has no name, and ends with the last of our processes)
        self._shared.write(bundle.save())
        self._shared.flush()
        self._closed = False
        self._workers: set[subprocess.Popen[bytes]] = set()

    def serve(self) -> None:
        """Serve clients until `close` is called."""
        while not self._closed:
            try:
                connection, _ = self._listening.accept()
            except OSError as error:
                if not self._closed:  # no more files, or a client that was gone at once
                    log.warning("a client could not be let in: %s", error)
                    time.sleep(0.1)
                continue
            if threading.active_count() > MOST_CONNECTIONS:
                connection.close()
                continue
            threading.Thread(target=self._client, args=(connection,), daemon=True).start()

    def close(self) -> None:
        """Stop listening, and end the sessions that there are."""
        self._closed = True
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # wakes whoever waits in accept; closing alone does not
        self._listening.close()
        for worker in list(self._workers):
            worker.kill()
        self._shared.close()
        self._folder.cleanup()

    def _client(self, connection: socket.socket) -> None:
        channel = Channel(connection, GREETING_TIMEOUT)
        try:
            theirs = greet(channel, self._bundle.plan, self._data)
            if not self._places.acquire(blocking=False):
                channel.refuse("the server has as many clients as it takes; try again later")
                return
            try:
                self._session(channel, theirs)
            finally:
                self._places.release()
        except PeerError as error:
            log.warning("a client is gone: %s", error)
        finally:
            channel.close()

    def _session(self, channel: Channel, theirs: str) -> None:
        """Hand the connection to a worker, and wait for its end."""
        port = free_port(channel.host)
        channel.send({"port": port})
        command = [
            sys.executable, "-m", "reluctant.private.worker", "--socket", str(channel.fileno()),
            "--bundle", str(self._shared.fileno()), "--material", str(self._material),
            "--addresses", f"{channel.host}:{port}", theirs, "--timeout", str(self._timeout),
        ]  # fmt: skip
        worker = subprocess.Popen(
            command,
            pass_fds=[channel.fileno(), self._shared.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "TMPDIR": self._folder.name},  # what a worker that is killed leaves goes with the server
        )
        self._workers.add(worker)
        try:
            summary, said = worker.communicate()
        finally:
            self._workers.discard(worker)
        if not summary:  # the worker says what it has done when the client leaves
            last = said.decode(errors="replace").strip().splitlines()
            log.warning("a session ended early: %s", printable(last[-1]) if last else f"exit code {worker.returncode}")
        elif self._on_session is not None:
            self._on_session(json.loads(summary))
