"""Train weights: those of a new network, and those around a frozen mask."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from reluctant.methods.found import Checkpoint, OnEpoch
from reluctant.recipes import Finetune, Pretrain
from reluctant.train import Objective, Teacher, Trainer, evaluate, learning_rate
from reluctant.train.evaluate import Metric, accuracy
from reluctant.train.layout import contiguous_
from reluctant.train.losses import Loss
from reluctant.train.optimizers import sgd
from reluctant.train.rates import Rate


def pretrain(
    model: nn.Module,
    *,
    train: Iterable[Any],
    val: Iterable[Any] | None = None,
    options: Pretrain | None = None,
    trainer: Trainer | None = None,
    loss: Loss | None = None,
    metric: Metric = accuracy,
    checkpoint: Checkpoint | None = None,
    on_epoch: OnEpoch | None = None,
) -> nn.Module:
    """Train a copy of a network with SGD, and return it as it was after its best epoch; arguments as for `finetune`."""
    options = options or Pretrain()
    milestones = [epoch / max(1, options.epochs) for epoch in options.milestones]
    return _trained(
        model,
        "pretrain",
        train,
        val,
        options,
        learning_rate(options.schedule, milestones=milestones),
        Objective(loss or F.cross_entropy),
        trainer or Trainer(),
        metric,
        checkpoint,
        on_epoch,
    )


def finetune(
    model: nn.Module,
    *,
    teacher: nn.Module | None,
    train: Iterable[Any],
    val: Iterable[Any] | None = None,
    options: Finetune | None = None,
    trainer: Trainer | None = None,
    loss: Loss | None = None,
    metric: Metric = accuracy,
    checkpoint: Checkpoint | None = None,
    on_epoch: OnEpoch | None = None,
) -> nn.Module:
    """Train a masked network with SGD and distillation, and return it as it was after its best epoch.

    Minimises loss(f(x), y) + w·T²·KL(teacher ‖ f). The masks are buffers: nothing here can move them.

    Args:
        model: the masked network, such as `Found.model`; it is not changed.
        teacher: the network it came from; None to do without distillation.
        train: batches of training data.
        val: batches to choose the best epoch by; without them it is the last.
        options: the hyper-parameters; by default those of `Finetune()`.
        trainer: seed, precision, devices.
        loss: of the task; by default cross-entropy.
        metric: what is best; by default the accuracy in percent.
        checkpoint: where to keep the state of every epoch, and to go on from.
        on_epoch: told the figures of every epoch.

    Returns:
        A finetuned copy.
    """
    options = options or Finetune()
    trainer = trainer or Trainer()
    return _trained(
        model,
        "finetune",
        train,
        val,
        options,
        learning_rate(options.schedule),
        Objective(
            loss or F.cross_entropy,
            None if teacher is None else Teacher(teacher, trainer),
            temperature=options.temperature,
            weight=options.distill,
        ),
        trainer,
        metric,
        checkpoint,
        on_epoch,
    )


def _trained(
    model: nn.Module,
    phase: str,
    train: Iterable[Any],
    val: Iterable[Any] | None,
    options: Pretrain | Finetune,
    rate: Rate,
    objective: Objective,
    trainer: Trainer,
    metric: Metric,
    checkpoint: Checkpoint | None,
    on_epoch: OnEpoch | None,
) -> nn.Module:
    student = trainer.place_(deepcopy(model))
    optimizer = sgd(
        [p for p in student.parameters() if p.requires_grad],
        lr=options.lr,
        momentum=options.momentum,
        weight_decay=options.weight_decay,
    )
    best: dict[str, Any] = {"score": None, "model": None}
    start = 0
    state = checkpoint.load(phase) if checkpoint else None
    if state:
        student.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        start, best = state["epoch"], state["best"]
    epochs = trainer.epochs(
        student,
        train,
        optimizer=optimizer,
        objective=objective,
        epochs=options.epochs,
        phase=phase,
        start=start,
        rate=rate,
    )
    for epoch in epochs:
        row: dict[str, Any] = {"phase": phase, "epoch": epoch.number, "loss": epoch.loss, "lr": epoch.rate}
        row["seconds"] = round(epoch.seconds, 3)
        if val is not None:
            row["val"] = evaluate(student, val, metric=metric, trainer=trainer)
        if val is None or best["score"] is None or row["val"] > best["score"]:
            best = {"score": row.get("val"), "model": _snapshot(student)}
        if checkpoint is not None:
            state = {"model": student.state_dict(), "optimizer": optimizer.state_dict(), "best": best}
            checkpoint.save(phase, {**state, "epoch": epoch.number + 1})
        if on_epoch is not None:
            on_epoch(row)
    if best["model"] is not None:
        student.load_state_dict(best["model"])
    return contiguous_(student).train(model.training)


def _snapshot(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
