"""Hyper-parameters: frozen, checked, read from TOML, and every one of them can be overridden."""

from __future__ import annotations

import math
import tomllib
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from reluctant.errors import OptionError, unknown


@dataclass(frozen=True)
class _Section:
    def __post_init__(self) -> None:
        hints = get_type_hints(type(self))
        for each in fields(self):
            name = f"{type(self).__name__.lower()}.{each.name}"
            value = _converted(getattr(self, each.name), hints[each.name], name)
            object.__setattr__(self, each.name, value)
            _check(name, value)


@dataclass(frozen=True)
class Training(_Section):
    """How every phase is computed."""

    precision: str = "auto"
    """`float32`, `bfloat16` by autocast, or `auto`: bfloat16 where the hardware multiplies matrices in it."""
    channels_last: bool | None = None
    """Whether images have their channels last in memory; none: where the network takes it."""
    compile: bool = False
    """Whether to use torch.compile; where that fails, a warning, and the network as it is."""
    winograd: bool | None = None
    """Whether a CPU computes 3×3 convolutions of float32 by Winograd's algorithm, which needs AVX2 and a C compiler; none:
    where it can be had."""


@dataclass(frozen=True)
class Pretrain(_Section):
    """Training a network from scratch: SGD, as the paper has it."""

    epochs: int = 160
    batch_size: int = 256
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str = "steps"
    milestones: tuple[float, ...] = (80, 120)
    """Epochs at which the learning rate is multiplied by 0.1, for `steps`."""


@dataclass(frozen=True)
class Search(_Section):
    """Choosing the ReLUs."""

    schedule: str = "anneal"
    """`anneal`: the count follows a falling target and ends with the last epoch; `paper`: Algorithm 1."""
    epochs: int = 20
    """Of `anneal`, exactly; of `paper`, at most."""
    batch_size: int = 128
    lr: float = 1e-3
    slope_lr: float | None = None
    """Of the slopes; none: `lr` for `paper`, and for `anneal` a third divided by the root of the number of its steps."""
    weight_decay: float = 0.0
    penalty: float | None = None
    """λ to begin with; none: 1e-5 for `paper`, 1e-4 for `anneal`."""
    growth: float = 1.1
    """κ."""
    grow_from: int = 5
    """The first epoch after which λ may grow; 0 in Algorithm 1, 5 in its authors' code."""
    grow_unless: str = "lowest"
    """λ grows unless the count is below the `lowest` so far (the code) or the `previous` one (Algorithm 1)."""
    threshold: float = 0.01
    """ε: a slope above it counts as a ReLU."""
    exact: bool = True
    """Fill the budget with the highest slopes; false: the paper's plain threshold."""
    stop: bool = True
    """Stop when the budget is met; false: go on to the last epoch, to watch the count."""
    penalty_by_relus: bool = False
    """Weigh the penalty of a slope by the ReLUs it governs."""
    distill: float = 1.0
    """Weight of the distillation loss."""
    temperature: float = 4.0
    curve: float = 3.0
    """Of `anneal`: the target is B + (total − B)·(1 − progress)^curve."""
    rate: str = "constant"
    """Of `anneal`: how the learning rates go."""
    may_return: bool = False
    """Of `anneal`: whether a slope that was made linear may grow again."""
    full_at: float | None = 0.9
    """Of `anneal`: slopes from this quantile of those that still count on are computed with as 1, the rest in proportion;
    none: as they are."""
    steer_every: int | None = None
    """Of `anneal`: steps between two looks at the count; none: a hundredth of all."""

    @property
    def first_penalty(self) -> float:
        """λ to begin with, also where the recipe leaves it to the schedule."""
        return self.penalty if self.penalty is not None else {"paper": 1e-5, "anneal": 1e-4}[self.schedule]

    def rate_of_slopes(self, steps: int) -> float:
        """Return the slopes' learning rate in a search of so many steps, also where it is left to the schedule."""
        if self.slope_lr is not None:
            return self.slope_lr
        return self.lr if self.schedule == "paper" else 1 / (3 * max(1, steps) ** 0.5)


@dataclass(frozen=True)
class Finetune(_Section):
    """Training the weights around the frozen mask."""

    epochs: int = 100
    batch_size: int = 128
    lr: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 5e-4
    schedule: str = "cosine"
    distill: float = 1.0
    temperature: float = 4.0


