"""What a network costs under private inference: estimated, layer by layer."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from reluctant._example import Example, arguments
from reluctant.budget import Budget, parse
from reluctant.cost.layers import Layer, layers
from reluctant.cost.network import Network, named
from reluctant.cost.protocol import Protocol, Unit, read
from reluctant.errors import BudgetError, OptionError


@dataclass(frozen=True)
class Phase:
    """Of one layer or of all, online or offline. Bytes and rounds are None where the protocol says nothing of them."""

    seconds: float = 0.0
    bytes_up: float | None = 0.0
    bytes_down: float | None = 0.0
    rounds: float | None = 0.0

    def __add__(self, other: Phase) -> Phase:
        def both(a: float | None, b: float | None) -> float | None:
            return None if a is None or b is None else a + b

        return Phase(
            self.seconds + other.seconds,
            both(self.bytes_up, other.bytes_up),
            both(self.bytes_down, other.bytes_down),
            both(self.rounds, other.rounds),
        )


@dataclass(frozen=True)
class LayerCost:
    """What one layer costs."""

    layer: Layer
    online: Phase
    offline: Phase
    stored_by_client: float | None

    @property
    def total(self) -> Phase:
        """Offline and online together."""
        return self.online + self.offline


@dataclass(frozen=True)
class Cost:
    """What one query costs: always estimated, never measured."""

    protocol: Protocol
    network: Network
    layers: tuple[LayerCost, ...]
    plaintext_seconds: float
    plaintext_measured: bool
    not_counted: dict[str, int]
    """Other non-linear operations by kind, with their elements: they cost too, and no constant here covers them."""

    estimated = True

    @property
    def online(self) -> Phase:
        """From the moment the input is there."""
        return sum((each.online for each in self.layers), Phase())

    @property
    def offline(self) -> Phase:
        """What can be prepared before."""
        return sum((each.offline for each in self.layers), Phase())

    @property
    def total(self) -> Phase:
        """Both together."""
        return self.online + self.offline

    @property
    def stored_by_client(self) -> float | None:
        """Bytes that the client keeps between the phases."""
        parts = [each.stored_by_client for each in self.layers]
        return None if None in parts else sum(part for part in parts if part is not None)

    @property
    def relus(self) -> int:
        """How many ReLUs are evaluated."""
        return sum(each.layer.relus for each in self.layers)

    @property
    def macs(self) -> int:
        """How many multiplications the linear layers take."""
        return sum(each.layer.macs for each in self.layers)

    def share_of_relus(self, phase: Callable[[LayerCost], Phase]) -> float:
        """Return which part of a phase's seconds the ReLUs take."""
        spent = [(each.layer.kind, phase(each).seconds) for each in self.layers]
        whole = sum(seconds for _, seconds in spent)
        return sum(seconds for kind, seconds in spent if kind == "relu") / whole if whole else 0.0

    def bottleneck(self) -> str:
        """Say in one sentence per phase whether ReLUs still are the bottleneck, and which layer takes most."""
        said = [_bottleneck("online", self, lambda each: each.online)]
        if self.protocol.offline:
            said.append(_bottleneck("offline and online together", self, lambda each: each.total))
        return " ".join(said)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "estimated": True,
            "protocol": self.protocol.name,
            "network": asdict(self.network),
            "relus": self.relus,
            "macs": self.macs,
            "plaintext_seconds": self.plaintext_seconds,
            "plaintext_measured": self.plaintext_measured,
            "online": asdict(self.online),
            "offline": asdict(self.offline) if self.protocol.offline else None,
            "total": asdict(self.total),
            "stored_by_client": self.stored_by_client,
            "bottleneck": self.bottleneck(),
            "not_counted": self.not_counted,
            "layers": [
                {
                    "name": each.layer.name,
                    "kind": each.layer.kind,
                    "relus": each.layer.relus,
                    "macs": each.layer.macs,
                    "online": asdict(each.online),
                    "offline": asdict(each.offline) if self.protocol.offline else None,
                }
                for each in self.layers
            ],
        }


