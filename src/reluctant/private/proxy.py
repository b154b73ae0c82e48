"""A network to pretend: a userspace proxy that lets bytes through late and slowly. Needs no privileges.

Run as a process of its own; it prints the port that it listens on.
"""

from __future__ import annotations

import argparse
import queue
import socket
import sys
import threading
import time


class Proxy:
    """Forwards connections with half a round trip of delay each way, at a limited rate each way.

    Args:
        target: where connections go.
        rtt: seconds.
        bandwidth: bits a second.
    """

    def __init__(self, target: tuple[str, int], rtt: float, bandwidth: float) -> None:
        self._target, self._delay, self._rate = target, rtt / 2, bandwidth / 8
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self._free = [0.0, 0.0]
        """When the line is free again, in each direction: all connections share it."""
        self._lock = threading.Lock()

    def serve(self) -> None:
        """Forward until the process ends."""
        while True:
            near, _ = self._listening.accept()
            threading.Thread(target=self._forward, args=(near,), daemon=True).start()

    def _forward(self, near: socket.socket) -> None:
        for _ in range(100):  # the target may not listen yet
            try:
                far = socket.create_connection(self._target)
                break
            except OSError:
                time.sleep(0.1)
        else:
            near.close()
            return
        for direction, (source, sink) in enumerate(((near, far), (far, near))):
            for end in (source, sink):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            line: queue.Queue[tuple[float, bytes]] = queue.Queue()
            threading.Thread(target=self._take, args=(source, line, direction), daemon=True).start()
            threading.Thread(target=self._give, args=(sink, line), daemon=True).start()

    def _take(self, source: socket.socket, line: queue.Queue[tuple[float, bytes]], direction: int) -> None:
        """Read, and note when each piece will have arrived at the other end."""
        while True:
            try:
                data = source.recv(1 << 16)
            except OSError:
                data = b""
            with self._lock:
                self._free[direction] = max(self._free[direction], time.monotonic()) + len(data) / self._rate
                arrives = self._free[direction] + self._delay
            line.put((arrives, data))
            if not data:
                return

    def _give(self, sink: socket.socket, line: queue.Queue[tuple[float, bytes]]) -> None:
        while True:
            arrives, data = line.get()
            time.sleep(max(0.0, arrives - time.monotonic()))
            try:
                if not data:
                    sink.shutdown(socket.SHUT_WR)
                    return
                sink.sendall(data)
            except OSError:
                return


def main() -> None:
    """Forward to a target until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--target", required=True, help="host:port")
    parser.add_argument("--rtt", type=float, required=True, help="seconds")
    parser.add_argument("--bandwidth", type=float, required=True, help="bits a second")
    options = parser.parse_args()
    host, _, port = options.target.rpartition(":")
    proxy = Proxy((host, int(port)), options.rtt, options.bandwidth)
    print(proxy.port, flush=True)
    threading.Thread(target=proxy.serve, daemon=True).start()
    sys.stdin.read()  # until whoever started it is gone


if __name__ == "__main__":
    main()
