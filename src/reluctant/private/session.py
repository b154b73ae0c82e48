"""How two parties meet: the greeting over the control connection, and the addresses at which SPU will connect them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reluctant.errors import OptionError, PeerError
from reluctant.private import engine as spu
from reluctant.private.material import Store
from reluctant.private.parties import Client, Spent, StepSpent
from reluctant.private.plan import Plan
from reluctant.private.wire import Channel, printable

GREETING = "reluctant private 1"
MOST_PLAN = 1 << 28
"""Bytes of a plan that a client is ready to read."""


def free_port(host: str) -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def parse_address(text: str) -> tuple[str, int]:
    """Read host:port.

    >>> parse_address("localhost:7077")
    ('localhost', 7077)
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or "/" in host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise OptionError(f"the address '{text}' cannot be read; pass host:port, such as localhost:7077")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_port(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536


def greet(channel: Channel, plan: Plan, data: bytes) -> str:
    """The server's side: check who it is, send the plan, and return the address of the client's SPU.

    Raises:
        PeerError: it is not a client of ours, or one of another plan; it has been told.
    """
    header, _ = channel.receive()
    if header.get("hello") != GREETING:
        channel.refuse(f"this server speaks '{GREETING}'; use the same version of reluctant on both sides")
        raise PeerError(f"a client greeted with {printable(header.get('hello'), 60)}")
    wanted = header.get("plan")
    if wanted not in (None, plan.version):
        channel.refuse(f"this server has plan {plan.version} and you have {wanted!r:.40}; fetch the plan again")
        raise PeerError(f"a client has plan {wanted!r:.40}")
    channel.send({"plan": plan.version}, data)
    header, _ = channel.receive()
    port = header.get("port")
    if not _is_port(port):
        channel.refuse("the port of your SPU cannot be read")
        raise PeerError(f"a client named port {port!r:.60}")
    return f"{channel.peer}:{port}"


class Session:
    """A client's connection to a server: prepare material, ask queries. A context manager, which hangs up at its end.

    Args:
        server: host and port.
        material: a folder to keep offline material in.
        timeout: how many seconds to wait for the server at most.
        plan: the version that the server has to have; any if None.
        network: a round-trip time in seconds and a bandwidth in bits a second to pretend.
    """

    def __init__(
        self,
        server: tuple[str, int],
        material: Path,
        *,
        timeout: float = 120.0,
        plan: str | None = None,
        network: tuple[float, float] | None = None,
    ) -> None:
        spu.require()
        self._line = Line(network)
        server = self._line.to(server)
        try:
            connection = socket.create_connection(server, timeout=timeout)
        except OSError as error:
            self._line.close()
            raise PeerError(f"there is no server at {server[0]}:{server[1]} ({error}); is it running?") from error
        self._channel = Channel(connection, timeout)
        began = time.perf_counter()
        try:
            self.plan = self._greeted(plan)
            self._engine = self._met(timeout)
            self._engine.warm_up(self.plan)
            self.store = Store(material, self.plan.version)
        except BaseException:
            self._channel.close()
            self._line.close()
            raise
        seconds = time.perf_counter() - began
        done = StepSpent("setup", "setup", seconds, replace(self._channel.traffic), range(self._engine.runs))
        self.setup = Spent(self._engine, [done])
        """What connecting took, and the exchange of keys before the first preparation."""
        self._client = Client(self.plan, self._engine, self._channel, self.store, self.setup)

    def _greeted(self, wanted: str | None) -> Plan:
        """Greet the server, and return its plan."""
        self._channel.send({"hello": GREETING, "plan": wanted})
        header, data = self._channel.receive(most=MOST_PLAN)
        plan = Plan.load(data)
        if header.get("plan") != plan.version:
            raise PeerError("the server's plan is not the one that it announces")
        return plan

    def _met(self, timeout: float) -> spu.Engine:
        """Exchange the addresses at which the two SPUs listen, and connect them."""
        port = free_port(self._channel.host)
        self._channel.send({"port": self._line.to((self._channel.host, port))[1]})
        header, _ = self._channel.receive()
        theirs = header.get("port")
        if not _is_port(theirs):
            raise PeerError("the server did not say where its SPU is")
        assert isinstance(theirs, int)
        host, theirs = self._line.to((self._channel.peer, theirs))
        self._wait_for(host, theirs, timeout)
        return spu.Engine(spu.CLIENT, (f"{host}:{theirs}", f"{self._channel.host}:{port}"), timeout)

    def _wait_for(self, host: str, port: int, timeout: float) -> None:
        """Wait until the server's SPU listens: SPU itself would wait in native code, deaf to interrupts."""
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if self._channel.has_ended():
                raise PeerError("the server has hung up while it was starting the session")
            try:
                socket.create_connection((host, port), timeout=1).close()
            except OSError:
                time.sleep(0.1)
            else:
                return
        raise PeerError(f"the server's SPU cannot be reached at {host}:{port}; is that port open to you?")

    def prepare(self) -> tuple[str, Spent]:
        """Prepare material for one query."""
        return self._client.prepare()

    def query(self, image: NDArray[np.float64], name: str | None = None) -> tuple[NDArray[np.float64], Spent]:
        """Ask about an image of 0…1; without a name, the oldest material that is not spent is used."""
        ready = self.store.ready()
        if name is None and not ready:
            name, _ = self.prepare()
        return self._client.query(name or ready[0], image)

    def whole(self, image: NDArray[np.float64], *, naive: bool = False) -> tuple[NDArray[np.float64], Spent]:
        """Ask with the entire plan as one SPU program, for comparison."""
        return self._client.whole(image, naive=naive)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:  # the server may be anywhere in a step: no goodbye
            self._channel.close()
            self._line.close()

    def close(self) -> None:
        """Say goodbye, and wait until the server has hung up too: SPU wants both ends there when it does."""
        self._channel.send({"bye": True})
        self._engine.close()
        self._channel.wait_for_end()
        self._channel.close()
        self._line.close()


class Line:
    """What lies between the parties: nothing, or a network to pretend, one proxy process for every address."""

    def __init__(self, network: tuple[float, float] | None) -> None:
        self._network = network
        self._proxies: list[subprocess.Popen[str]] = []

    def to(self, address: tuple[str, int]) -> tuple[str, int]:
        """Return where to connect in order to reach an address."""
        if self._network is None:
            return address
        rtt, bandwidth = self._network
        command = [sys.executable, "-m", "reluctant.private.proxy", "--target", f"{address[0]}:{address[1]}"]
        proxy = subprocess.Popen(
            [*command, "--rtt", str(rtt), "--bandwidth", str(bandwidth)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._proxies.append(proxy)
        assert proxy.stdout is not None
        return "127.0.0.1", int(proxy.stdout.readline())

    def close(self) -> None:
        """End the proxies."""
        for proxy in self._proxies:
            proxy.kill()
            proxy.communicate()