def estimate(
    model: nn.Module,
    example: Example,
    *,
    protocol: str | Path | Protocol = "delphi",
    network: str | Network = "lan",
    plaintext_seconds: float | None = None,
    relus: Budget | None = None,
) -> Cost:
    """Estimate what one query costs.

    seconds = ReLUs · r + multiplications · m + layers · l + one plaintext inference + 8 · bytes / bandwidth + rounds · RTT,
    where the plaintext inference is online and spread over the layers by their multiplications.

    Args:
        model: the network, masked or not.
        example: an input it accepts, with a batch dimension.
        protocol: one of `reluctant.cost.names()`, or a TOML file of one's own.
        network: `lan`, `wan`, `none`, or a `Network`.
        plaintext_seconds: of one inference without encryption; by default it is measured here.
        relus: pretend that the network has so many, spread over its sites as its own are.

    Raises:
        OptionError: the protocol or network is unknown, the nearest is suggested; or a number is negative.
        ModelError, ExampleError: as `count`.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 1000), nn.ReLU(), nn.Linear(1000, 2))
        >>> round(estimate(net, torch.zeros(1, 4), protocol="snl-paper", plaintext_seconds=0.019).online.seconds, 6)
        0.04
    """
    rules = protocol if isinstance(protocol, Protocol) else read(protocol)
    connection = named(network)
    if plaintext_seconds is not None and not plaintext_seconds >= 0:
        raise OptionError(f"the plaintext inference takes {plaintext_seconds} s; pass 0 or more")
    steps, found = layers(model, example)
    if relus is not None:
        steps = _with_relus(steps, parse(relus, found.size))
    plain = plaintext_seconds if plaintext_seconds is not None else measure_plaintext(model, example)
    macs = sum(step.macs for step in steps)
    costs = [_layer_cost(step, rules, connection, plain * step.macs / macs if macs else 0.0) for step in steps]
    others: dict[str, int] = {}
    for other in found.other_nonlinear:
        others[other.kind] = others.get(other.kind, 0) + other.count
    return Cost(rules, connection, tuple(costs), plain, plaintext_seconds is None, others)


def budget_for(latency: float, model: nn.Module, example: Example, *, together: bool = False, **options: Any) -> int:
    """Return the largest budget that meets a latency.

    Every site is taken to keep some ReLUs, so that its rounds are paid for whatever the mask will be.

    Args:
        latency: in seconds.
        model: the network.
        example: an input of it.
        together: count the offline phase too.
        options: as for `estimate`.

    Raises:
        BudgetError: a network without ReLUs does not meet it, or the rounds of its sites alone take longer.
        OptionError: `together` of a protocol that says nothing of its offline phase.
    """
    if not 0 < latency < math.inf:
        raise OptionError(f"the latency is {latency:g} s; pass a number above 0")
    whole = estimate(model, example, **options)
    if together and not whole.protocol.offline:
        raise OptionError(f"{whole.protocol.name} has no offline phase to count; leave --together (together=True) out")

    def seconds(cost: LayerCost) -> float:
        return cost.total.seconds if together else cost.online.seconds

    linear = sum(seconds(each) for each in whole.layers if each.layer.kind == "linear")
    if linear > latency:
        raise BudgetError(
            f"without any ReLU it already takes {linear:.3g} s, which is more than {latency:g} s; "
            "take a smaller network or another protocol"
        )
    sites = [each for each in whole.layers if each.layer.kind == "relu"]
    empty = [_layer_cost(replace(each.layer, relus=0), whole.protocol, whole.network, 0.0, open=True) for each in sites]
    fixed = linear + sum(seconds(each) for each in empty)
    one = _layer_cost(Layer("", "relu", relus=1), whole.protocol, whole.network, 0.0)
    none = _layer_cost(Layer("", "relu"), whole.protocol, whole.network, 0.0, open=True)
    each_relu = seconds(one) - seconds(none)
    if fixed > latency:
        waiting = f"waiting for {len(sites)} sites takes {fixed - linear:.3g} s of them"
        raise BudgetError(
            f"with ReLUs at all sites it takes {fixed:.3g} s before the first ReLU, which is more than {latency:g} s; "
            f"{waiting}, so take a network with fewer sites, leave some without ReLUs, or be nearer"
        )
    return min(whole.relus, int((latency - fixed) / each_relu + 1e-9)) if each_relu > 0 else whole.relus


