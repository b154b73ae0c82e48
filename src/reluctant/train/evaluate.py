"""How good a network is."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from reluctant.data.batches import unpack
from reluctant.errors import DataError
from reluctant.train.loop import Trainer
from reluctant.train.losses import call, logits

Metric = Callable[[Any, Any], float]
"""From outputs and targets of a batch to its mean score; higher is better."""


def accuracy(outputs: Any, targets: Tensor) -> float:
    """Return the percentage of examples whose highest logit is the target.

    >>> accuracy(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), torch.tensor([1, 1]))
    50.0
    """
    return 100 * float((logits(outputs).argmax(-1) == targets).float().mean())


def evaluate(
    model: nn.Module, batches: Iterable[Any], *, metric: Metric = accuracy, trainer: Trainer | None = None
) -> float:
    """Return the mean of a metric, by default the accuracy in percent, over all examples.

    The network is evaluated in evaluation mode, on every process its share, and left in the mode it was in. It computes in
    its own precision, whatever it is trained in: that is the network which is saved and used.
    """
    trainer = trainer or Trainer()
    shared = trainer.share(batches)
    was_training = model.training
    model.eval()
    total, seen = 0.0, 0
    with torch.inference_mode():
        for batch in shared:
            inputs, targets = trainer.to_device(unpack(batch))
            size = len(targets)
            if size:
                total += float(metric(call(model, inputs), targets)) * size
                seen += size
    model.train(was_training)
    if shared is not batches:
        total, seen = trainer.summed(total, seen)
    if not seen:
        raise DataError("the loader yields no examples; pass one that does")
    return total / seen
