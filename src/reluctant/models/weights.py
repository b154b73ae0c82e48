"""Weights from files that other people made."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from reluctant._example import spell
from reluctant.errors import WeightsError, first_line

_HINT = "is it of another architecture, or made with other options, such as shortcut='pad'?"
_NESTED = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.", "model.")
_SYNONYMS = {"linear.": "fc.", "classifier.": "fc."}


def load_weights(model: nn.Module, path: str | Path) -> None:
    """Load a `.safetensors` file, or a torch file without running any code in it, into the model, in place.

    Wrappers' prefixes (`module.`, …) are taken off, a last layer called `linear` fits one called `fc`, and half precision
    becomes the model's own.

    Raises:
        WeightsError: the file is missing or damaged, or its tensors are not the model's.
    """
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"there is no weight file {path}")
    mine = model.state_dict()
    theirs = _renamed(_read(path), mine)
    counters = {name for name in mine if name.endswith("num_batches_tracked")}  # older files do not have them
    for name in mine:
        if name not in theirs and name not in counters:
            raise WeightsError(f"{path} has no '{name}' of {type(model).__name__}; {_HINT}")
    for name, tensor in theirs.items():
        if name not in mine:
            raise WeightsError(f"{path} has a '{name}' that {type(model).__name__} does not; {_HINT}")
        if tensor.shape != mine[name].shape:
            raise WeightsError(
                f"'{name}' is {spell(tuple(tensor.shape))} in {path} and {spell(tuple(mine[name].shape))} in the network; "
                "does the number of classes fit?"
            )
    model.load_state_dict(theirs, strict=False)


def _read(path: Path) -> dict[str, Tensor]:
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        content: Any = torch.load(path, map_location="cpu", weights_only=True)
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"the weight file {path} cannot be read ({error}); copy it again") from error
    except Exception as error:  # torch.load has many ways to say that a file is not one of its own
        raise WeightsError(
            f"the weight file {path} cannot be read without running code in it ({first_line(error)}); "
            "save its state_dict instead"
        ) from error
    for key in _NESTED:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise WeightsError(f"{path} holds no state_dict; save one with torch.save(model.state_dict(), …)")
    return dict(content)


def _renamed(theirs: dict[str, Tensor], mine: Mapping[str, Tensor]) -> dict[str, Tensor]:
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in theirs) and not any(name.startswith(prefix) for name in mine):
            theirs = {name.removeprefix(prefix): tensor for name, tensor in theirs.items()}
    for old, new in _SYNONYMS.items():
        if any(name.startswith(new) for name in mine) and not any(name.startswith(new) for name in theirs):
            theirs = {
                new + name.removeprefix(old) if name.startswith(old) else name: tensor for name, tensor in theirs.items()
            }
    return theirs
