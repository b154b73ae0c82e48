"""`reluctant cost`: what a query costs under private inference, estimated."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import torch
import typer

from reluctant import cost as costs
from reluctant import sites
from reluctant.cli import _network
from reluctant.cli._show import Json, console, octets, percent, print_json, table
from reluctant.cost import Cost, Network, Phase, Protocol
from reluctant.cost.network import named
from reluctant.errors import OptionError


def cost(
    run: _network.MaybeRun = None,
    arch: _network.Arch = None,
    model: _network.Model = None,
    inputs: _network.Input = None,
    arch_arg: _network.ArchArg = None,
    num_classes: _network.Classes = 10,
    relus: Annotated[
        str | None, typer.Option("--relus", help='Pretend that so many are kept: 15000, "15k", "10%".')
    ] = None,
    protocol: Annotated[
        str, typer.Option("--protocol", help=f"One of {', '.join(costs.names())}, or a TOML file of the same form.")
    ] = "delphi",
    network: Annotated[str, typer.Option("--network", help=f"One of {', '.join(costs.NETWORKS)}.")] = "lan",
    bandwidth: Annotated[float | None, typer.Option("--bandwidth", help="Mbit/s, instead of the network's.")] = None,
    rtt: Annotated[float | None, typer.Option("--rtt", help="Round-trip time in ms, instead of the network's.")] = None,
    plaintext_seconds: Annotated[
        float | None,
        typer.Option("--plaintext-seconds", help="Of one inference without encryption; measured if not given."),
    ] = None,
    latency: Annotated[
        float | None, typer.Option("--latency", help="Say which budget meets this many seconds online.")
    ] = None,
    together: Annotated[bool, typer.Option("--together", help="With --latency: offline and online together.")] = False,
    sources: Annotated[
        bool, typer.Option("--sources", help="List the protocol's constants and where they come from.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Estimate what one query costs under private inference: seconds, bytes, rounds, layer by layer.

    For instance: reluctant cost --arch resnet18 --relus 50k --protocol snl-paper --plaintext-seconds 0.019
    """
    rules = costs.read(protocol)
    if together and latency is None:
        raise OptionError("--together says what --latency counts; pass --latency too")
    connection = _connection(network, bandwidth, rtt)
    net, example = _network.named(run, arch, model, inputs, arch_arg, num_classes)
    plain = costs.measure_plaintext(net, example) if plaintext_seconds is None else plaintext_seconds
    budget = None
    if latency is not None:
        budget = costs.budget_for(
            latency,
            net,
            example,
            together=together,
            protocol=rules,
            network=connection,
            plaintext_seconds=plain,
        )
    found = costs.estimate(
        net,
        example,
        protocol=rules,
        network=connection,
        plaintext_seconds=plain,
        relus=relus if relus is not None or budget is None else str(budget),
    )
    found = replace(found, plaintext_measured=plaintext_seconds is None)
    if as_json:
        extra = {} if budget is None else {"latency": latency, "budget": budget}
        listed = {
            "sources": {name: {"value": _constant(rules, name), "source": source} for name, source in rules.sources.items()}
        }
        listed = listed if sources else {}
        print_json({**found.as_dict(), **extra, **listed})
        return
    _print(found, sources)
    if budget is not None:
        phase = "offline and online together" if together else "online"
        those = "all ReLUs" if budget == _size(net, example) else f"{budget:,} ReLUs"
        console.print(
            f"\nA budget of {those} meets {latency:g} s {phase}."
            if budget
            else f"\nOnly no ReLU at all meets {latency:g} s."
        )
    if sources:
        console.print()
        for name, source in rules.sources.items():
            console.print(f"{name} = {_constant(rules, name):g}: {source}", highlight=False)


def _constant(rules: Protocol, name: str) -> float:
    section, _, key = name.partition(".")
    return float(getattr(getattr(rules, section), key))


def _size(net: torch.nn.Module, example: torch.Tensor | tuple[torch.Tensor, ...]) -> int:
    return sites.count(net, example).total


def _connection(name: str, bandwidth: float | None, rtt: float | None) -> Network:
    chosen = named(name)
    if bandwidth is not None:
        chosen = replace(chosen, bandwidth=bandwidth * 1e6)
    return chosen if rtt is None else replace(chosen, rtt=rtt / 1e3)


def _print(found: Cost, sources: bool) -> None:
    rules, offline = found.protocol, found.protocol.offline
    shown = table("layer", "#ReLUs", "#MACs", "#online s", *(["#offline s"] if offline else []), title=rules.title)
    for each in found.layers:
        if each.layer.kind == "relu" and not each.layer.relus:
            continue
        seconds = [f"{each.online.seconds:.4f}", *([f"{each.offline.seconds:.4f}"] if offline else [])]
        shown.add_row(each.layer.name, *(f"{n:,}" if n else "" for n in (each.layer.relus, each.layer.macs)), *seconds)
    shown.add_section()
    totals = [f"{found.online.seconds:.4f}", *([f"{found.offline.seconds:.4f}"] if offline else [])]
    shown.add_row("total", f"{found.relus:,}", f"{found.macs:,}", *totals, style="bold")
    console.print(shown)
    summary = table("estimated", "#seconds", "#sent by the client", "#sent by the server", "#rounds")
    rows: list[tuple[str, Phase]] = [("online", found.online)]
    if offline:
        rows += [("offline", found.offline), ("together", found.total)]
    for name, phase in rows:
        rounds = "–" if phase.rounds is None else f"{phase.rounds:,.0f}"
        summary.add_row(name, f"{phase.seconds:.3f}", octets(phase.bytes_up), octets(phase.bytes_down), rounds)
    console.print()
    console.print(summary)
    how = "measured here" if found.plaintext_measured else "given"
    console.print(f"\n{found.bottleneck()}")
    console.print(f"One plaintext inference takes {found.plaintext_seconds:.4f} s ({how}).")
    if found.stored_by_client:
        console.print(f"The client stores {octets(found.stored_by_client)} for every query.")
    for kind, elements in found.not_counted.items():
        console.print(
            f"Not in the estimate: {kind} of {elements:,} elements ({percent(elements, found.relus)} of the ReLUs)."
        )
    if not rules.bytes:
        console.print("This protocol says nothing of bytes, so the network does not matter.")
    said = "" if sources else " --sources says from what."
    console.print(f"{rules.about} All figures are estimated.{said}".strip())
