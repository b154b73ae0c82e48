"""SPU with the Cheetah protocol: the steps that two parties compute together.

One engine per process: SPU's log, the only place where it says how much was sent, is the process's own.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import re
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reluctant.errors import OptionError, PeerError
from reluctant.private.fixed import Ring
from reluctant.private.plan import AFFINE, Plan, Step
from reluctant.private.wire import Traffic

log = logging.getLogger(__name__)

SERVER, CLIENT = 0, 1

LOG_PATIENCE = 20.0
"""Seconds to wait for SPU's log."""
ATTEMPT = 9.0
"""Seconds that SPU takes for one attempt to connect, whatever it is told."""
CONNECTING = 30
"""Seconds for both SPUs to reach each other, once it is known that they are there."""
WHOLE_BITS = 18
"""After the point, in programs of floating-point numbers; the split plan has bits of its own."""

_DETAILS = re.compile(r"Link details: total send bytes (\d+), recv bytes (\d+), send actions (\d+), recv actions (\d+)")


def available() -> bool:
    """Tell whether SPU is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("spu", "jax"))


def require() -> None:
    """Make sure that SPU is installed.

    Raises:
        OptionError: it is not.
    """
    if not available():
        raise OptionError("private inference needs SPU, which is not installed; pip install 'reluctant[private]'")


@dataclass(frozen=True)
class Operand:
    """Something that a program reads: whose it is, and its shape; the other party needs no more."""

    owner: int
    shape: tuple[int, ...]
    dtype: Any = np.int64


class Engine:
    """One party's side of SPU.

    Args:
        rank: SERVER or CLIENT.
        addresses: host:port of both, the server's first; this one is listened on, the other connected to.
        timeout: how many seconds to wait for the other side at most.
    """

    def __init__(self, rank: int, addresses: tuple[str, str], timeout: float) -> None:
        require()
        import jax
        import spu
        from spu import libspu

        jax.config.update("jax_enable_x64", True)
        self.rank = rank
        self.runs = 0
        """How many programs have run."""
        self._traffic: list[Traffic] = []
        self._folder = tempfile.TemporaryDirectory(prefix="reluctant-spu-")
        self._log = Path(self._folder.name) / "spu.log"
        self._programs: dict[Any, Any] = {}
        self._has_keys = False
        options = libspu.logging.LogOptions()
        options.enable_console_logger = False
        options.system_log_path = str(self._log)
        options.trace_log_path = str(Path(self._folder.name) / "trace.log")
        options.log_level = libspu.logging.LogLevel.INFO
        libspu.logging.setup_logging(options)
        link = libspu.link.Desc()
        link.recv_timeout_ms = link.http_timeout_ms = int(1000 * timeout)
        link.connect_retry_times = max(1, int(min(timeout, CONNECTING) / ATTEMPT))
        link.connect_retry_interval_ms = 100
        for name, address in zip(("server", "client"), addresses, strict=True):
            link.add_party(name, address)
        config = libspu.RuntimeConfig(
            protocol=libspu.ProtocolKind.CHEETAH, field=libspu.FieldType.FM64, fxp_fraction_bits=WHOLE_BITS
        )
        config.experimental_enable_colocated_optimization = (
            True  # else private weights become shared ones: 3 times the bytes
        )
        config.enable_pphlo_profile = True  # writes the bytes into the log
        try:
            self._link = libspu.link.create_brpc(link, rank)
        except RuntimeError as error:
            raise PeerError(f"the other side's SPU at {addresses[1 - rank]} does not answer") from error
        self._runtime, self._io = spu.Runtime(self._link, config), spu.Io(2, config)

    def affine(self, step: Step, shape: tuple[int, ...], operand: Ring) -> Ring:
        """Return this party's share of W·r, where the server has W and the client has r.

        Args:
            step: the affine step.
            shape: of the step's input.
            operand: the server's weight, the client's share of the step's input.
        """
        import jax.numpy as jnp
        from jax import lax

        weight: tuple[int, ...]
        values: tuple[int, ...]
        if step.kind == "linear":
            rows, columns = step.options["weight"]
            weight, values = (columns, rows), (step.size // rows, columns)
            mine = operand.T if self.rank == SERVER else operand

            def product(w: Any, r: Any) -> Any:
                return jnp.matmul(r, w)

        else:
            weight, values = _dense_shape(step), _padded_shape(step, shape)
            mine = dilated(step, operand) if self.rank == SERVER else padded(step, operand)
            stride, groups = tuple(step.options["stride"]), step.options["groups"]
            by_channel = groups == weight[0] and weight[1:] == (1, 1, 1) and stride == (1, 1)
            if by_channel:
                weight = (weight[0], 1, 1)

            def product(w: Any, r: Any) -> Any:
                if by_channel:
                    return w * r
                parts = [
                    lax.conv_general_dilated(
                        part[None], kernel, stride, "VALID", dimension_numbers=("NCHW", "OIHW", "NCHW")
                    )
                    for kernel, part in zip(jnp.split(w, groups, 0), jnp.split(r, groups, 0), strict=True)
                ]
                return jnp.concatenate(parts, 1) if groups > 1 else parts[0]

        operands = [Operand(SERVER, weight), Operand(CLIENT, values)]
        key = ("affine", step.kind, str((weight, values, step.options)))
        return self.run(key, product, operands, [mine]).reshape(step.shape)

    def relu(self, share: Ring) -> Ring:
        """Return this party's share of max(a + b, 0) from its share of a + b."""
        import jax.numpy as jnp

        def program(a: Any, b: Any) -> Any:
            return jnp.maximum(a + b, 0)

        return self.run(("relu", share.shape), program, _of_both(share), [share])

    def largest(self, share: Ring) -> Ring:
        """Return this party's share of the largest along the last dimension."""
        import jax.numpy as jnp

        def program(a: Any, b: Any) -> Any:
            total = a + b
            parts = [total[..., position] for position in range(share.shape[-1])]
            while len(parts) > 1:  # a tournament: as few rounds as there can be
                half = len(parts) // 2
                played = [jnp.maximum(x, y) for x, y in zip(parts[:half], parts[half : 2 * half], strict=True)]
                parts = played + parts[2 * half :]
            return parts[0]

        return self.run(("largest", share.shape), program, _of_both(share), [share]).reshape(share.shape[:-1])

    def warm_up(self, plan: Plan) -> None:
        """Compile the comparisons of a plan and run each twice: oblivious transfer is set up lazily, at its first uses."""
        for number, step in [*plan.numbered("relu", "max_pool")] * 2:
            if step.kind == "relu":
                self.relu(np.zeros(len(plan.kept[number]), np.int64))
            else:
                self.largest(np.zeros((step.size, math.prod(step.options["kernel"])), np.int64))

    def exchange_keys(self, plan: Plan) -> None:
        """Multiply once, the smallest step of each kind: keys for encryption are sent with the first product."""
        if self._has_keys:
            return
        for kind in AFFINE:
            step = min((step for _, step in plan.numbered(kind)), key=lambda step: step.size, default=None)
            if step is not None:
                shape = plan.shape(step.inputs[0])
                mine = tuple(step.options["weight"]) if self.rank == SERVER else shape
                self.affine(step, shape, np.zeros(mine, np.int64))
        self._has_keys = True

    def close(self) -> None:
        """Hang up."""
        self._link.stop_link()
        self._folder.cleanup()

    def run(self, key: Any, program: Callable[..., Any], operands: list[Operand], mine: list[NDArray[Any]]) -> Ring:
        """Run a program of operands of both parties, and return this party's raw share of its result.

        Args:
            key: what the program is called, for it is compiled once.
            program: a function of jax.
            operands: whose they are, and their shapes; both parties pass the same.
            mine: the values of this party's own, in their order.
        """
        import jax
        from spu import libspu
        from spu.utils import frontend

        names = [f"operand_{number}" for number in range(len(operands))]
        if key not in self._programs:
            arguments = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in operands]
            secret = [libspu.Visibility.VIS_SECRET] * len(operands)
            self._programs[key], _ = frontend.compile(
                frontend.Kind.JAX, program, arguments, {}, names, secret, lambda out: ["result"]
            )
        try:
            values = iter(mine)
            for name, each in zip(names, operands, strict=True):
                own = each.owner == self.rank
                value = next(values).reshape(each.shape).astype(each.dtype) if own else np.zeros(each.shape, each.dtype)
                shares = self._io.make_shares(np.ascontiguousarray(value), libspu.Visibility.VIS_SECRET, each.owner)
                self._runtime.set_var(name, shares[self.rank])
            self._runtime.run(self._programs[key])
            result = self._runtime.get_var("result")
        except RuntimeError as error:
            raise PeerError("the other side has not answered in time or is gone") from error
        self.runs += 1
        return _content(result)

    def traffic(self, runs: range) -> Traffic:
        """Return what some of the programs have sent; SPU writes that into its log, a little later."""
        until = time.monotonic() + LOG_PATIENCE
        while len(self._traffic) < runs.stop and time.monotonic() < until:
            found = _DETAILS.findall(self._log.read_text(errors="replace"))
            self._traffic = [Traffic(int(sent), int(received), int(out)) for sent, received, out, _ in found]
            if len(self._traffic) < runs.stop:
                time.sleep(0.05)
        some = self._traffic[runs.start : runs.stop]
        if len(some) < len(runs):
            log.warning("SPU's log says nothing of %d of %d programs; bytes are too few", len(runs) - len(some), len(runs))
        return Traffic(sum(t.sent for t in some), sum(t.received for t in some), sum(t.messages for t in some))


def _of_both(share: Ring) -> list[Operand]:
    return [Operand(SERVER, share.shape), Operand(CLIENT, share.shape)]


def _content(share: Any) -> Ring:
    from spu import libspu

    parts = []
    for data in share.share_chunks:
        chunk = libspu.ValueChunk()
        chunk.ParseFromString(data)
        parts.append(chunk.content)
    return np.frombuffer(b"".join(parts), np.int64).copy()


def padded(step: Step, values: Ring) -> Ring:
    """Put the zeros around a share that a convolution wants."""
    return np.pad(values, ((0, 0), *map(tuple, step.options["padding"])))


def dilated(step: Step, weight: Ring) -> Ring:
    """Put the zeros into a kernel that its dilation stands for."""
    made = np.zeros(_dense_shape(step), np.int64)
    down, right = step.options["dilation"]
    made[:, :, ::down, ::right] = weight
    return made


def _dense_shape(step: Step) -> tuple[int, ...]:
    out, into, height, width = step.options["weight"]
    down, right = step.options["dilation"]
    return (out, into, down * (height - 1) + 1, right * (width - 1) + 1)


def _padded_shape(step: Step, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *(size + sum(pair) for size, pair in zip(shape[1:], step.options["padding"], strict=True)))
