"""Read the runs that a report is about."""

from __future__ import annotations

import json
import logging
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

from reluctant._load import architecture
from reluctant.cost import Cost, Network, Protocol, estimate, measure_plaintext
from reluctant.errors import ModelError, OptionError, RunError
from reluctant.frontier import frontier
from reluctant.mask import Mask
from reluctant.runs import Run, finished_below

log = logging.getLogger(__name__)

Plaintext = dict[str, float]
"""Seconds of one plaintext inference, by network."""


@dataclass(frozen=True)
class Linearized:
    """A finished run with a mask."""

    run: Run
    result: dict[str, Any]
    mask: Mask
    metrics: list[dict[str, Any]]
    cost: Cost | None
    """None where the network cannot be made again from its run folder."""
    measured: dict[str, Any] | None
    """What a private inference between two parties was measured to cost."""
    name: str
    varied: str = ""
    """What of its settings differs from those of other runs of its method, such as `penalty=1e-4`."""

    @property
    def count(self) -> int:
        """How many ReLUs it evaluates."""
        return int(self.result["count"])

    @property
    def accuracy(self) -> float:
        """On test data, or where there are none on validation data."""
        scores = self.result["accuracy"]
        return float(scores.get("test", scores["val"]))

    @property
    def base(self) -> float:
        """The accuracy of the network it came from, on the same data."""
        scores = self.result["accuracy"]
        return float(scores["base_test"] if "test" in scores else scores["base"])

    @property
    def search_epochs(self) -> int:
        """How many epochs its search is known to have had."""
        return self._epochs("search")

    @property
    def finetune_epochs(self) -> int:
        """How many epochs its weights are known to have been finetuned."""
        return self._epochs("finetune")

    def _epochs(self, phase: str) -> int:
        return sum(row.get("phase") == phase for row in self.metrics)

    @property
    def method(self) -> str:
        """How it was chosen, with everything that makes it differ from other runs."""
        return f"{self.variant} {self.varied}".rstrip()

    @property
    def variant(self) -> str:
        """The method with its variant, whatever the recipe."""
        words = [self.result["method"]]
        if self.result["schedule"] == "paper":
            words.append("(Algorithm 1)")
        if self.result["granularity"] != "pixel":
            words.append(f"by {self.result['granularity']}")
        words += [word for word, key in (("zero-out", "zero_out"), ("from scratch", "scratch")) if self.run.spec.get(key)]
        return " ".join(words)


@dataclass(frozen=True)
class Point:
    """Runs that differ in their seeds only, as one point: to show the best of them would be to choose on test data."""

    method: str
    budget: int
    runs: tuple[Linearized, ...]

    @property
    def count(self) -> int:
        """How many ReLUs they evaluate in the mean."""
        return round(fmean(run.count for run in self.runs))

    @property
    def accuracy(self) -> float:
        """The mean of theirs."""
        return fmean(run.accuracy for run in self.runs)


@dataclass(frozen=True)
class Evidence:
    """All that a report shows."""

    dataset: str
    part: str
    """`test` or `validation`: what the accuracies are of."""
    total: int
    runs: tuple[Linearized, ...]

    @property
    def base(self) -> float:
        """The accuracy with all ReLUs."""
        return max(run.base for run in self.runs)

    @cached_property
    def points(self) -> list[Point]:
        """The runs by method and budget."""
        alike = defaultdict(list)
        for run in self.runs:
            alike[run.method, int(run.result.get("budget", run.count))].append(run)
        return [Point(method, budget, tuple(runs)) for (method, budget), runs in alike.items()]

    @property
    def several_seeds(self) -> bool:
        """Whether a point has more than one run."""
        return any(len(point.runs) > 1 for point in self.points)

    def frontier(self, method: str | None = None) -> list[Point]:
        """Return the points of a method that none of its others beats; of all methods where none is named."""
        return frontier(point for point in self.points if method in (None, point.method))

    def shown(self, most: int) -> list[Linearized]:
        """Return some runs of the first method, spread over the budgets: enough to see, few enough to look at."""
        first = self.runs[0].method
        ones = [point.runs[0] for point in self.points if point.method == first]
        candidates = sorted((run for run in ones if run.count), key=lambda run: -run.count)
        if len(candidates) <= most:
            return candidates
        step = (len(candidates) - 1) / (most - 1)
        return [candidates[round(position * step)] for position in range(most)]


def gather(folders: list[Path], protocol: Protocol, network: Network) -> Evidence:
    """Read runs, or folders full of runs.

    Raises:
        OptionError: there is no linearized run, or they are of different data sets or networks.
        RunError: one cannot be read, or has no mask.
    """
    found: dict[Path, Run] = {}
    for folder in folders:
        for run in _runs_in(folder):
            found[run.folder.resolve()] = run
    runs = [run for run in found.values() if run.spec.get("kind") == "linearize"]
    if not runs:
        named = ", ".join(map(str, folders)) or "nothing"
        raise OptionError(f"there is no finished linearized run in {named}; make one with reluctant linearize or sweep")
    names = _names([run.folder for run in runs])
    plaintext: Plaintext = {}
    read = [_read(run, name, protocol, network, plaintext) for run, name in zip(runs, names, strict=True)]
    datasets = {_dataset(each.run) for each in read}
    if len(datasets) > 1:
        raise OptionError(
            f"the runs are of different data sets ({', '.join(sorted(datasets))}), which have no common frontier; "
            "make a report of each"
        )
    totals = {each.mask.total for each in read}
    if len(totals) > 1:
        log.warning("the runs are of networks with different numbers of ReLUs: %s", sorted(totals))
    everywhere = all("test" in each.result["accuracy"] for each in read)
    read = [replace(each, varied=varied) for each, varied in zip(read, _variations(read), strict=True)]
    order = sorted(read, key=lambda each: (each.result["method"] != "snl", _by_numbers(each.method), -each.count))
    return Evidence(datasets.pop(), "test" if everywhere else "validation", max(totals), tuple(order))


