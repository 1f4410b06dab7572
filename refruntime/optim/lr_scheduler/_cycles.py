"""Schedules of rate and momentum together: cycles, and one cycle.

Source: Smith, "Cyclical learning rates for training neural networks", 2017; Smith and Topin,
"Super-convergence", 2018.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from refruntime.errors import ArgumentValueError
from refruntime.optim.lr_scheduler._base import LRScheduler, per_group, set_rate
from refruntime.optim.optimizer import Optimizer


def _momentum_key(op: str, optimizer: Any) -> bool:
    """Return whether the momentum is the first of the betas; raise if there is none."""
    defaults = optimizer.defaults
    if "momentum" not in defaults and "betas" not in defaults:
        raise ArgumentValueError(
            op, what="optimizer must support momentum or beta1 with `cycle_momentum` option enabled"
        )
    return "betas" in defaults


def _set_momentum(group: dict[str, Any], value: float, first_beta: bool) -> None:
    if first_beta:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1)


def _line(start: float, end: float, share: float) -> float:
    return (end - start) * share + start


class CyclicLR(LRScheduler):
    """The rate goes up from `base_lr` to `max_lr` and down again, over and over.

    Parameters
    ----------
    optimizer : Optimizer
    base_lr, max_lr : float or list of float
        The lower and upper rate.
    step_size_up, step_size_down : int
        Steps of the way up, and down (by default as many).
    mode : str
        ``triangular``, ``triangular2`` (each cycle half as high) or ``exp_range`` (times
        ``gamma ** step``).
    gamma : float
    scale_fn : callable, optional
        Scales the height, in the place of `mode`.
    scale_mode : str
        Whether `scale_fn` is a function of the ``cycle`` or of the ``iterations``.
    cycle_momentum : bool
        Whether the momentum moves the other way, between the next two.
    base_momentum, max_momentum : float or list of float
    last_epoch : int
    """

    def __init__(
        self, optimizer: Optimizer, base_lr: Any, max_lr: Any, step_size_up: int = 2000,
        step_size_down: int | None = None, mode: str = "triangular", gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None, scale_mode: str = "cycle",
        cycle_momentum: bool = True, base_momentum: Any = 0.8, max_momentum: Any = 0.9,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ArgumentValueError("CyclicLR", what="mode is invalid and scale_fn is None")
        bases = per_group("CyclicLR", "base_lr", base_lr, optimizer)
        if last_epoch == -1:
            for group, value in zip(optimizer.param_groups, bases, strict=True):
                set_rate(group, value)
        self.max_lrs = per_group("CyclicLR", "max_lr", max_lr, optimizer)
        down = step_size_up if step_size_down is None else step_size_down
        self.total_size = float(step_size_up + down)
        self.step_ratio = float(step_size_up) / self.total_size
        self.mode = mode
        self.gamma = gamma
        self._scale_fn = scale_fn
        self.scale_mode = "iterations" if scale_fn is None and mode == "exp_range" else scale_mode
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.use_beta1 = _momentum_key("CyclicLR", optimizer)
            self.base_momentums = per_group("CyclicLR", "base_momentum", base_momentum, optimizer)
            self.max_momentums = per_group("CyclicLR", "max_momentum", max_momentum, optimizer)
            if last_epoch == -1:
                for group, value in zip(optimizer.param_groups, self.max_momentums, strict=True):
                    _set_momentum(group, value, self.use_beta1)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = bases

    def scale_fn(self, x: float) -> float:
        """Return the scale of the height for a cycle or a step, as `scale_mode` says."""
        if self._scale_fn is not None:
            return float(self._scale_fn(x))
        if self.mode == "triangular2":
            return float(0.5 ** (x - 1))
        return float(self.gamma**x) if self.mode == "exp_range" else 1.0

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`, and set the momentum."""
        cycle = math.floor(1 + self.last_epoch / self.total_size)
        place = 1.0 + self.last_epoch / self.total_size - cycle
        if place <= self.step_ratio:
            share = place / self.step_ratio
        else:
            share = (place - 1) / (self.step_ratio - 1)
        share *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            bounds = zip(self.base_momentums, self.max_momentums, strict=True)
            for group, (low, high) in zip(self.optimizer.param_groups, bounds, strict=True):
                _set_momentum(group, high - (high - low) * share, self.use_beta1)
        return [
            low + (high - low) * share
            for low, high in zip(self.base_lrs, self.max_lrs, strict=True)
        ]


