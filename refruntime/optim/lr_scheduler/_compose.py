"""Schedules made of others, and the one that watches a metric."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from refruntime.errors import ArgumentTypeError, ArgumentValueError
from refruntime.optim.lr_scheduler._base import LRScheduler, per_group, rates, set_rate
from refruntime.optim.optimizer import Optimizer


def _check_members(op: str, schedulers: Sequence[Any], optimizer: Any) -> None:
    if not schedulers:
        raise ArgumentValueError(
            op, what=f"{op} expects at least one scheduler to be chained", got="no scheduler"
        )
    for place, scheduler in enumerate(schedulers):
        if not hasattr(scheduler, "optimizer"):
            raise ArgumentTypeError(op, what=f"{op} at index {place} should have `optimizer`")
        if isinstance(scheduler, ReduceLROnPlateau):
            raise ArgumentValueError(
                op, what=f"{op} does not support `ReduceLROnPlateau` scheduler (index {place})"
            )
        if scheduler.optimizer is not optimizer:
            raise ArgumentValueError(
                op, what=f"{op} expects all schedulers to belong to the same optimizer",
                got=f"scheduler at index {place} with another one",
            )  # fmt: skip


def _state_with_members(scheduler: Any) -> dict[str, Any]:
    hidden = ("optimizer", "_schedulers")
    state = {key: value for key, value in scheduler.__dict__.items() if key not in hidden}
    state["_schedulers"] = [member.state_dict() for member in scheduler._schedulers]
    return state


def _load_with_members(scheduler: Any, state: dict[str, Any]) -> None:
    members = state["_schedulers"]
    scheduler.__dict__.update({k: v for k, v in state.items() if k != "_schedulers"})
    for member, saved in zip(scheduler._schedulers, members, strict=True):
        member.load_state_dict(saved)


class SequentialLR(LRScheduler):
    """One schedule after the other, changing at the milestones.

    Parameters
    ----------
    optimizer : Optimizer
    schedulers : list of LRScheduler
    milestones : list of int
        The epochs at which the next schedule takes over.
    last_epoch : int
    """

    def __init__(
        self, optimizer: Optimizer, schedulers: list[LRScheduler], milestones: list[int],
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        _check_members("SequentialLR", schedulers, optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ArgumentValueError(
                "SequentialLR",
                what="Sequential Schedulers expects number of schedulers provided to be one more "
                "than the number of milestone points",
                expected=str(len(schedulers) - 1), got=str(len(milestones)),
            )  # fmt: skip
        self._schedulers = schedulers
        self._milestones = milestones
        self.last_epoch = last_epoch + 1
        self.optimizer = optimizer
        # Every member set its first rates when it was made; only those of the first may stand.
        for group in optimizer.param_groups:
            set_rate(group, group["initial_lr"])
        for scheduler in schedulers:
            _undo(scheduler)
        schedulers[0]._initial_step()
        self._last_lr = schedulers[0].get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch with the schedule whose turn it is."""
        self.last_epoch += 1
        place = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[place]
        if place > 0 and self._milestones[place - 1] == self.last_epoch:
            _begin(scheduler)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """Return all attributes but the optimizer, and the state of each member."""
        return _state_with_members(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        _load_with_members(self, state_dict)


def _undo(scheduler: Any) -> None:
    members = getattr(scheduler, "_schedulers", None)
    if members is None:
        scheduler.last_epoch -= 1
        return
    for member in members:
        _undo(member)


def _begin(scheduler: Any) -> None:
    """Start a member at its epoch 0, without the warning about naming epochs."""
    if type(scheduler).step is not LRScheduler.step:
        scheduler.step(0)
        return
    scheduler._step_count += 1
    scheduler.last_epoch = 0
    closed = getattr(scheduler, "_get_closed_form_lr", None)
    scheduler._set_rates(scheduler.get_lr() if closed is None else closed())


class ChainedScheduler(LRScheduler):
    """Several schedules, all stepped at each step; their factors multiply.

    Parameters
    ----------
    schedulers : sequence of LRScheduler
    optimizer : Optimizer, optional
        By default that of the first.
    """

    def __init__(self, schedulers: Sequence[LRScheduler], optimizer: Any = None) -> None:
        if not schedulers:
            raise ArgumentValueError(
                "ChainedScheduler",
                what="ChainedScheduler expects at least one scheduler to be chained",
            )
        optimizer = optimizer or schedulers[0].optimizer
        _check_members("ChainedScheduler", schedulers, optimizer)
        self._schedulers = schedulers
        self.optimizer = optimizer
        self._last_lr = rates(optimizer)

    def step(self, epoch: int | None = None) -> None:
        """Step all members."""
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = rates(self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Return all attributes but the optimizer, and the state of each member."""
        return _state_with_members(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        _load_with_members(self, state_dict)


class ReduceLROnPlateau(LRScheduler):
    """Times `factor` when a metric has stopped getting better.

    Parameters
    ----------
    optimizer : Optimizer
    mode : str
        Whether ``min`` or ``max`` is better.
    factor : float
        Below 1.
    patience : int
        Epochs without progress that are let pass.
    threshold : float
        How much counts as better.
    threshold_mode : str
        Whether `threshold` is ``rel`` or ``abs``.
    cooldown : int
        Epochs after a reduction in which nothing is counted.
    min_lr : float or list of float
        Lowest rates.
    eps : float
        Smaller changes of the rate are not made.
    """

    def __init__(
        self, optimizer: Optimizer, mode: str = "min", factor: float = 0.1, patience: int = 10,
        threshold: float = 1e-4, threshold_mode: str = "rel", cooldown: int = 0,
        min_lr: Any = 0, eps: float = 1e-8,
    ) -> None:  # fmt: skip
        if factor >= 1.0:
            raise ArgumentValueError(
                "ReduceLROnPlateau", what="Factor should be < 1.0.", got=str(factor)
            )
        if not isinstance(optimizer, Optimizer):
            raise ArgumentTypeError(
                "ReduceLROnPlateau", expected="an Optimizer", got=type(optimizer).__name__
            )
        if mode not in ("min", "max"):
            raise ArgumentValueError("ReduceLROnPlateau", what=f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ArgumentValueError(
                "ReduceLROnPlateau", what=f"threshold mode {threshold_mode} is unknown!"
            )
        self.optimizer = optimizer
        self.mode = mode
        self.factor = factor
        self.patience = patience
        self.threshold = threshold
        self.threshold_mode = threshold_mode
        self.cooldown = cooldown
        self.min_lrs = per_group("ReduceLROnPlateau", "min_lr", min_lr, optimizer)
        self.default_min_lr = None if isinstance(min_lr, (list, tuple)) else min_lr
        self.eps = eps
        self.last_epoch = 0
        self._last_lr = rates(optimizer)
        self._reset()

    def _reset(self) -> None:
        self.best = math.inf if self.mode == "min" else -math.inf
        self.cooldown_counter = 0
        self.num_bad_epochs = 0

    def step(self, metrics: Any, epoch: int | None = None) -> None:  # type: ignore[override]
        """Look at the metric of an epoch and reduce the rates if it is time."""
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.is_better(current, self.best):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = rates(self.optimizer)

    def _reduce(self) -> None:
        if len(self.min_lrs) < len(self.optimizer.param_groups) and self.default_min_lr is not None:
            self.min_lrs = [self.default_min_lr] * len(self.optimizer.param_groups)
        for group, lowest in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            old = float(group["lr"])
            new = max(old * self.factor, lowest)
            if old - new > self.eps:
                set_rate(group, new)

    @property
    def in_cooldown(self) -> bool:
        """Whether the epochs after a reduction are still running."""
        return self.cooldown_counter > 0

    def is_better(self, a: float, best: float) -> bool:
        """Whether `a` is better than `best` by more than the threshold."""
        if self.threshold_mode == "abs":
            return a < best - self.threshold if self.mode == "min" else a > best + self.threshold
        if self.mode == "min":
            return a < best * (1.0 - self.threshold)
        return a > best * (self.threshold + 1.0)
