"""Protocols: the constants of private inference, each with its source."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any

from reluctant.errors import OptionError, unknown


@dataclass(frozen=True)
class Unit:
    """What one of something costs."""

    online_seconds: float = 0.0
    offline_seconds: float = 0.0
    online_up: float = 0.0
    online_down: float = 0.0
    offline_up: float = 0.0
    offline_down: float = 0.0
    stored_by_client: float = 0.0


@dataclass(frozen=True)
class Rounds:
    """How often the parties wait for each other in a layer."""

    online_relu: float = 0.0
    offline_relu: float = 0.0
    online_linear: float = 0.0
    offline_linear: float = 0.0


@dataclass(frozen=True)
class Protocol:
    """A protocol: of one ReLU, of one multiplication and one element of a linear layer, of every layer, of its rounds."""

    name: str
    title: str
    about: str
    relu: Unit
    linear: Unit
    relu_layer: Unit
    """What a layer of ReLUs costs whatever their number, and likewise a linear one."""
    linear_layer: Unit
    rounds: Rounds
    bytes: bool = True
    """Whether anything is known of bytes and rounds."""
    offline: bool = True
    """Whether there is anything offline."""
    sources: dict[str, str] = field(default_factory=dict)
    """Where each constant comes from, by `section.name`."""


def names() -> list[str]:
    """Return the protocols that come with Reluctant."""
    return list(_ours())


def read(protocol: str | Path) -> Protocol:
    """Read a protocol: one of `names()`, or a TOML file of the same form with one table.

    Raises:
        OptionError: it does not exist, the nearest is suggested; or a constant of it is unknown, negative or has no source.
    """
    ours = _ours()
    if str(protocol) in ours:
        return _made(str(protocol), ours[str(protocol)], "protocols.toml")
    path = Path(protocol)
    if path.suffix != ".toml":
        raise unknown("protocol", str(protocol), ours)
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"the protocol file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"the protocol file {path} is not TOML: {error}") from error
    if len(content) != 1 or not all(isinstance(table, dict) for table in content.values()):
        raise OptionError(f"the protocol file {path} has to have one table, [name], and has {len(content)} entries")
    ((name, table),) = content.items()
    return _made(name, table, str(path))


def _ours() -> dict[str, Any]:
    return tomllib.loads(resources.files("reluctant.cost").joinpath("protocols.toml").read_text(encoding="utf-8"))


def _made(name: str, table: dict[str, Any], where: str) -> Protocol:
    known = ("title", "about", "bytes", "offline", "relu", "linear", "relu_layer", "linear_layer", "rounds")
    for key in table:
        if key not in known:
            raise unknown(f"key of protocol {name} in {where}", key, known)
    sources: dict[str, str] = {}

    def section(part: str, kind: type[Any]) -> Any:
        values = {}
        allowed = [each.name for each in fields(kind)]
        for key, constant in table.get(part, {}).items():
            if key not in allowed:
                raise unknown(f"constant of {name}.{part} in {where}", key, allowed)
            values[key], sources[f"{part}.{key}"] = _constant(f"{name}.{part}.{key} of {where}", constant)
        return kind(**values)

    return Protocol(
        name,
        table.get("title", name),
        table.get("about", ""),
        section("relu", Unit),
        section("linear", Unit),
        section("relu_layer", Unit),
        section("linear_layer", Unit),
        section("rounds", Rounds),
        bool(table.get("bytes", True)),
        bool(table.get("offline", True)),
        sources,
    )


def _constant(name: str, constant: Any) -> tuple[float, str]:
    if not isinstance(constant, dict) or set(constant) != {"value", "source"}:
        raise OptionError(f'{name} is {constant!r}; write {{ value = …, source = "…" }}')
    value = constant["value"]
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise OptionError(f"{name} is {value!r}; pass a number, 0 or more")
    return float(value), str(constant["source"])
