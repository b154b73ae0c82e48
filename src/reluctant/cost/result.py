"""What a query costs: seconds, bytes and rounds of every layer, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from reluctant.cost.layers import Layer
from reluctant.cost.network import Network
from reluctant.cost.protocol import Protocol


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
