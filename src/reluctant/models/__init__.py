"""The architectures of the paper and a few more, by name. Any other PyTorch network works as well."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from reluctant.errors import OptionError, unknown
from reluctant.models.factory import from_factory
from reluctant.models.mlp import mlp
from reluctant.models.resnet import resnet18, resnet20, resnet34, small
from reluctant.models.vgg import vgg
from reluctant.models.weights import load_weights
from reluctant.models.wide_resnet import wide_resnet22_8

__all__ = ["create", "from_factory", "load_weights", "names"]

_FACTORIES: dict[str, Callable[..., nn.Module]] = {
    factory.__name__: factory for factory in (resnet18, resnet34, wide_resnet22_8, resnet20, vgg, mlp, small)
}


def names() -> list[str]:
    """Return the names `create` knows."""
    return list(_FACTORIES)


def create(name: str, *, num_classes: int = 10, input_shape: tuple[int, ...] = (3, 32, 32), **options: Any) -> nn.Module:
    """Make a network with random weights.

    Args:
        name: one of `names()`.
        num_classes: the size of its output.
        input_shape: of one example, C×H×W.
        options: what the architecture itself offers, such as `stem_relu=True` of a ResNet.

    Raises:
        OptionError: the name or an option does not exist; the nearest one is suggested.

    Example:
        >>> import torch
        >>> create("resnet20", shortcut="pad")(torch.zeros(1, 3, 32, 32)).shape
        torch.Size([1, 10])
    """
    if name not in _FACTORIES:
        raise unknown("architecture", name, _FACTORIES)
    if num_classes < 1:
        raise OptionError(f"num_classes is {num_classes}; pass at least 1")
    factory = _FACTORIES[name]
    known = [p for p in inspect.signature(factory).parameters if p not in ("num_classes", "input_shape")]
    for option in options:
        if option not in known:
            raise unknown(f"option of {name}", option, known)
    try:
        return factory(num_classes=num_classes, input_shape=input_shape, **options)
    except TypeError as error:
        said = ", ".join(f"{option}={value!r}" for option, value in options.items()) or "its options"
        raise OptionError(f"{name} cannot be made with {said}: {error}") from error
