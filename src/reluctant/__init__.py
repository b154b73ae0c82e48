"""Reluctant: give a trained PyTorch network a ReLU budget."""

from reluctant import cost, data, errors, frontier, methods, models, published
from reluctant._binarize import binarize
from reluctant._finetune import finetune
from reluctant._linearize import Result, linearize
from reluctant._load import load
from reluctant.cost import estimate
from reluctant.mask import Mask
from reluctant.sites import count
from reluctant.slopes import attach, sloped

__version__ = "0.1.0"

__all__ = [
    "Mask",
    "Result",
    "attach",
    "binarize",
    "cost",
    "count",
    "data",
    "errors",
    "estimate",
    "finetune",
    "frontier",
    "linearize",
    "load",
    "methods",
    "models",
    "published",
    "sloped",
]
