"""The network to distil from: it never learns, so it may be made as fast as it gets."""

from __future__ import annotations

import logging
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from reluctant._fold import folded
from reluctant.errors import TraceError
from reluctant.train.answers import digest_of_network, key_of
from reluctant.train.loop import Trainer
from reluctant.train.losses import call, logits

log = logging.getLogger(__name__)


class Teacher:
    """What a network says to a batch, as constants.

    It runs in inference mode, BatchNorm folded and its weights in the precision that is trained in. Where torch.fx cannot
    follow it, or the folded network does not say the same, it runs as it is. Where the trainer keeps answers, it is not
    asked again what it has said before.

    Args:
        network: the teacher; it is not changed.
        trainer: device, layout and precision, and where answers are kept.
    """

    def __init__(self, network: nn.Module, trainer: Trainer) -> None:
        self._network, self._trainer = trainer.place_(deepcopy(network)).eval(), trainer
        self._fast: nn.Module | None = None
        self._digest = b"" if trainer.answers is None else digest_of_network(self._network, trainer.dtype, trainer.winograd)

    @torch.inference_mode()
    def __call__(self, inputs: Any) -> Tensor:
        """Return its logits."""
        if self._trainer.answers is None:
            return self._say(inputs)
        key = key_of(self._digest, inputs)
        said = self._trainer.answers.find(key)
        if said is not None:
            return said.to(self._trainer.device)
        said = self._say(inputs)
        self._trainer.answers.keep(key, said)
        return said

    def _say(self, inputs: Any) -> Tensor:
        if self._fast is None:
            self._fast = self._made_fast(pytree.tree_map_only(Tensor, lambda tensor: tensor[:2], inputs))
        return logits(call(self._fast, inputs))

    def _made_fast(self, example: Any) -> nn.Module:
        with torch.inference_mode(False), torch.no_grad(), torch.autocast(self._trainer.device.type, enabled=False):
            example = pytree.tree_map_only(Tensor, torch.clone, example)
            try:
                fast = folded(self._network, example)
            except TraceError as error:
                log.info("the teacher runs as it is: %s", error)
                return self._network
            said, expected = (logits(call(network, example)) for network in (fast, self._network))
            if not torch.allclose(said, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max())):
                log.info("the teacher runs as it is: with BatchNorm folded it does not say the same")
                return self._network
            self._trainer.place_(fast)
            if self._trainer.dtype != torch.float32:
                for module in fast.modules():  # what autocast would do every time
                    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
                        module.to(self._trainer.dtype)
            return fast
