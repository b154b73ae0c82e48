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
from reluctant._tracer import module_paths
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
    """Its ReLUs are all kept, and all count: left alone by `include` and `exclude`, or out of reach."""
    reachable: bool = True
    """Whether its elements can be decided one by one; not inside a closed module, or where the batch is folded."""

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


@dataclass(frozen=True, repr=False)
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

    def __repr__(self) -> str:
        return f"Sites({self.total:,} ReLUs in {len(self)} sites, {len(self.other_nonlinear)} other non-linear operations)"

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
    within = [Site(name, shape, seen.evaluated(name)) for name, shape in seen.shapes.items()]
    others = _others(seen.observed, {site.name for site in within})
    beyond = [Site(o.name, (o.count,), o.count, fixed=True, reachable=False) for o in others if o.kind == "relu"]
    sites = Sites((*within, *beyond), tuple(other for other in others if other.kind != "relu"))
    if not within:
        raise NoReLUError(_no_relu(model, sites))
    return seen, _select(model, seen, sites, include, exclude)


def _others(observed: list[Observed], taken: set[str]) -> tuple[Other, ...]:
    """Name the operations: after their module where it does just this, else after the module and the kind."""
    in_place = Counter(one.place for one in observed)
    others: dict[str, Other] = {}
    for one in observed:
        alone = one.place.leaf and in_place[one.place] == 1
        base = one.place.path if alone else f"{one.place.path}.{one.kind}".lstrip(".")
        name, number = base, 1
        while name in others or name in taken:
            number += 1
            name = f"{base}_{number}"
        others[name] = Other(name, one.kind, one.count)
    return tuple(others.values())


def _no_relu(model: nn.Module, sites: Sites) -> str:
    kinds = sorted({other.kind for other in sites.other_nonlinear})
    beside = f"its non-linear operations are {', '.join(kinds)}" if kinds else "it has no other non-linear operation"
    if sites:
        where = f"inside closed modules or on folded batches ({sites[0].name}, …)"
        return (
            f"all {sites.total} ReLUs of {type(model).__name__} are {where}, where none can be decided by itself; "
            "call them on tensors whose first dimension is the batch"
        )
    return f"{type(model).__name__} calls no ReLU, so there is nothing to linearize; {beside}"


def _select(model: nn.Module, seen: Surveyed, sites: Sites, include: Patterns, exclude: Patterns) -> Sites:
    chosen = {site.name for site in sites if site.reachable}
    if include is not None:
        chosen &= _matching(model, seen, sites, include, "include")
    chosen -= _matching(model, seen, sites, exclude, "exclude")
    if not chosen:
        raise OptionError("include and exclude leave no site to linearize; widen one of them")
    return replace(sites, sites=tuple(replace(site, fixed=site.name not in chosen) for site in sites))


def _matching(model: nn.Module, seen: Surveyed, sites: Sites, patterns: Patterns, option: str) -> set[str]:
    """A pattern matches the sites of that name, all calls of a ReLU of that name, and everything inside such a module."""
    if isinstance(patterns, type) or not isinstance(patterns, str | nn.Module | Iterable | None):
        raise OptionError(f"{option} is {patterns!r}; pass names with * and ?, or modules of the network")
    matched: set[str] = set()
    for pattern in (patterns,) if isinstance(patterns, str | nn.Module) else patterns or ():
        names = [pattern] if isinstance(pattern, str) else module_paths(model).get(pattern, [])
        hits = {
            site.name
            for site in sites
            for name in names
            for known in {site.name, seen.called(site.name) or site.name}
            if name == "" or fnmatchcase(known, name) or fnmatchcase(known, f"{name}.*")
        }
        if not hits:
            what = f"'{pattern}'" if isinstance(pattern, str) else f"the {type(pattern).__name__} passed"
            raise OptionError(f"{option}: {what} matches no site; the sites are {', '.join(sites.shapes)}")
        matched |= hits
    return matched
