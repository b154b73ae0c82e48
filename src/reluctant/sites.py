"""Every ReLU call of any model, with its shape, and the other non-linear operations beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from math import prod
from typing import Any

from torch import nn

from reluctant._example import Example
from reluctant._observe import Observed
from reluctant._survey import Surveyed, look
from reluctant._trace import module_paths
from reluctant.errors import NoReLUError, OptionError

Patterns = str | nn.Module | Iterable[str | nn.Module] | None


@dataclass(frozen=True)
class Site:
    """One ReLU call of a model."""

    name: str
    shape: tuple[int, ...]
    """Of one example: C×H×W, T×D or D."""
    count: int
    """The ReLUs evaluated here for one example: all elements, or what a mask has kept of them."""
    fixed: bool = False
    """Left alone by `include` and `exclude`: its ReLUs are all kept, and all count."""

    @property
    def size(self) -> int:
        """The ReLUs that would be here without a mask."""
        return prod(self.shape)


@dataclass(frozen=True)
class Other:
    """A non-linear operation that is not a site, and that no budget governs."""

    name: str
    kind: str
    count: int
    """Elements of its result for one example."""


@dataclass(frozen=True)
class Sites(Sequence[Site]):
    """The sites of a model in the order of the calls; also what `reluctant.count` returns."""

    sites: tuple[Site, ...]
    other_nonlinear: tuple[Other, ...] = ()

    @property
    def total(self) -> int:
        """The count: how many scalar ReLUs one example evaluates."""
        return sum(site.count for site in self.sites)

    @property
    def size(self) -> int:
        """The count there would be without a mask."""
        return sum(site.size for site in self.sites)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every site."""
        return {site.name: site.shape for site in self.sites}

    def by_site(self) -> dict[str, int]:
        """Return the count of every site."""
        return {site.name: site.count for site in self.sites}

    def as_dict(self) -> dict[str, Any]:
        """Return what `reluctant count --json` prints."""
        return {
            "total": self.total,
            "sites": [{"name": s.name, "shape": list(s.shape), "count": s.count} for s in self.sites],
            "other_nonlinear": [asdict(other) for other in self.other_nonlinear],
        }

    def __len__(self) -> int:
        return len(self.sites)

    def __getitem__(self, index: Any) -> Any:
        return self.sites[index]

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)


def count(model: nn.Module, example: Example, *, include: Patterns = None, exclude: Patterns = None) -> Sites:
    """Count the ReLUs that one example evaluates, site by site.

    Args:
        model: any network; it is not changed.
        example: an input it accepts, with a batch dimension: a tensor, a tuple of arguments, or a dict of keywords.
        include: only these sites may be linearized: names with `*` and `?`, or modules of the model; None for all.
        exclude: and not these. What is left out keeps its ReLUs, and they still count.

    Returns:
        Sites, with `total`, `by_site()` and `other_nonlinear`.

    Raises:
        ExampleError: the network does not accept the example.
        ModelError: it is in half precision, has no ReLU (`NoReLUError`), or cannot be traced (`TraceError`).

    Example:
        >>> import torch
        >>> net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2), nn.Sigmoid())
        >>> found = count(net, torch.zeros(1, 4))
        >>> found.total, found.by_site(), found.other_nonlinear
        (8, {'1': 8}, (Other(name='3', kind='sigmoid', count=2),))
    """
    return survey(model, example, include=include, exclude=exclude)[1]


def survey(
    model: nn.Module, example: Example, *, include: Patterns = None, exclude: Patterns = None
) -> tuple[Surveyed, Sites]:
    """Find the sites, and give them with a copy of the model in which they can be replaced."""
    seen = look(model, example)
    sites = Sites(
        tuple(Site(name, shape, seen.evaluated(name)) for name, shape in seen.shapes.items()),
        _others(seen.observed),
    )
    if not sites:
        raise NoReLUError(_no_relu(model, sites))
    return seen, _select(model, sites, include, exclude)


def _others(observed: list[Observed]) -> tuple[Other, ...]:
    """Name the operations: after their module where it does just this, else after the module and the kind."""
    in_place = Counter(one.place for one in observed)
    others: dict[str, Other] = {}
    for one in observed:
        alone = one.place.leaf and in_place[one.place] == 1
        base = one.place.path if alone else f"{one.place.path}.{one.kind}".lstrip(".")
        name, number = base, 1
        while name in others:
            number += 1
            name = f"{base}_{number}"
        others[name] = Other(name, one.kind, one.count)
    return tuple(others.values())


def _no_relu(model: nn.Module, sites: Sites) -> str:
    kinds = sorted({other.kind for other in sites.other_nonlinear})
    beside = f"its non-linear operations are {', '.join(kinds)}" if kinds else "it has no other non-linear operation"
    return f"{type(model).__name__} calls no ReLU on a batch of features, so there is nothing to linearize; {beside}"


def _select(model: nn.Module, sites: Sites, include: Patterns, exclude: Patterns) -> Sites:
    chosen = set(sites.shapes) if include is None else _matching(model, sites, include, "include")
    chosen -= _matching(model, sites, exclude, "exclude")
    if not chosen:
        raise OptionError("include and exclude leave no site to linearize; widen one of them")
    return replace(sites, sites=tuple(replace(site, fixed=site.name not in chosen) for site in sites))


def _matching(model: nn.Module, sites: Sites, patterns: Patterns, option: str) -> set[str]:
    """A pattern matches the sites of that name and everything inside the module of that name."""
    matched: set[str] = set()
    for pattern in (patterns,) if isinstance(patterns, str | nn.Module) else patterns or ():
        names = [pattern] if isinstance(pattern, str) else module_paths(model).get(pattern, [])
        hits = {
            site.name
            for site in sites
            for name in names
            if name == "" or fnmatchcase(site.name, name) or fnmatchcase(site.name, f"{name}.*")
        }
        if not hits:
            what = f"'{pattern}'" if isinstance(pattern, str) else f"the {type(pattern).__name__} passed"
            raise OptionError(f"{option}: {what} matches no site; the sites are {', '.join(sites.shapes)}")
        matched |= hits
    return matched
