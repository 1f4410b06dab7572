"""torch.optim.lr_scheduler: learning-rate schedules."""

from __future__ import annotations

from refruntime.optim.lr_scheduler._base import LRScheduler
from refruntime.optim.lr_scheduler._compose import (
    ChainedScheduler,
    ReduceLROnPlateau,
    SequentialLR,
)
from refruntime.optim.lr_scheduler._cycles import CyclicLR, OneCycleLR
from refruntime.optim.lr_scheduler._decay import (
    ConstantLR,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiplicativeLR,
    MultiStepLR,
    PolynomialLR,
    StepLR,
)

# The older name of the base class, which programs still inherit from.
_LRScheduler = LRScheduler

__all__ = [
    "ChainedScheduler",
    "ConstantLR",
    "CosineAnnealingLR",
    "CosineAnnealingWarmRestarts",
    "CyclicLR",
    "ExponentialLR",
    "LRScheduler",
    "LambdaLR",
    "LinearLR",
    "MultiStepLR",
    "MultiplicativeLR",
    "OneCycleLR",
    "PolynomialLR",
    "ReduceLROnPlateau",
    "SequentialLR",
    "StepLR",
]
