"""What lies between the two parties."""

from __future__ import annotations

import math
from dataclasses import dataclass

from reluctant.errors import OptionError, unknown


@dataclass(frozen=True)
class Network:
    """A connection: bits a second, and seconds until an answer to an empty message is there."""

    bandwidth: float
    rtt: float

    def __post_init__(self) -> None:
        if not 0 < self.bandwidth <= math.inf:
            raise OptionError(f"the bandwidth is {self.bandwidth:g} bits a second; pass a number above 0")
        if not 0 <= self.rtt < math.inf:
            raise OptionError(f"the round-trip time is {self.rtt:g} s; pass 0 or more")

    def seconds(self, octets: float, rounds: float) -> float:
        """Return how long so many bytes in so many rounds take."""
        return 8 * octets / self.bandwidth + rounds * self.rtt


NETWORKS = {
    "none": Network(math.inf, 0.0),
    "lan": Network(1e9, 0.5e-3),
    "wan": Network(100e6, 40e-3),
}
"""`none` leaves the connection out; the others are ordinary ones, chosen and not measured."""


def named(network: str | Network) -> Network:
    """Return a network by its name.

    >>> named("lan").bandwidth
    1000000000.0
    """
    if isinstance(network, Network):
        return network
    if network not in NETWORKS:
        raise unknown("network", network, NETWORKS)
    return NETWORKS[network]
