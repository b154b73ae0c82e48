"""Trainable slopes at the sites of a model: c·relu(x) + (1−c)·x, where c = 1 keeps the ReLU and c = 0 makes it linear.

A penalty shrinks the slopes of ReLUs that will stay along with those that will go. So a search may say from which slope on
a ReLU is full, and the network computes with min(1, slope / full) while penalty, count and optimizer see the slope itself.
"""

from __future__ import annotations

from math import prod
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from reluctant import _ops
from reluctant._example import Example, spell
from reluctant._rewired import replace_sites
from reluctant.errors import ModelError, unknown
from reluctant.sites import Patterns, Site, survey

Granularity = Literal["pixel", "channel", "layer"]


class SlopedReLU(nn.Module):
    """A ReLU with a slope c: c·relu(x) + (1−c)·x or, zeroing out, c·relu(x).

    Args:
        site: the name of the site it stands at.
        index: the position of that call among all.
        shape: the site's shape, without the batch.
        granularity: what one slope governs.
        zero_out: let c = 0 mean zero instead of linear.

    Attributes:
        slope: what is trained.
        full: the slope from which on a ReLU is full, as a search sets it; None: the slopes are computed with as they are.
    """

    def __init__(
        self,
        site: str,
        index: int,
        shape: tuple[int, ...],
        *,
        granularity: Granularity = "pixel",
        zero_out: bool = False,
    ) -> None:
        super().__init__()
        self.site, self.index, self.shape = site, index, tuple(shape)
        self.granularity, self.zero_out = granularity, zero_out
        self.slope = nn.Parameter(torch.ones(_slope_shape(self.shape, granularity)))
        self.full: float | None = None

    @property
    def governs(self) -> int:
        """How many ReLUs each of its slopes decides."""
        return prod(self.shape) // max(1, self.slope.numel())

    def effective(self) -> Tensor:
        """Return the slopes the network computes with; the gradient goes through to `slope` as if it were these."""
        if self.full is None:
            return self.slope
        return self.slope + ((self.slope / self.full).clamp(max=1) - self.slope).detach()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the slopes."""
        return (_ops.zeroing_relu if self.zero_out else _ops.sloped_relu)(x, self.effective())

    def extra_repr(self) -> str:
        """Show the shape and the granularity."""
        return f"{spell(self.shape)}, {self.granularity}" + (", zero_out" if self.zero_out else "")


class FixedReLU(nn.ReLU):
    """A site that `include` and `exclude` leave alone: a plain ReLU that knows its place, so that it is counted."""

    def __init__(self, site: str, index: int, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.site, self.index, self.shape = site, index, tuple(shape)


def attach(
    model: nn.Module,
    example: Example,
    *,
    granularity: Granularity = "pixel",
    zero_out: bool = False,
    include: Patterns = None,
    exclude: Patterns = None,
) -> nn.Module:
    """Return a copy of the model with a trainable slope, 1 to begin with, for every ReLU.

    Args:
        model: any network; it is not changed. Its parameters and buffers keep their names and values in the copy.
        example: an input it accepts, with a batch dimension.
        granularity: one slope for each `pixel`, `channel` (dimension 1 of N×C×H×W, the last of N×T×D) or `layer`.
        zero_out: let c = 0 mean zero instead of linear.
        include: only these sites: names with `*` and `?`, or modules of the model; None for all.
        exclude: and not these; what is left out stays a plain ReLU and counts in full.

    Returns:
        The copy; `sloped(copy)` gives its slopes. Where the model has a mask or slopes already, it begins with those.

    Raises:
        ModelError, ExampleError: as `count`.

    Example:
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        >>> student = attach(net, torch.zeros(1, 4))
        >>> {site: tuple(sloped.slope.shape) for site, sloped in sloped(student).items()}
        {'1': (8,)}
    """
    if granularity not in get_args(Granularity):
        raise unknown("granularity", str(granularity), get_args(Granularity))
    with torch.inference_mode(False):
        seen, sites = survey(model, example, include=include, exclude=exclude)
        like = next(model.parameters(), torch.empty(0))

        def module(index: int, site: Site) -> nn.Module:
            standing = seen.standing(site.name)
            if standing is not None and not isinstance(standing, nn.ReLU):
                _check_compatible(site, standing, zero_out)
            if site.fixed:
                return FixedReLU(site.name, index, site.shape)
            sloped = SlopedReLU(site.name, index, site.shape, granularity=granularity, zero_out=zero_out)
            _begin_with_(sloped, standing)
            return sloped.to(like)

        reachable = [(index, site) for index, site in enumerate(sites) if site.reachable]
        modules = {site.name: module(index, site).train(model.training) for index, site in reachable}
        student = replace_sites(seen.root, seen.trace, seen.inputs, modules)
        student.reluctant_beyond = {s.name: s.count for s in sites if not s.reachable}  # type: ignore[assignment]
    return student


def _check_compatible(site: Site, standing: nn.Module, zero_out: bool) -> None:
    """Refuse what would bring back ReLUs that the network has lost, or change what became of them."""
    if site.fixed:
        raise ModelError(f"site '{site.name}' is masked already, so it cannot be left alone as a ReLU; do not exclude it")
    if getattr(standing, "zero_out", False) != zero_out:
        has, other = ("zero", "linear") if not zero_out else ("linear", "zero")
        raise ModelError(f"what site '{site.name}' does not keep is {has} already; it cannot become {other}")


@torch.no_grad()
def _begin_with_(sloped: SlopedReLU, standing: nn.Module | None) -> None:
    """Where a network has a mask or slopes already, begin with those, so that the copy computes the same."""
    if isinstance(standing, nn.Identity):
        sloped.slope.zero_()
    values = getattr(standing, "mask", None) if not isinstance(standing, SlopedReLU) else standing.effective()
    if values is None:
        return
    full = values.detach().float().expand(sloped.shape)
    governed = [dim for dim, size in enumerate(sloped.slope.shape) if size == 1]
    lowest, highest = (f(governed, keepdim=True) if governed else full for f in (full.amin, full.amax))
    if not torch.equal(lowest, highest):
        raise ModelError(
            f"site '{sloped.site}' has a finer mask than one {sloped.granularity}; attach slopes by pixel, "
            "or to the network before it was masked"
        )
    sloped.slope.copy_(highest)


def sloped(model: nn.Module) -> dict[str, SlopedReLU]:
    """Return the sloped ReLUs of a network by site, in the order of the calls; found by type, whatever wraps them."""
    found = {m.site: m for m in _in_order(model) if isinstance(m, SlopedReLU)}
    if not found:
        raise ModelError(f"{type(model).__name__} has no slopes; make a copy that has with reluctant.attach")
    return found


def left_alone(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the sites of a network with slopes that have none: their ReLUs stay, and count."""
    beyond = {site: (n,) for m in model.modules() for site, n in getattr(m, "reluctant_beyond", {}).items()}
    return {m.site: m.shape for m in _in_order(model) if isinstance(m, FixedReLU)} | beyond


def shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Return the shapes of all sites of a network with slopes, in the order of the calls."""
    return {m.site: m.shape for m in _in_order(model)} | left_alone(model)


def size(model: nn.Module) -> int:
    """Return how many ReLUs a network with slopes has without a mask."""
    return sum(prod(shape) for shape in shapes(model).values())


def _in_order(model: nn.Module) -> list[SlopedReLU | FixedReLU]:
    return sorted((m for m in model.modules() if isinstance(m, SlopedReLU | FixedReLU)), key=lambda m: m.index)


def _slope_shape(shape: tuple[int, ...], granularity: Granularity) -> tuple[int, ...]:
    """One per element; one per channel; one. Kept broadcastable to the site's shape.

    A channel is the first dimension of C×H×W and the last of T×D.
    """
    if granularity == "pixel":
        return shape
    channel = -1 if len(shape) <= 2 else 0
    ones = [1] * len(shape)
    if granularity == "channel" and shape:
        ones[channel] = shape[channel]
    return tuple(ones)
