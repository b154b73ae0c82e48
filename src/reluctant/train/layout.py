"""Whether a network can be trained with its channels last in memory, which most hardware prefers for convolutions."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from reluctant._randomness import undisturbed
from reluctant.errors import first_line
from reluctant.train.losses import call

log = logging.getLogger(__name__)


def takes_channels_last(model: nn.Module, example: Any) -> bool:
    """Tell whether it has convolutions of images and runs in that layout; one that says `x.view(…)` may not."""
    if not any(parameter.dim() == 4 for parameter in model.parameters()):
        return False
    if corrupts_memory(model):
        return False
    copy = deepcopy(model).eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    try:
        with undisturbed(), torch.inference_mode():
            call(copy, channels_last(example))
    except RuntimeError as error:
        log.info("the network does not take images with their channels last: %s", first_line(error))
        return False
    return True


def corrupts_memory(model: nn.Module) -> bool:
    """Tell whether a network has a convolution that must not be trained in that layout on a CPU.

    oneDNN, as torch 2.13.0 has it, writes beyond its memory where it computes the gradient of a 1×1 convolution with a
    stride that has fewer channels than a block, 8 with AVX2 and 16 with AVX-512: the process dies, or the gradient is
    wrong (github.com/uxlfoundation/oneDNN/issues/6035).
    """
    return any(
        module.kernel_size == (1, 1) and module.stride != (1, 1) and module.in_channels < 16
        for module in model.modules()
        if isinstance(module, nn.Conv2d)
    )


def channels_last(batch: Any) -> Any:
    """Put the images of a batch into that layout."""
    return pytree.tree_map_only(
        Tensor, lambda tensor: tensor.to(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor, batch
    )


def contiguous_(model: nn.Module) -> nn.Module:
    """Give a network's tensors the layout that everybody expects."""
    return model.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload,no-any-return]