class OneCycleLR(LRScheduler):
    """One way up to `max_lr` and one way down to almost nothing.

    Parameters
    ----------
    optimizer : Optimizer
    max_lr : float or list of float
        The highest rate.
    total_steps : int, optional
        Length of the schedule; or give `epochs` and `steps_per_epoch`.
    epochs, steps_per_epoch : int, optional
    pct_start : float
        The share of the way up.
    anneal_strategy : str
        ``cos`` or ``linear``.
    cycle_momentum : bool
        Whether the momentum moves the other way, between the next two.
    base_momentum, max_momentum : float or list of float
    div_factor, final_div_factor : float
        The first rate is ``max_lr / div_factor``, the last ``first / final_div_factor``.
    three_phase : bool
        Whether the way down mirrors the way up before a last phase.
    last_epoch : int
    """

    def __init__(
        self, optimizer: Optimizer, max_lr: Any, total_steps: int | None = None,
        epochs: int | None = None, steps_per_epoch: int | None = None, pct_start: float = 0.3,
        anneal_strategy: str = "cos", cycle_momentum: bool = True, base_momentum: Any = 0.85,
        max_momentum: Any = 0.95, div_factor: float = 25.0, final_div_factor: float = 1e4,
        three_phase: bool = False, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self.total_steps = _total_steps(total_steps, epochs, steps_per_epoch)
        if not 0 <= pct_start <= 1 or not isinstance(pct_start, float):
            raise ArgumentValueError(
                "OneCycleLR", what="Expected float between 0 and 1 pct_start", got=str(pct_start)
            )
        if anneal_strategy not in ("cos", "linear"):
            raise ArgumentValueError(
                "OneCycleLR", what="anneal_strategy must be one of 'cos' or 'linear'",
                got=anneal_strategy,
            )  # fmt: skip
        self._schedule_phases = _phases(self.total_steps, pct_start, three_phase)
        self._anneal_func_type = anneal_strategy
        if last_epoch == -1:
            for group, high in zip(
                optimizer.param_groups,
                per_group("OneCycleLR", "max_lr", max_lr, optimizer),
                strict=True,
            ):
                group["initial_lr"] = high / div_factor
                group["max_lr"] = high
                group["min_lr"] = group["initial_lr"] / final_div_factor
        self.cycle_momentum = cycle_momentum
        if cycle_momentum:
            self.use_beta1 = _momentum_key("OneCycleLR", optimizer)
            if last_epoch == -1:
                self._note_momentum(optimizer, base_momentum, max_momentum)
        super().__init__(optimizer, last_epoch)

    def _note_momentum(self, optimizer: Any, base_momentum: Any, max_momentum: Any) -> None:
        lows = per_group("OneCycleLR", "base_momentum", base_momentum, optimizer)
        highs = per_group("OneCycleLR", "max_momentum", max_momentum, optimizer)
        for group, low, high in zip(optimizer.param_groups, lows, highs, strict=True):
            _set_momentum(group, high, self.use_beta1)
            group["base_momentum"], group["max_momentum"] = low, high

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`, and set the momentum."""
        step = self.last_epoch
        if step > self.total_steps:
            raise ArgumentValueError(
                "OneCycleLR", what=f"Tried to step {step} times.",
                expected=f"at most {self.total_steps} steps", got=str(step),
            )  # fmt: skip
        anneal = _cosine if self._anneal_func_type == "cos" else _line
        start = 0.0
        for phase in self._schedule_phases:
            if step <= phase["end_step"] or phase is self._schedule_phases[-1]:
                break
            start = phase["end_step"]
        share = (step - start) / (phase["end_step"] - start)
        values = []
        for group in self.optimizer.param_groups:
            values.append(anneal(group[phase["start_lr"]], group[phase["end_lr"]], share))
            if self.cycle_momentum:
                first, last = group[phase["start_momentum"]], group[phase["end_momentum"]]
                _set_momentum(group, anneal(first, last, share), self.use_beta1)
        return values


def _total_steps(total: int | None, epochs: int | None, steps_per_epoch: int | None) -> int:
    if total is None and (epochs is None or steps_per_epoch is None):
        raise ArgumentValueError(
            "OneCycleLR",
            what="You must define either total_steps OR (epochs AND steps_per_epoch)",
        )
    value = total if total is not None else epochs * steps_per_epoch  # type: ignore[operator]
    if not isinstance(value, int) or value <= 0:
        raise ArgumentValueError(
            "OneCycleLR", what="Expected positive integer total_steps", got=str(value)
        )
    return value


def _phase(end: float, rates: tuple[str, str], momenta: tuple[str, str]) -> dict[str, Any]:
    return {
        "end_step": end, "start_lr": rates[0], "end_lr": rates[1],
        "start_momentum": momenta[0], "end_momentum": momenta[1],
    }  # fmt: skip


def _phases(total: int, share: float, three: bool) -> list[dict[str, Any]]:
    """Return the phases, each with its last step and the keys between which it moves."""
    up = _phase(
        float(share * total) - 1, ("initial_lr", "max_lr"), ("max_momentum", "base_momentum")
    )
    if not three:
        down = _phase(total - 1, ("max_lr", "min_lr"), ("base_momentum", "max_momentum"))
        return [up, down]
    back = _phase(
        float(2 * share * total) - 2, ("max_lr", "initial_lr"), ("base_momentum", "max_momentum")
    )
    last = _phase(total - 1, ("initial_lr", "min_lr"), ("max_momentum", "max_momentum"))
    return [up, back, last]
