"""The two parties: what each does offline, before the input is there, and online.

Every value T of the plan is shared as r (the client's) and T − r (the server's), modulo 2⁶⁴. The client knows all its r
before the input exists:

    input     the client draws r and online sends x − r
    affine    offline, encryption gives the client u and the server v with u + v = W·r; online the server alone computes
              W·(x − r) + b + v, and the client's share is u
    local     each party computes on its own share
    relu      the kept elements of both shares go into a comparison; the client then replaces its share of the result by a
              fresh r, drawn offline, and sends the difference. Elements that are not kept stay as they are
    result    the server sends its share to the client

Everything that the client sends is masked by fresh uniform elements of the ring; the server sends nothing but shares.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reluctant.errors import MaterialError, PeerError
from reluctant.private import fixed, local, whole
from reluctant.private.clear import SMALLEST, Encoded
from reluctant.private.engine import Engine
from reluctant.private.fixed import Ring
from reluctant.private.material import Store
from reluctant.private.plan import AFFINE, LOCAL, Plan, Step
from reluctant.private.wire import Channel, Traffic


@dataclass(frozen=True)
class StepSpent:
    """What one step took: its time, what went over the control connection, and which programs SPU ran for it."""

    name: str
    kind: str
    seconds: float
    own: Traffic
    runs: range


@dataclass
class Spent:
    """What a phase took, as one party sees it. Asking for bytes waits for SPU's log; nothing else does."""

    engine: Engine
    steps: list[StepSpent] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return sum(step.seconds for step in self.steps)

    def traffic(self) -> Traffic:
        """Return what was sent and received in all."""
        return _sum([self._of(step) for step in self.steps])

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        steps = [{"step": step.name, "kind": step.kind, **_figures(step.seconds, self._of(step))} for step in self.steps]
        return {**_figures(self.seconds, self.traffic()), "steps": steps}

    def _of(self, step: StepSpent) -> Traffic:
        return _sum([step.own, self.engine.traffic(step.runs)]) if len(step.runs) else step.own


def _sum(parts: list[Traffic]) -> Traffic:
    return Traffic(sum(t.sent for t in parts), sum(t.received for t in parts), sum(t.messages for t in parts))


def _figures(seconds: float, traffic: Traffic) -> dict[str, float]:
    sizes = {"bytes_sent": traffic.sent, "bytes_received": traffic.received, "messages": traffic.messages}
    return {"seconds": seconds, **sizes}


class _Party:
    """What both parties have: the plan, SPU, the control connection, a store of material."""

    shift: Callable[[Ring, int], Ring]

    def __init__(self, plan: Plan, engine: Engine, channel: Channel, store: Store) -> None:
        self.plan, self.engine, self.channel, self.store = plan, engine, channel, store

    def _measured(self, spent: Spent, step: Step, compute: Callable[[], Any]) -> Any:
        """Do something, and note what it took."""
        own, first, began = replace(self.channel.traffic), self.engine.runs, time.perf_counter()
        result = compute()
        seconds, now = time.perf_counter() - began, self.channel.traffic
        moved = Traffic(now.sent - own.sent, now.received - own.received, now.messages - own.messages)
        spent.steps.append(StepSpent(step.name, step.kind, seconds, moved, range(first, self.engine.runs)))
        return result

    def _local(self, step: Step, shares: list[Ring]) -> Ring:
        inputs = [shares[value] for value in step.inputs]
        return local.compute(step, inputs, self.plan.scales.weight_bits, type(self).shift)

    def _gathered(self, number: int, step: Step, share: Ring) -> Ring:
        """Return what of a share goes into a comparison."""
        if step.kind == "relu":
            return share.reshape(-1)[self.plan.kept[number]]
        return local.windows(step, share, self._outside).reshape(step.size, -1)

    def _put_back(self, number: int, step: Step, share: Ring, compared: Ring) -> Ring:
        """Put the result of a comparison where it belongs."""
        if step.kind == "max_pool":
            return compared.reshape(step.shape)
        flat = share.reshape(-1).copy()
        flat[self.plan.kept[number]] = compared
        return flat.reshape(step.shape)

    def _compare(self, step: Step, share: Ring) -> Ring:
        return self.engine.relu(share) if step.kind == "relu" else self.engine.largest(share)

    _outside = 0
    """What this party's share is outside of an image."""


