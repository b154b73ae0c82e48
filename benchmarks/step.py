"""What a search step costs: against a plain training step, and against the way it is usually written.

All variants of an architecture run in one process, interleaved, and the median counts; memory is that of a process of its
own for each variant. Run: python benchmarks/step.py --arch resnet18

plain                      a training step of the network without slopes, in the product's precision and layout, with its
                           convolutions
plain_float32              the same in float32, contiguous, with torch's convolutions
reference                  relu(x)·c + (1−c)·x written out, L1 sums in the loss, a teacher whose graph is recorded,
                           float32, contiguous
reference_same_precision   the same in the product's precision and layout
ours, ours_with_teacher    the search step of Reluctant
torchs_convolutions        the search step with teacher, but with torch's convolutions instead of Winograd's
torchs_slopes              the search step with teacher, but slopes computed by torch instead of in one pass
finetune                   a finetuning step of a masked network, without teacher
torchs_masks               the same, but masks applied by torch instead of in one pass
inference, masked_inference   a forward pass of the plain and of the masked network
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from reluctant import _ops, attach, models
from reluctant._binarize import binarize
from reluctant.data import Loader
from reluctant.methods import snl
from reluctant.recipes import Search, Training
from reluctant.slopes import SlopedReLU, sloped
from reluctant.train import Objective, Penalty, Teacher, Trainer
from reluctant.train.losses import distillation
from reluctant.train.optimizers import adam

BATCH = {"resnet18": 128, "resnet20": 128, "wide_resnet22_8": 32}
CLASSES = 100
PENALTY = 1e-5

Step = Callable[[], Any]


class FourOps(nn.Module):
    """The slope as it is usually written, autograd keeping whatever it wants."""

    def __init__(self, slope: nn.Parameter) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x) * self.slope + (1 - self.slope) * x


class Bench:
    """The variants of one architecture: each is made when it is first asked for."""

    def __init__(self, arch: str, batch: int, device: str, training: Training) -> None:
        self.device, self.training = torch.device(device), training
        torch.manual_seed(0)
        self.network = models.create(arch, num_classes=CLASSES).to(self.device)
        self.images = torch.randn(batch, 3, 32, 32, device=self.device)
        self.labels = torch.randint(0, CLASSES, (batch,), device=self.device)

    def make(self, variant: str) -> Step:
        return getattr(self, variant)()  # type: ignore[no-any-return]

    def plain(self) -> Step:
        return self._product(self._copy(), teacher=False)

    def plain_float32(self) -> Step:
        return self._product(
            self._copy(), teacher=False, trainer=self._trainer(precision="float32", channels_last=False, winograd=False)
        )

    def reference(self) -> Step:
        return self._reference(torch.float32, torch.contiguous_format)

    def reference_same_precision(self) -> Step:
        trainer = self._trainer()
        layout = torch.channels_last if trainer.channels_last else torch.contiguous_format
        return self._reference(trainer.dtype, layout)

    def ours(self) -> Step:
        return self._product(attach(self.network, self.images[:2]), teacher=False)

    def ours_with_teacher(self) -> Step:
        return self._product(attach(self.network, self.images[:2]), teacher=True)

    def torchs_convolutions(self) -> Step:
        return self._product(attach(self.network, self.images[:2]), teacher=True, trainer=self._trainer(winograd=False))

    def torchs_slopes(self) -> Step:
        return self._by_torch(self.ours_with_teacher())

    def finetune(self) -> Step:
        return self._product(self._masked(), teacher=False)

    def torchs_masks(self) -> Step:
        return self._by_torch(self.finetune())

    def inference(self) -> Step:
        return self._forward(self._copy())

    def masked_inference(self) -> Step:
        return self._forward(self._masked())

    def loader(self) -> Step:
        """Ten batches, so that a step's share is not lost in the clock."""
        pixels = (self.images * 50 + 128).clamp(0, 255).to(torch.uint8).cpu().repeat(10, 1, 1, 1)
        batches = Loader(
            pixels, self.labels.cpu().repeat(10), batch_size=len(self.images), mean=(0.5,) * 3, std=(0.25,) * 3,
            padding=4, flip=True, shuffle=True,
        )  # fmt: skip
        return lambda: sum(len(labels) for _, labels in batches)

    def _copy(self) -> nn.Module:
        return deepcopy(self.network)

    def _trainer(self, **changes: Any) -> Trainer:
        trainer = Trainer(**asdict(replace(self.training, **changes)))
        trainer.settle(self.network, self.images[:2])
        return trainer

    def _masked(self) -> nn.Module:
        """A mask of half the pixels, at random."""
        student = attach(self.network, self.images[:2])
        with torch.no_grad():
            for module in sloped(student).values():
                module.slope.uniform_()
        mask = binarize(student, sum(m.slope.numel() for m in sloped(student).values()) // 2)
        return mask.freeze(student)

    def _product(self, model: nn.Module, *, teacher: bool, trainer: Trainer | None = None) -> Step:
        """One step of the training loop that the product runs: an epoch of one batch."""
        trainer = trainer or self._trainer()
        trainer.place_(model)
        has_slopes = any(isinstance(module, SlopedReLU) for module in model.modules())
        penalty = Penalty(sloped(model), PENALTY) if has_slopes else None
        if penalty:
            optimizer = snl.make_optimizer(model, Search(schedule="paper"), 100)
        else:
            optimizer = adam([{"params": list(model.parameters())}], lr=1e-3)
        objective = Objective(F.cross_entropy, Teacher(self.network, trainer) if teacher else None)
        steps = trainer.epochs(
            model,
            [(self.images, self.labels)],
            optimizer=optimizer,
            objective=objective,
            epochs=sys.maxsize,
            phase="search",
            after_backward=penalty.add_gradient_ if penalty else None,
        )
        return lambda: next(steps)

    def _reference(self, dtype: torch.dtype, layout: torch.memory_format) -> Step:
        student = attach(self.network, self.images[:2]).to(memory_format=layout).train()
        slopes = []
        for module in list(student.modules()):
            for name, child in module.named_children():
                if isinstance(child, SlopedReLU):
                    module._modules[name] = FourOps(child.slope)
                    slopes.append(child.slope)
        teacher = self._copy().to(memory_format=layout).eval()
        optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
        images = self.images.to(memory_format=layout)

        def step() -> None:
            with torch.autocast(self.device.type, dtype, enabled=dtype != torch.float32):
                outputs, said = student(images), teacher(images)
                loss = F.cross_entropy(outputs, self.labels) + distillation(outputs, said)
                for slope in slopes:
                    loss = loss + PENALTY * slope.abs().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

        return step

    def _by_torch(self, step: Step) -> Step:
        """Run a step without the library of the element-wise operations."""

        def run() -> None:
            with mock.patch.object(_ops, "_library", return_value=None):
                step()

        return run

    def _forward(self, model: nn.Module) -> Step:
        trainer = self._trainer()
        trainer.place_(model).eval()
        images = trainer.to_device(self.images)

        def step() -> None:
            with torch.inference_mode(), trainer.autocast():
                model(images)

        return step


TIMED = [
    "plain", "plain_float32", "reference", "reference_same_precision", "ours", "ours_with_teacher",
    "torchs_convolutions", "torchs_slopes", "finetune", "torchs_masks",
    "inference", "masked_inference", "loader",
]  # fmt: skip


def seconds(bench: Bench, variants: list[str], rounds: int) -> dict[str, float]:
    """Run the variants in turn, and return the median of each.

    A turn is three steps, of which the first is not counted: it finds the memory as another variant has left it.
    """
    steps = {variant: bench.make(variant) for variant in variants}
    taken: dict[str, list[float]] = {variant: [] for variant in variants}
    for number in range(rounds + 1):
        for variant, step in steps.items():
            step()
            for _ in range(2 if number else 0):  # the first round warms up
                synchronize(bench.device)
                began = time.perf_counter()
                step()
                synchronize(bench.device)
                taken[variant].append(time.perf_counter() - began)
    return {variant: statistics.median(each) for variant, each in taken.items()}


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(bench: Bench, variant: str) -> int:
    """Return what three steps of a variant take at most, beyond what the process had before it made its network."""
    if bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    before = of_this_process("VmRSS")
    step = bench.make(variant)
    for _ in range(3):
        step()
    if bench.device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    return of_this_process("VmHWM") - before


def of_this_process(figure: str) -> int:
    """Return what Linux says of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{figure}:"))


def in_another_process(arguments: list[str]) -> int:
    ran = subprocess.run([sys.executable, __file__, *arguments], capture_output=True, text=True, check=True)
    return int(ran.stdout.split()[-1])


def measure(arch: str, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Measure all variants of an architecture."""
    training = Training(precision=options.precision, channels_last=options.channels_last)
    bench = Bench(arch, options.batch_size or BATCH[arch], options.device, training)
    variants = options.variant or TIMED
    measured: dict[str, dict[str, float]] = {
        variant: {"seconds": round(each, 5)} for variant, each in seconds(bench, variants, options.rounds).items()
    }
    for variant in variants if options.memory else ():
        measured[variant]["peak_bytes"] = in_another_process([*sys.argv[1:], "--arch", arch, "--peak-of", variant])
    return measured


RATIOS = [
    ("ours", "plain"), ("ours_with_teacher", "plain"), ("ours_with_teacher", "reference"),
    ("ours_with_teacher", "reference_same_precision"), ("finetune", "plain"), ("masked_inference", "inference"),
    ("plain", "plain_float32"), ("ours_with_teacher", "torchs_convolutions"),
    ("ours_with_teacher", "torchs_slopes"), ("finetune", "torchs_masks"),
]  # fmt: skip


def show(arch: str, measured: dict[str, dict[str, float]]) -> None:
    print(f"\n{arch}")
    for variant, figures in measured.items():
        memory = f"{figures['peak_bytes'] / 2**20:8,.0f} MiB" if "peak_bytes" in figures else ""
        print(f"  {variant:<26}{figures['seconds']:9.4f} s {memory}")
    for one, other in RATIOS:
        if one in measured and other in measured:
            ratio = measured[one]["seconds"] / measured[other]["seconds"]
            memory = ""
            if "peak_bytes" in measured[one]:
                memory = f", memory {measured[one]['peak_bytes'] / measured[other]['peak_bytes']:.2f}"
            print(f"  {one} / {other}: {ratio:.3f}{memory}")
    if "loader" in measured and "ours_with_teacher" in measured:
        share = measured["loader"]["seconds"] / 10 / measured["ours_with_teacher"]["seconds"]
        print(f"  the loader takes {100 * share:.1f} % of a search step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--arch", action="append", choices=list(BATCH), help="one of them; repeatable; all by default")
    parser.add_argument("--variant", action="append", choices=TIMED, help="only this one; repeatable")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "bfloat16"])
    parser.add_argument("--channels-last", action=argparse.BooleanOptionalAction)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peak-of", choices=TIMED, help=argparse.SUPPRESS)
    options = parser.parse_args()
    training = Training(precision=options.precision, channels_last=options.channels_last)
    if options.peak_of:
        arch = options.arch[-1]
        print(peak_bytes(Bench(arch, options.batch_size or BATCH[arch], options.device, training), options.peak_of))
        return
    measured = {}
    for arch in options.arch or BATCH:
        measured[arch] = measure(arch, options)
        if not options.json:
            show(arch, measured[arch])
    if options.json:
        print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
