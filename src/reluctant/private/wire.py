"""The control connection: small messages with arrays, over one TCP socket, read with limits and never unpickled.

A message is 16 bytes (magic, length of the header, length of the payload), a JSON object, and the payload's raw bytes.
"""

from __future__ import annotations

import json
import math
import socket
import struct
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from reluctant.errors import PeerError
from reluctant.private.fixed import Ring

_HEAD = struct.Struct("<4sIQ")
_MAGIC = b"RLC1"
_MOST_HEADER = 1 << 16


@dataclass
class Traffic:
    """What has gone over a connection."""

    sent: int = 0
    received: int = 0
    messages: int = 0


def printable(text: Any, most: int = 300) -> str:
    """Return what somebody else said so that it can be shown: one line, without control characters.

    >>> printable("no\\x1b[31m\\nway")
    'no?[31m?way'
    """
    return "".join(letter if letter.isprintable() else "?" for letter in str(text)[:most])


class Channel:
    """One end of the control connection.

    Args:
        connection: a connected socket.
        timeout: how many seconds a message may take, from its first byte awaited to its last, at most.
    """

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        self._timeout = timeout
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self.traffic = Traffic()

    @property
    def peer(self) -> str:
        """The address of the other side."""
        try:
            return str(self._socket.getpeername()[0])
        except OSError as error:
            raise PeerError(f"the other side is gone ({error})") from error

    @property
    def host(self) -> str:
        """The address at which the other side reaches this one."""
        return str(self._socket.getsockname()[0])

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        """Send a message."""
        text = json.dumps(header).encode()
        data = _HEAD.pack(_MAGIC, len(text), len(payload)) + text + payload
        try:
            self._socket.settimeout(self._timeout)
            self._socket.sendall(data)
        except OSError as error:
            raise PeerError(f"the other side is gone ({error or type(error).__name__})") from error
        self.traffic.sent += len(data)
        self.traffic.messages += 1

    def receive(self, *, most: int = 0) -> tuple[dict[str, Any], bytes]:
        """Wait for a message.

        Args:
            most: the largest payload that is expected, in bytes; one that is larger is not read.

        Raises:
            PeerError: nothing came in time, the other side is gone, or what came is not a message of ours.
        """
        until = time.monotonic() + self._timeout
        magic, header_size, payload_size = _HEAD.unpack(self._exactly(_HEAD.size, until))
        if magic != _MAGIC:
            raise PeerError("what came over the connection is not a message of reluctant private")
        if header_size > _MOST_HEADER or payload_size > most:
            raise PeerError(
                f"the other side announced {header_size} and {payload_size} bytes, {most} were expected at most"
            )
        try:
            header = json.loads(self._exactly(header_size, until))
        except (ValueError, RecursionError) as error:
            raise PeerError(f"the other side sent a message that cannot be read: {error}") from error
        if not isinstance(header, dict):
            raise PeerError("the other side sent a message that is not an object")
        if "refused" in header:
            raise PeerError(f"refused: {printable(header['refused'])}")
        payload = self._exactly(payload_size, until)
        self.traffic.received += _HEAD.size + header_size + payload_size
        return header, payload

    def send_ring(self, values: Ring) -> None:
        """Send elements of the ring."""
        self.send({}, np.ascontiguousarray(values).tobytes())

    def receive_ring(self, shape: tuple[int, ...]) -> Ring:
        """Receive exactly so many elements."""
        expected = 8 * math.prod(shape)
        _, payload = self.receive(most=expected)
        if len(payload) != expected:
            raise PeerError(f"the other side sent {len(payload)} bytes where {expected} were expected")
        return np.frombuffer(payload, np.int64).reshape(shape).copy()

    def refuse(self, reason: str) -> None:
        """Tell the other side why not; whether it still listens does not matter."""
        with suppress(PeerError):
            self.send({"refused": reason})

    def has_ended(self) -> bool:
        """Tell whether the other side has hung up, without waiting."""
        self._socket.settimeout(0)
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def wait_for_end(self) -> None:
        """Wait until the other side hangs up; what it still says, or that it says nothing, does not matter."""
        until = time.monotonic() + self._timeout
        with suppress(OSError, PeerError):
            while True:
                self._exactly(1, until)

    def close(self) -> None:
        """Hang up."""
        self._socket.close()

    def fileno(self) -> int:
        """The socket's number, to hand it to another process."""
        return self._socket.fileno()

    def _exactly(self, size: int, until: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                if (left := until - time.monotonic()) <= 0:
                    raise TimeoutError
                self._socket.settimeout(left)
                part = self._socket.recv(min(1 << 20, size - len(parts)))
            except TimeoutError as error:
                raise PeerError("the other side has not answered in time") from error
            except OSError as error:
                raise PeerError(f"the other side is gone ({error or type(error).__name__})") from error
            if not part:
                raise PeerError("the other side has hung up")
            parts += part
        return bytes(parts)