@dataclass(frozen=True)
class Recipe:
    """All hyper-parameters of a run."""

    training: Training = field(default_factory=Training)
    pretrain: Pretrain = field(default_factory=Pretrain)
    search: Search = field(default_factory=Search)
    finetune: Finetune = field(default_factory=Finetune)

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return plain values by section."""
        return asdict(self)

    def override(self, changes: Mapping[str, Any]) -> Recipe:
        """Return a recipe with other values, by `section.key`, or by `key` where only one section has it.

        Example:
            >>> Recipe().override({"search.epochs": 7, "penalty": "1e-4"}).search.penalty
            0.0001
        """
        made = self
        for key, value in changes.items():
            section, name = _find(key)
            made = replace(made, **{section: replace(getattr(made, section), **{name: value})})
        return made


_SECTIONS: dict[str, type[_Section]] = {
    "training": Training,
    "pretrain": Pretrain,
    "search": Search,
    "finetune": Finetune,
}


def keys() -> list[str]:
    """Return every key as `section.key`."""
    return [f"{section}.{each.name}" for section, kind in _SECTIONS.items() for each in fields(kind)]


def _find(key: str) -> tuple[str, str]:
    matches = [known for known in keys() if key in (known, known.partition(".")[2])]
    if len(matches) > 1:
        raise OptionError(f"recipe key '{key}' is ambiguous; pass one of {', '.join(matches)}")
    if not matches:
        section, _, name = key.rpartition(".")
        near = [f"{section}.{each.name}" for each in fields(_SECTIONS[section])] if section in _SECTIONS else keys()
        if not section:
            near = [known.partition(".")[2] for known in near]
        raise unknown("recipe key", key, dict.fromkeys(near))
    section, _, name = matches[0].partition(".")
    return section, name


def named() -> dict[str, Path]:
    """Return the recipes that come with Reluctant."""
    here = Path(__file__).parent
    folders = [here / "recipes", here.parents[1] / "recipes"]  # installed, or in a checkout
    folder = next((each for each in folders if each.is_dir()), None)
    return {path.stem: path for path in sorted(folder.glob("*.toml"))} if folder else {}


def load(recipe: str | Path | Mapping[str, Any] | Recipe | None) -> Recipe:
    """Read a recipe: a name, a TOML file, a dict of sections, or a recipe itself; None is the default one.

    Raises:
        OptionError: it does not exist, cannot be read, or has an unknown key; the nearest is suggested.
    """
    if recipe is None or isinstance(recipe, Recipe):
        return recipe or Recipe()
    if isinstance(recipe, Mapping):
        return _from_sections(recipe, "the recipe")
    path = named().get(str(recipe), Path(recipe))
    if not path.is_file():
        raise unknown("recipe", str(recipe), named())
    try:
        content = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"the recipe {path} is not TOML: {error}") from error
    return _from_sections(content, str(path))


def _from_sections(content: Mapping[str, Any], where: str) -> Recipe:
    changes: dict[str, Any] = {}
    for section, values in content.items():
        if section not in _SECTIONS:
            raise unknown(f"section of {where}", section, _SECTIONS)
        if not isinstance(values, Mapping):
            raise OptionError(f"'{section}' of {where} is not a section; write [{section}] and its keys below")
        changes |= {f"{section}.{key}": value for key, value in values.items()}
    return Recipe().override(changes)


def write(recipe: Recipe) -> str:
    """Return a recipe as TOML."""
    lines, default = [], Recipe().as_dict()
    for section, values in recipe.as_dict().items():
        said = {key: value for key, value in values.items() if value is not None or default[section][key] is not None}
        lines += [f"[{section}]", *(f"{key} = {_toml(value)}" for key, value in said.items()), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) or value is None:
        return f'"{value or "none"}"'
    if isinstance(value, Iterable):
        return f"[{', '.join(_toml(each) for each in value)}]"
    return repr(value)


def _converted(value: Any, hint: Any, name: str) -> Any:
    """Read a value, also one typed on a command line, as the type its key has."""
    if get_origin(hint) in (Union, types.UnionType):
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        hint = next(each for each in get_args(hint) if each is not type(None))
    wanted = "a list of numbers" if get_origin(hint) is tuple else {int: "a whole number", float: "a number"}.get(hint)
    try:
        if get_origin(hint) is tuple:
            parts = value.strip("[]() ").split(",") if isinstance(value, str) else value
            return tuple(float(part) for part in parts if str(part).strip())
        if hint is bool:
            if str(value).lower() in ("true", "false"):
                return str(value).lower() == "true"
            wanted = "true or false"
            raise ValueError
        if hint is int and isinstance(value, str | int | float) and not isinstance(value, bool):
            if float(value) != int(float(value)):
                raise ValueError
            return int(float(value))
        if hint is float and not isinstance(value, bool):
            return float(value)
        if hint is str and isinstance(value, str):
            return value
        wanted = wanted or "a string"
        raise ValueError
    except (TypeError, ValueError):
        raise OptionError(f"{name} is {value!r}; pass {wanted}") from None


_POSITIVE = {"batch_size", "lr", "slope_lr", "temperature", "curve", "steer_every", "growth"}
_NOT_NEGATIVE = {"epochs", "momentum", "weight_decay", "penalty", "grow_from", "distill", "threshold"}
_FRACTION = {"full_at"}
_RATES = ("constant", "cosine", "steps", "onecycle")
_CHOICES = {
    "training.precision": ("auto", "float32", "bfloat16"),
    "pretrain.schedule": _RATES,
    "search.schedule": ("anneal", "paper"),
    "search.rate": _RATES,
    "search.grow_unless": ("lowest", "previous"),
    "finetune.schedule": _RATES,
}


def _check(name: str, value: Any) -> None:
    if value is None:
        return
    key = name.partition(".")[2]
    if key in _POSITIVE and not 0 < value < math.inf:
        raise OptionError(f"{name} is {value}; pass a number above 0")
    if key in _NOT_NEGATIVE and not 0 <= value < math.inf:
        raise OptionError(f"{name} is {value}; pass 0 or more")
    if key in _FRACTION and not 0 <= value <= 1:
        raise OptionError(f"{name} is {value}; pass a number from 0 to 1, or none")
    choices = _CHOICES.get(name)
    if choices and value not in choices:
        raise unknown(name, value, choices)
