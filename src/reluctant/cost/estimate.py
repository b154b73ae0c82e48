"""Estimate what a network costs under private inference, layer by layer."""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from reluctant._example import Example, arguments
from reluctant.budget import Budget, parse
from reluctant.cost.layers import Layer, layers
from reluctant.cost.network import Network, named
from reluctant.cost.protocol import Protocol, Unit, read
from reluctant.cost.result import Cost, LayerCost, Phase
from reluctant.errors import OptionError


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
    costs = [layer_cost(step, rules, connection, plain * step.macs / macs if macs else 0.0) for step in steps]
    others: dict[str, int] = {}
    for other in found.other_nonlinear:
        others[other.kind] = others.get(other.kind, 0) + other.count
    return Cost(rules, connection, tuple(costs), plain, plaintext_seconds is None, others)


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


def layer_cost(layer: Layer, rules: Protocol, network: Network, plaintext: float, *, open: bool = False) -> LayerCost:
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