@torch.inference_mode()
def measure_plaintext(model: nn.Module, example: Example, repeat: int = 5) -> float:
    """Return how long one inference takes on this machine, the median of some."""
    args, kwargs = arguments(example)
    was_training = model.training
    model.eval()
    taken = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        model(*args, **kwargs)
        taken.append(time.perf_counter() - began)
    model.train(was_training)
    return statistics.median(taken[1:])


def _layer_cost(layer: Layer, rules: Protocol, network: Network, plaintext: float, *, open: bool = False) -> LayerCost:
    """Compute one layer; a site that keeps nothing costs nothing, unless it is to stay open."""
    paid = layer.kind == "linear" or layer.relus > 0 or open
    unit, fixed = (rules.relu, rules.relu_layer) if layer.kind == "relu" else (rules.linear, rules.linear_layer)

    def phase(when: str, extra: float) -> Phase:
        of, always = _amounts(unit, when), _amounts(fixed, when, paid)
        many = layer.relus if layer.kind == "relu" else layer.macs
        up, down = (layer.relus, layer.relus) if layer.kind == "relu" else (layer.inputs, layer.outputs)
        rounds = getattr(rules.rounds, f"{when}_{layer.kind}") if paid else 0.0
        sent, received = round(of["up"] * up + always["up"]), round(of["down"] * down + always["down"])
        seconds = of["seconds"] * many + always["seconds"] + extra
        if not rules.bytes:
            return Phase(seconds, None, None, None)
        return Phase(seconds + network.seconds(sent + received, rounds), sent, received, rounds)

    stored = unit.stored_by_client * layer.relus if rules.bytes else None
    return LayerCost(layer, phase("online", plaintext), phase("offline", 0.0), stored)


def _amounts(unit: Unit, when: str, paid: bool = True) -> dict[str, float]:
    return {name: getattr(unit, f"{when}_{name}") * paid for name in ("seconds", "up", "down")}


def _with_relus(steps: list[Layer], relus: int) -> list[Layer]:
    """Spread a number of ReLUs over the sites in proportion, so that it comes out exactly."""
    present = sum(step.relus for step in steps)
    made, given, seen = [], 0, 0
    for step in steps:
        seen += step.relus
        share = round(relus * seen / present) - given if present else 0
        given += share
        made.append(replace(step, relus=share) if step.kind == "relu" else step)
    return made


def _bottleneck(name: str, cost: Cost, phase: Callable[[LayerCost], Phase]) -> str:
    share = cost.share_of_relus(phase)
    if not cost.layers or not sum(phase(each).seconds for each in cost.layers):
        return f"{name.capitalize()}: nothing to pay."
    worst = max(cost.layers, key=lambda each: phase(each).seconds)
    takes = f"'{worst.layer.name}' takes most ({phase(worst).seconds:.3g} s)"
    if share >= 0.5:
        return f"{name.capitalize()}, ReLUs take {100 * share:.0f} % of the time; {takes}."
    heaviest = max((each for each in cost.layers if each.layer.kind == "linear"), key=lambda each: phase(each).seconds)
    return (
        f"{name.capitalize()}, ReLUs are not the bottleneck: they take {100 * share:.0f} % of the time and linear layers "
        f"the rest, '{heaviest.layer.name}' most of it ({phase(heaviest).seconds:.3g} s)."
    )