class Client(_Party):
    """The party with the input.

    Args:
        plan, engine, channel, store: as for both.
        setup: where to note what the exchange of keys takes, which comes before the first preparation.
    """

    shift = staticmethod(fixed.shifted_by_client)

    def __init__(self, plan: Plan, engine: Engine, channel: Channel, store: Store, setup: Spent) -> None:
        super().__init__(plan, engine, channel, store)
        self._setup = setup

    def prepare(self) -> tuple[str, Spent]:
        """Prepare material for one query together with the server, and return its name."""
        spent = Spent(self.engine)
        self.channel.send({"prepare": True})
        name = str(self._answer("name"))
        self._measured(self._setup, Step("keys", (), (), "setup"), partial(self.engine.exchange_keys, self.plan))
        shares = [fixed.uniform(self.plan.input_shape)]
        kept = {"input": shares[0]}
        for number, step in enumerate(self.plan.steps):
            first = shares[step.inputs[0]]
            if step.kind in LOCAL:
                shares.append(self._local(step, shares))
            elif step.kind in AFFINE:
                u = self._measured(spent, step, partial(self.engine.affine, step, first.shape, first))
                shares.append(fixed.shifted_by_client(u, self.plan.scales.weight_bits))
            else:
                kept[f"{number}.share"] = self._gathered(number, step, first)
                kept[f"{number}.mask"] = fixed.uniform((len(kept[f"{number}.share"]),))
                shares.append(self._put_back(number, step, first, kept[f"{number}.mask"]))
        kept["result"] = shares[-1]
        self.store.put(name, kept)
        self._answer("prepared")
        return name, spent

    def query(self, name: str, image: NDArray[Any]) -> tuple[NDArray[np.float64], Spent]:
        """Ask about one image of 0…1 with material that was prepared, and return its logits."""
        bits = self.plan.scales.value_bits
        x = fixed.encode(self.plan.normalised(image), bits)
        material = self.store.take(name)  # spent from here on, whatever happens
        spent = Spent(self.engine)

        def begin() -> None:
            self.channel.send({"query": name})
            self._answer("go")
            self.channel.send_ring(x - material["input"])

        first = self.plan.steps[0]
        self._measured(spent, Step("input", (), first.shape, "input"), begin)
        for number, step in self.plan.numbered("relu", "max_pool"):
            share, mask = material[f"{number}.share"], material[f"{number}.mask"]

            def compare(step: Step = step, share: Ring = share, mask: Ring = mask) -> None:
                self.channel.send_ring(self._compare(step, share) - mask)

            self._measured(spent, step, compare)
        last = self.plan.steps[-1]
        answer = Step("result", (), last.shape, "result")
        theirs = self._measured(spent, answer, lambda: self.channel.receive_ring(last.shape))
        return fixed.decode(theirs + material["result"], bits), spent

    def whole(self, image: NDArray[Any], *, naive: bool = False) -> tuple[NDArray[np.float64], Spent]:
        """Ask about one image with the entire plan as one SPU program, for comparison."""
        spent = Spent(self.engine)
        x = self.plan.normalised(image)

        def run() -> NDArray[np.float64]:
            self.channel.send({"whole": naive})
            self._answer("go")
            program = whole.program(self.plan, naive=naive)
            mine = self.engine.run(("whole", naive), program, whole.operands(self.plan), [x])
            return whole.decoded(self.plan, mine, self.channel.receive_ring(mine.shape))

        return self._measured(spent, Step("whole", (), self.plan.steps[-1].shape, "whole"), run), spent

    def _answer(self, key: str) -> Any:
        header, _ = self.channel.receive()
        if key not in header:
            raise PeerError(f"the server answered {sorted(header)} where '{key}' was expected")
        return header[key]


class Server(_Party):
    """The party with the weights."""

    shift = staticmethod(fixed.shifted)
    _outside = SMALLEST

    def __init__(self, plan: Plan, weights: Encoded, engine: Engine, channel: Channel, store: Store) -> None:
        super().__init__(plan, engine, channel, store)
        self._weights = weights
        self.prepared = self.answered = 0

    def serve(self) -> None:
        """Do what the client asks for until it hangs up."""
        while True:
            header, _ = self.channel.receive()
            if "prepare" in header:
                self._prepare()
            elif "query" in header:
                self._query(str(header["query"]))
            elif "whole" in header:
                self._whole(bool(header["whole"]))
            elif "bye" in header:
                return
            else:
                raise PeerError(f"the client asks for {sorted(header)!r:.60}, which is unknown")

    def _prepare(self) -> None:
        name = secrets.token_hex(16)
        self.channel.send({"name": name})
        self.engine.exchange_keys(self.plan)
        material = {}
        for number, step in self.plan.numbered(*AFFINE):
            shape = self.plan.shape(step.inputs[0])
            material[str(number)] = self.engine.affine(step, shape, self._weights.weight[number])
        self.store.put(name, material)
        self.channel.send({"prepared": name})
        self.prepared += 1

    def _whole(self, naive: bool) -> None:
        self.channel.send({"go": "whole"})
        mine = whole.of_server(self.plan, self._weights)
        program = whole.program(self.plan, naive=naive)
        self.channel.send_ring(self.engine.run(("whole", naive), program, whole.operands(self.plan), mine))
        self.answered += 1

    def _query(self, name: str) -> None:
        try:
            material = self.store.take(name)
        except MaterialError as error:
            self.channel.refuse(str(error))
            raise
        self.channel.send({"go": name})
        shares = [self.channel.receive_ring(self.plan.input_shape)]
        bits = self.plan.scales.weight_bits
        for number, step in enumerate(self.plan.steps):
            first = shares[step.inputs[0]]
            if step.kind in LOCAL:
                shares.append(self._local(step, shares))
            elif step.kind in AFFINE:
                own = fixed.with_bias(
                    step, self._weights.bias[number], fixed.affine(step, self._weights.weight[number], first)
                )
                shares.append(fixed.shifted(own + material[str(number)], bits))
            else:
                compared = self._compare(step, self._gathered(number, step, first))
                compared = compared + self.channel.receive_ring(compared.shape)
                shares.append(self._put_back(number, step, first, compared))
        self.channel.send_ring(shares[-1])
        self.answered += 1
