"""Whether two commands ask for the same: only then may the second go on with what the first has begun."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reluctant.errors import RunError
from reluctant.recipes import Recipe

Asked = tuple[Mapping[str, Any], Recipe]
"""What a run was asked for, and with which hyper-parameters."""


def check_same(folder: Path, had: Asked, wanted: Asked) -> None:
    """See that a command asks for what a run was asked for; a search that ended too early may get more epochs.

    Raises:
        RunError: it asks for something else.
    """
    (old_spec, old_recipe), (new_spec, new_recipe) = had, wanted
    old, new = _without_places(old_spec), _without_places(new_spec)
    for key in sorted({*old, *new}):
        if old.get(key) != new.get(key):
            raise RunError(
                f"{folder} holds a run with {key} {old.get(key)!r}, not {new.get(key)!r}; "
                "pass another folder, or --force to replace it"
            )
    values = new_recipe.as_dict()
    for section, before in old_recipe.as_dict().items():
        for key, value in before.items():
            more = (section, key) == ("search", "epochs") and new_recipe.search.schedule == "paper"
            if values[section][key] != value and not more:
                raise RunError(
                    f"{folder} holds a run with {section}.{key} = {value}, not {values[section][key]}; "
                    "pass another folder, or --force to replace it"
                )


def _without_places(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out where things are: the same network and data may be reached by another path."""
    made = {key: value for key, value in spec.items() if key != "parent"}
    if isinstance(made.get("data"), dict):
        made["data"] = {key: value for key, value in made["data"].items() if key != "dir"}
    return made
