"""The one training loop, the losses it minimises and the evaluation it is judged by."""

from reluctant.train.evaluate import evaluate
from reluctant.train.loop import Epoch, Trainer
from reluctant.train.losses import Objective, Penalty, distillation
from reluctant.train.rates import learning_rate
from reluctant.train.teacher import Teacher

__all__ = ["Epoch", "Objective", "Penalty", "Teacher", "Trainer", "distillation", "evaluate", "learning_rate"]
