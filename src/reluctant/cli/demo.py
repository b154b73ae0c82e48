"""`reluctant demo`: what Reluctant does, on data that ships with scikit-learn."""

from __future__ import annotations

import torch

from reluctant import attach, binarize, data, models, sites, sloped
from reluctant._example import spell
from reluctant.cli._show import console, percent, table


def demo() -> None:
    """Count the ReLUs of a small ResNet and mask all but a tenth of them.

    So far this shows the pieces; it does not search or train yet, so the mask is drawn at random.
    """
    splits = data.load("digits")
    images, _ = next(iter(splits.loader("test", batch_size=8)))
    torch.manual_seed(0)
    network = models.create("small", num_classes=10, input_shape=splits.train.shape)
    full = sites.count(network, images)
    student = attach(network, images)
    for module in sloped(student).values():
        torch.nn.init.uniform_(module.slope)
    mask = binarize(student, "10%")
    masked = sites.count(mask.apply(network, images), images)
    rows = table("site", "shape", "#ReLUs", "#kept", "#share")
    for before, after in zip(full, masked, strict=True):
        share = percent(after.count, before.count)
        rows.add_row(before.name, spell(before.shape), f"{before.count:,}", f"{after.count:,}", share)
    rows.add_section()
    rows.add_row("total", "", f"{full.total:,}", f"{masked.total:,}", percent(masked.total, full.total), style="bold")
    console.print("A small ResNet for 16×16 digits, masked to a tenth of its ReLUs.")
    console.print("The network is not trained and the mask is drawn at random: so far the demo only counts and masks.\n")
    console.print(rows)
    console.print("\nYour own network: reluctant count --model package.module:factory --input 3x224x224")
