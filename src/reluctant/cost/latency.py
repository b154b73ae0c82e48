"""Which budget meets a latency."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import nn

from reluctant._example import Example
from reluctant.cost.estimate import estimate, layer_cost
from reluctant.cost.layers import Layer
from reluctant.cost.result import LayerCost
from reluctant.errors import BudgetError, OptionError


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
    empty = [layer_cost(replace(each.layer, relus=0), whole.protocol, whole.network, 0.0, open=True) for each in sites]
    fixed = linear + sum(seconds(each) for each in empty)
    one = layer_cost(Layer("", "relu", relus=1), whole.protocol, whole.network, 0.0)
    none = layer_cost(Layer("", "relu"), whole.protocol, whole.network, 0.0, open=True)
    each_relu = seconds(one) - seconds(none)
    if fixed > latency:
        waiting = f"waiting for {len(sites)} sites takes {fixed - linear:.3g} s of them"
        raise BudgetError(
            f"with ReLUs at all sites it takes {fixed:.3g} s before the first ReLU, which is more than {latency:g} s; "
            f"{waiting}, so take a network with fewer sites, leave some without ReLUs, or be nearer"
        )
    return min(whole.relus, int((latency - fixed) / each_relu + 1e-9)) if each_relu > 0 else whole.relus
