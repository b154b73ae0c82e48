"""The one training loop, used by pretraining, search and finetuning.

Processes, devices and gradients between them are Hugging Face Accelerate's; it starts on a CPU, a GPU, or several
processes under torchrun. Everything random in an epoch follows from the seed, the phase and the number of the epoch, so a
run that is resumed at an epoch goes on exactly as it would have.
"""

from __future__ import annotations

import hashlib
import importlib.util
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from reluctant.data.batches import unpack
from reluctant.data.loader import Loader
from reluctant.errors import DataError, OptionError, TrainingError, unknown
from reluctant.train import winograd
from reluctant.train.answers import Answers
from reluctant.train.compiled import Compiled
from reluctant.train.layout import channels_last, corrupts_memory, takes_channels_last
from reluctant.train.memory import keep_freed_memory
from reluctant.train.precision import PRECISIONS, choose
from reluctant.train.rates import Rate

if TYPE_CHECKING:
    from accelerate import Accelerator

Advance = Callable[[str, int, int, int, int], None]
"""Told after every step: phase, epoch, epochs, step, steps."""


@dataclass(frozen=True)
class Epoch:
    """One epoch as it went."""

    number: int
    loss: float
    rate: float
    seconds: float


def _with_tensorboard(folder: Path, handler: Any) -> Accelerator:
    from accelerate import Accelerator

    if importlib.util.find_spec("tensorboard") is None:
        raise OptionError("tensorboard is not installed; pip install 'reluctant[tensorboard]', or do without --tensorboard")
    folder.mkdir(parents=True, exist_ok=True)
    accelerator = Accelerator(kwargs_handlers=[handler], log_with="tensorboard", project_dir=folder)
    accelerator.init_trackers("tensorboard")
    return accelerator


