"""torch.optim: optimizers and learning-rate schedules."""

from __future__ import annotations

from refruntime.optim import lr_scheduler
from refruntime.optim.adam import Adam, Adamax, AdamW, NAdam, RAdam
from refruntime.optim.adaptive import ASGD, Adadelta, Adagrad, RMSprop, Rprop
from refruntime.optim.lbfgs import LBFGS
from refruntime.optim.optimizer import Optimizer
from refruntime.optim.sgd import SGD

__all__ = [
    "ASGD",
    "LBFGS",
    "SGD",
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "lr_scheduler",
]
