"""Reluctant: give a trained PyTorch network a ReLU budget."""

from reluctant import data, errors, models
from reluctant.mask import Mask, binarize
from reluctant.sites import count
from reluctant.slopes import attach, sloped

__version__ = "0.1.0"

__all__ = ["Mask", "attach", "binarize", "count", "data", "errors", "models", "sloped"]