class Trainer:
    """Runs epochs, on whatever device and processes there are.

    Args:
        seed: of everything random.
        precision: of the forward and backward pass: `float32`, `bfloat16` by autocast, or what the device is better at.
        channels_last: keep images in that layout; None: where `settle` finds that the network takes it.
        compile: use torch.compile.
        winograd: compute 3×3 convolutions by Winograd's algorithm; None: where it can be had, without torch.compile.
        advance: called after every step, for a progress bar.
        tensorboard: a folder to write figures for TensorBoard into.
        answers: a file to keep what teachers say in, for other runs that show them the same images.
    """

    def __init__(
        self,
        *,
        seed: int = 0,
        precision: str = "auto",
        channels_last: bool | None = None,
        compile: bool = False,
        winograd: bool | None = None,
        advance: Advance | None = None,
        tensorboard: str | Path | None = None,
        answers: str | Path | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise unknown("precision", precision, PRECISIONS)
        self.seed = seed
        self.channels_last = channels_last
        self._precision = precision
        self._compile = compile
        if compile and winograd:
            raise OptionError("torch.compile brings its own convolutions; leave training.winograd or training.compile out")
        self._wants_winograd = False if compile else winograd
        self._advance = advance
        self._tensorboard = tensorboard
        self.answers = None if answers is None else Answers(answers)
        self._accelerator: Accelerator | None = None

    @property
    def accelerator(self) -> Accelerator:
        """Accelerate's handle, made when it is first needed."""
        if self._accelerator is None:
            from accelerate import Accelerator, DistributedDataParallelKwargs  # takes a second

            unused = DistributedDataParallelKwargs(find_unused_parameters=True)  # a network may have a head it does not run
            if self._tensorboard is None:
                self._accelerator = Accelerator(kwargs_handlers=[unused])
            else:
                self._accelerator = _with_tensorboard(Path(self._tensorboard), unused)
            if self._accelerator.device.type == "cpu":
                keep_freed_memory()
        return self._accelerator

    def log(self, row: Mapping[str, Any]) -> None:
        """Hand the figures of an epoch to TensorBoard, if it was asked for."""
        if self._tensorboard is not None:
            figures = {f"{row['phase']}/{key}": value for key, value in row.items() if key not in ("phase", "epoch")}
            self.accelerator.log(figures, step=row["epoch"])

    @property
    def device(self) -> torch.device:
        """Where networks are trained."""
        return torch.device(self.accelerator.device)

    @cached_property
    def dtype(self) -> torch.dtype:
        """The precision of the forward and backward pass."""
        return choose(self._precision, self.device)

    @cached_property
    def winograd(self) -> bool:
        """Whether 3×3 convolutions are computed by Winograd's algorithm, where they can be."""
        return winograd.available(self._wants_winograd, self.device, self.dtype)

    def describe(self) -> dict[str, Any]:
        """Return how it computes, as the device and the network have decided it."""
        return {
            "precision": str(self.dtype).removeprefix("torch."),
            "channels_last": bool(self.channels_last),
            "compile": self._compile,
            "winograd": self.winograd,
        }

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes."""
        return bool(self.accelerator.is_main_process)

    def wait(self) -> None:
        """Wait until all processes have come here."""
        self.accelerator.wait_for_everyone()

    def settle(self, model: nn.Module, example: Any) -> None:
        """Decide what was left open: whether images have their channels last.

        Raises:
            OptionError: they shall have, and that would corrupt memory.
        """
        if self.channels_last is None:
            self.channels_last = takes_channels_last(model, example)
        elif self.channels_last and self.device.type == "cpu" and corrupts_memory(model):
            raise OptionError(
                "a 1×1 convolution with a stride and fewer than 16 channels cannot be trained on a CPU with channels last, "
                "where oneDNN writes beyond its memory; leave training.channels_last out"
            )

    def place_(self, model: nn.Module) -> nn.Module:
        """Move a network to the device, in the layout that is trained in."""
        model.to(self.device)
        if self.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return model

    def autocast(self) -> AbstractContextManager[Any]:
        """Return the context that a forward pass runs in."""
        if self.dtype == torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)

    def convolutions(self) -> AbstractContextManager[Any]:
        """Return the context that decides how convolutions are computed in training."""
        return winograd.Winograd() if self.winograd else nullcontext()

    def to_device(self, batch: Any) -> Any:
        """Move a batch to the device, images into the layout that is trained in."""
        moved = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(self.device, non_blocking=True), batch)
        return channels_last(moved) if self.channels_last else moved

    def share(self, batches: Iterable[Any]) -> Iterable[Any]:
        """Give every process its part of a loader of ours; others' loaders are returned as they are."""
        if not isinstance(batches, Loader):
            return batches
        accelerator = self.accelerator
        return batches.share(accelerator.device, accelerator.process_index, accelerator.num_processes)

    def prepare(self, batches: Iterable[Any]) -> Any:
        """Give every process its part of training batches, ours or anybody's; `len` of it is the steps of an epoch.

        Raises:
            DataError: they have no length.
        """
        shared = self.share(batches) if isinstance(batches, Loader) else self.accelerator.prepare(batches)
        if not hasattr(shared, "__len__"):
            raise DataError(
                f"the training batches are a {type(batches).__name__} without a length, which may be readable only once; "
                "pass a DataLoader or a list"
            )
        return shared

    def summed(self, *values: float) -> tuple[Any, ...]:
        """Sum numbers over all processes."""
        together = self.accelerator.reduce(torch.tensor(values, dtype=torch.float64), "sum")
        return tuple(together.tolist())

    def epochs(
        self,
        model: nn.Module,
        batches: Iterable[Any],
        *,
        optimizer: torch.optim.Optimizer,
        objective: Callable[[Any, Any, Any], Tensor],
        epochs: int,
        phase: str,
        start: int = 0,
        rate: Rate | None = None,
        after_backward: Callable[[], None] | None = None,
        after_step: Callable[[int, float], None] | None = None,
    ) -> Iterator[Epoch]:
        """Train, and yield after every epoch; whoever iterates may look, change something, or stop.

        Args:
            model: the network, already placed.
            batches: of training data, ours or anybody's.
            optimizer: over its parameters.
            objective: the loss of a batch.
            epochs: how many there are in all.
            phase: the name of this training, part of the seed.
            start: the epoch to begin with, when resuming.
            rate: the learning rate's factor over the phase.
            after_backward: called when the gradients are there.
            after_step: called when the parameters have changed, with the steps done and the progress, 0…1.
        """
        accelerator = self.accelerator
        shared = self.prepare(batches)
        wrapped = accelerator.prepare_model(model)
        run = Compiled(wrapped) if self._compile else wrapped
        for group in optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])  # goes into checkpoints with the rest of the optimizer
        steps = len(shared)
        for number in range(start, epochs):
            self._seed(phase, number)
            if hasattr(shared, "set_epoch"):
                shared.set_epoch(number)
            model.train()
            began = time.perf_counter()
            total, seen = torch.zeros((), device=accelerator.device), 0
            for step, batch in enumerate(shared):
                if rate is not None:
                    factor = rate((number + step / steps) / epochs)
                    for group in optimizer.param_groups:
                        group["lr"] = group["initial_lr"] * factor
                inputs, targets = self.to_device(unpack(batch))
                optimizer.zero_grad(set_to_none=True)
                loss = self._gradients_(run, objective, inputs, targets)
                if after_backward is not None:
                    after_backward()
                optimizer.step()
                if after_step is not None:
                    after_step(number * steps + step + 1, (number + (step + 1) / steps) / epochs)
                total += loss.detach() * len(targets)
                seen += len(targets)
                if self._advance is not None:
                    self._advance(phase, number, epochs, step + 1, steps)
            self._same_buffers_(model)
            mean = self._mean_loss(total, seen, phase, number)
            yield Epoch(number, mean, optimizer.param_groups[0]["lr"], time.perf_counter() - began)

    def _gradients_(self, run: Any, objective: Callable[[Any, Any, Any], Tensor], inputs: Any, targets: Any) -> Tensor:
        """Compute the loss of a batch and its gradients."""
        with self.autocast(), self.convolutions():
            loss = objective(run, inputs, targets)
        try:
            self.accelerator.backward(loss)
        except Exception as error:
            if not isinstance(run, Compiled):
                raise
            run.give_up(error)
            return self._gradients_(run, objective, inputs, targets)
        return loss

    def _seed(self, phase: str, number: int) -> None:
        """Make an epoch's random numbers its own; each process draws others."""
        text = f"{self.seed} {phase} {number} {self.accelerator.process_index}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

    def _same_buffers_(self, model: nn.Module) -> None:
        """Give all processes the running statistics of the first, so that they hold one and the same network."""
        if self.accelerator.num_processes > 1:
            for buffer in model.buffers():
                torch.distributed.broadcast(buffer, 0)

    def _mean_loss(self, total: Tensor, seen: int, phase: str, number: int) -> float:
        total_sum, examples = self.summed(float(total), seen)
        if not examples:
            raise TrainingError("the training loader yields no batch; pass one that does")
        mean: float = total_sum / examples
        if not math.isfinite(mean):
            raise TrainingError(f"the loss is {mean} in epoch {number} of {phase}; lower the learning rate or the penalty")
        return mean