def _variations(runs: list[Linearized]) -> list[str]:
    """Return for each run the settings in which runs of its method differ, as in a grid."""
    settings = [_settings(each.run) for each in runs]
    said = []
    for run, mine in zip(runs, settings, strict=True):
        alike = [other for each, other in zip(runs, settings, strict=True) if each.variant == run.variant]
        differ = [key for key in mine if len({str(other[key]) for other in alike}) > 1]
        said.append(", ".join(f"{_unambiguous(key, mine)}={as_typed(mine[key])}" for key in differ))
    return said


def _unambiguous(key: str, settings: dict[str, Any]) -> str:
    """Return `penalty` for `search.penalty`, but `finetune.lr` as it is: a search has a rate, too."""
    short = key.partition(".")[2]
    return short if sum(each.partition(".")[2] == short for each in settings) == 1 else key


def _settings(run: Run) -> dict[str, Any]:
    parts = ("search", "finetune") if run.spec.get("method", "snl") == "snl" else ("finetune",)
    recipe = {f"{part}.{key}": value for part in parts for key, value in run.recipe.as_dict()[part].items()}
    return recipe | {"data.validation": run.spec.get("data", {}).get("validation", "usual")}


def as_typed(value: Any) -> str:
    """Spell a setting as people type it.

    >>> [as_typed(value) for value in (5e-4, 1e-5, 0.03, 1.1, 20.0, None)]
    ['5e-4', '1e-5', '0.03', '1.1', '20', 'None']
    """
    if not isinstance(value, float):
        return str(value)
    mantissa, exponent = f"{value:.5e}".split("e")
    return min(f"{value:g}".replace("e-0", "e-"), f"{float(mantissa):g}e{int(exponent)}", key=len)


def _by_numbers(text: str) -> list[tuple[str, float]]:
    """Return what sorts texts by the numbers in them: penalty=1e-5 before penalty=1e-4."""
    words = re.split(r"(\d+(?:\.\d+)?(?:e-?\d+)?)", text)
    return [(word, float(number)) for word, number in zip_longest(words[::2], words[1::2], fillvalue="-1")]


def _runs_in(folder: Path) -> list[Run]:
    if (folder / "run.json").is_file():
        run = Run.open(folder)
        run.require_finished()
        if run.spec.get("kind") != "linearize" or not (folder / "mask.safetensors").is_file():
            raise RunError(f"the run in {folder} has no mask; pass linearized runs, or the folder they are in")
        return [run]
    return finished_below(folder)


def _read(run: Run, name: str, protocol: Protocol, network: Network, plaintext: Plaintext) -> Linearized:
    path = run.folder / "mask.safetensors"
    if not path.is_file():
        raise RunError(f"the run in {run.folder} has no mask; was something removed from it?")
    result, mask = run.result, Mask.load(path)
    if not {"count", "accuracy", "method", "granularity", "schedule", "search_epochs"} <= set(result):
        raise RunError(f"the result of {run.folder} is not whole; make the run again with --force")
    if result["count"] != mask.count:
        raise RunError(
            f"the mask of {run.folder} keeps {mask.count} ReLUs and its result says {result['count']}; "
            "one of them is of another run"
        )
    found = Linearized(run, result, mask, run.metrics(), _cost(run, protocol, network, plaintext), run.private_cost, name)
    has, ought = (found.search_epochs, found.finetune_epochs), (result["search_epochs"] or 0, run.recipe.finetune.epochs)
    if has != ought:
        log.warning(
            "metrics.jsonl of %s is damaged: it has %d epochs of searching and %d of finetuning instead of %d and %d; "
            "curves and epochs of this run are not whole", run.folder, *has, *ought,
        )  # fmt: skip
    return found


def _cost(run: Run, protocol: Protocol, network: Network, plaintext: Plaintext) -> Cost | None:
    """Estimate a run; one plaintext inference is measured for all runs of one network, so that they can be compared."""
    import torch

    shape = run.spec.get("input_shape")
    try:
        if shape is None:
            return None
        model, example = architecture(run)[0].eval(), torch.zeros(1, *shape)
        which = json.dumps(run.spec.get("model"), sort_keys=True)
        if which not in plaintext:
            plaintext[which] = measure_plaintext(model, example, repeat=20)
        return estimate(model, example, protocol=protocol, network=network, plaintext_seconds=plaintext[which])
    except (RunError, ModelError) as error:
        log.info("no cost is shown for %s: %s", run.folder, error)
        return None


def _dataset(run: Run) -> str:
    return str(run.spec.get("data", {}).get("name", "data of one's own"))


def _names(folders: list[Path]) -> list[str]:
    """Name runs by as much of their paths as tells them apart."""
    parts = [folder.resolve().parts for folder in folders]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(each[-length:]) for each in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]
