"""What private inference costs: ReLUs and multiplications, protocols with their sources, estimates."""

from reluctant.cost.estimate import estimate, measure_plaintext
from reluctant.cost.latency import budget_for
from reluctant.cost.layers import Layer, layers
from reluctant.cost.network import NETWORKS, Network, named
from reluctant.cost.protocol import Protocol, names, read
from reluctant.cost.result import Cost, LayerCost, Phase

__all__ = [
    "NETWORKS",
    "Cost",
    "Layer",
    "LayerCost",
    "Network",
    "Phase",
    "Protocol",
    "budget_for",
    "estimate",
    "layers",
    "measure_plaintext",
    "named",
    "names",
    "read",
]
