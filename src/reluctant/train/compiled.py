"""torch.compile that never surprises: where it does not work, a warning once, and the network as it is."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import nn

from reluctant.errors import first_line

log = logging.getLogger(__name__)


class Compiled:
    """A network that is compiled when it is first called, and again for other shapes.

    Args:
        network: what to compile; its parameters are shared.
    """

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._fast: Any = torch.compile(network)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call what was compiled, or the network itself."""
        if self._fast is None:
            return self._network(*args, **kwargs)
        try:
            return self._fast(*args, **kwargs)
        except Exception as error:  # no compiler, an operation it does not know, a bug in it
            out = self._network(*args, **kwargs)  # if the fault is the network's own, its own error comes out here
            self.give_up(error)
            return out

    def give_up(self, error: Exception) -> None:
        """Run the network as it is from now on; raise the error again where that is done already."""
        if self._fast is None:
            raise error
        self._fast = None
        log.warning("torch.compile does not work here (%s); going on without it", first_line(error))
