"""Schedules that go one way: steps, exponents, lines, polynomials, half a cosine."""

from __future__ import annotations

import math
import types
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from refruntime.errors import ArgumentTypeError, ArgumentValueError
from refruntime.optim.lr_scheduler._base import LRScheduler
from refruntime.optim.optimizer import Optimizer

LambdaArg = Callable[[int], float] | list[Callable[[int], float]]


class _FunctionLR(LRScheduler):
    """A schedule given by functions of the epoch, one a group."""

    lr_lambdas: list[Callable[[int], float]]

    def __init__(self, optimizer: Optimizer, lr_lambda: LambdaArg, last_epoch: int = -1) -> None:
        groups = len(optimizer.param_groups)
        given = list(lr_lambda) if isinstance(lr_lambda, (list, tuple)) else [lr_lambda] * groups
        if len(given) != groups:
            raise ArgumentValueError(
                type(self).__name__, expected=f"{groups} lr_lambdas", got=str(len(given))
            )
        for function in given:
            if not callable(function):
                raise ArgumentTypeError(
                    type(self).__name__, what="lr_lambda should be a function",
                    got=type(function).__name__,
                )  # fmt: skip
        self.lr_lambdas = given
        super().__init__(optimizer, last_epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return all attributes but the optimizer; of the functions, only callable objects' own."""
        state = super().state_dict()
        state["lr_lambdas"] = [
            None if isinstance(f, types.FunctionType) else dict(getattr(f, "__dict__", {}))
            for f in self.lr_lambdas
        ]
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` returned; plain functions stay those of this schedule."""
        own = self.lr_lambdas
        self.__dict__.update({k: v for k, v in state_dict.items() if k != "lr_lambdas"})
        for function, saved in zip(own, state_dict["lr_lambdas"], strict=True):
            if saved is not None:
                function.__dict__.update(saved)


class LambdaLR(_FunctionLR):
    """``base * lr_lambda(epoch)``.

    Parameters
    ----------
    optimizer : Optimizer
    lr_lambda : callable or list of callable
        A factor for each epoch, for all groups or for each.
    last_epoch : int
    """

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`."""
        return [
            base * function(self.last_epoch)
            for function, base in zip(self.lr_lambdas, self.base_lrs, strict=True)
        ]


class MultiplicativeLR(_FunctionLR):
    """``rate * lr_lambda(epoch)``, from one epoch to the next.

    Parameters
    ----------
    optimizer : Optimizer
    lr_lambda : callable or list of callable
        A factor for each epoch, for all groups or for each.
    last_epoch : int
    """

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`."""
        now = self._rates_now()
        if self._is_initial:
            return now
        return [
            rate * function(self.last_epoch)
            for function, rate in zip(self.lr_lambdas, now, strict=True)
        ]


class StepLR(LRScheduler):
    """Times `gamma` every `step_size` epochs.

    Parameters
    ----------
    optimizer : Optimizer
    step_size : int
    gamma : float
    last_epoch : int
    """

    def __init__(
        self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.step_size = step_size
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`."""
        due = self.last_epoch != 0 and self.last_epoch % self.step_size == 0
        return self._scaled_now(self.gamma) if due else self._rates_now()

    def _get_closed_form_lr(self) -> list[Any]:
        return self._scaled_base(self.gamma ** (self.last_epoch // self.step_size))


class MultiStepLR(LRScheduler):
    """Times `gamma` at each milestone.

    Parameters
    ----------
    optimizer : Optimizer
    milestones : iterable of int
        Epochs, in order.
    gamma : float
    last_epoch : int
    """

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        self.milestones = Counter(milestones)
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`."""
        if self.last_epoch not in self.milestones:
            return self._rates_now()
        return self._scaled_now(self.gamma ** self.milestones[self.last_epoch])

    def _get_closed_form_lr(self) -> list[Any]:
        passed = bisect_right(sorted(self.milestones.elements()), self.last_epoch)
        return self._scaled_base(self.gamma**passed)


class ExponentialLR(LRScheduler):
    """Times `gamma` every epoch.

    Parameters
    ----------
    optimizer : Optimizer
    gamma : float
    last_epoch : int
    """

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`."""
        return self._rates_now() if self._is_initial else self._scaled_now(self.gamma)

    def _get_closed_form_lr(self) -> list[Any]:
        return self._scaled_base(self.gamma**self.last_epoch)


class ConstantLR(LRScheduler):
    """Times `factor` until `total_iters` epochs are over.

    Parameters
    ----------
    optimizer : Optimizer
    factor : float
        In [0, 1].
    total_iters : int
    last_epoch : int
    """

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if not 0 <= factor <= 1.0:
            raise ArgumentValueError(
                "ConstantLR", what="Constant multiplicative factor expected to be between 0 and 1.",
                got=str(factor),
            )  # fmt: skip
        self.factor = factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`."""
        if self.last_epoch == 0:
            return self._scaled_now(self.factor)
        if self.last_epoch != self.total_iters:
            return self._rates_now()
        return self._scaled_now(1.0 / self.factor)

    def _get_closed_form_lr(self) -> list[Any]:
        return self._scaled_base(self.factor if self.last_epoch < self.total_iters else 1.0)


class LinearLR(LRScheduler):
    """A factor that goes in a line from `start_factor` to `end_factor`.

    Parameters
    ----------
    optimizer : Optimizer
    start_factor, end_factor : float
    total_iters : int
        When the end is reached.
    last_epoch : int
    """

    def __init__(
        self, optimizer: Optimizer, start_factor: float = 1.0 / 3, end_factor: float = 1.0,
        total_iters: int = 5, last_epoch: int = -1,
    ) -> None:  # fmt: skip
        if not 0 < start_factor <= 1.0:
            raise ArgumentValueError(
                "LinearLR",
                what="Starting multiplicative factor expected to be greater than 0 and less or "
                "equal to 1.", got=str(start_factor),
            )  # fmt: skip
        if not 0 <= end_factor <= 1.0:
            raise ArgumentValueError(
                "LinearLR", what="Ending multiplicative factor expected to be between 0 and 1.",
                got=str(end_factor),
            )  # fmt: skip
        self.start_factor = start_factor
        self.end_factor = end_factor
        self.total_iters = total_iters
        super().__init__(optimizer, last_epoch)

    def _factor(self, epoch: int) -> float:
        share = min(self.total_iters, epoch) / self.total_iters
        return self.start_factor + (self.end_factor - self.start_factor) * share

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`."""
        if self.last_epoch == 0:
            return self._scaled_now(self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._rates_now()
        rise = self.end_factor - self.start_factor
        before = self.total_iters * self.start_factor + (self.last_epoch - 1) * rise
        return self._scaled_now(1.0 + rise / before)

    def _get_closed_form_lr(self) -> list[Any]:
        return self._scaled_base(self._factor(self.last_epoch))


class PolynomialLR(LRScheduler):
    """``base * (1 - epoch / total_iters) ** power``.

    Parameters
    ----------
    optimizer : Optimizer
    total_iters : int
        When the rate reaches 0.
    power : float
    last_epoch : int
    """

    def __init__(
        self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1
    ) -> None:
        self.total_iters = total_iters
        self.power = power
        super().__init__(optimizer, last_epoch)

    def _left(self, epoch: int) -> float:
        return 1.0 - min(self.total_iters, epoch) / self.total_iters

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`."""
        if self._is_initial or self.last_epoch > self.total_iters:
            return self._rates_now()
        ratio = self._left(self.last_epoch) / self._left(self.last_epoch - 1)
        return self._scaled_now(ratio**self.power)

    def _get_closed_form_lr(self) -> list[Any]:
        return self._scaled_base(self._left(self.last_epoch) ** self.power)


class CosineAnnealingLR(LRScheduler):
    """Half a cosine from the base rate down to `eta_min`, and up again after `T_max` epochs.

    Parameters
    ----------
    optimizer : Optimizer
    T_max : int
        Epochs of the way down.
    eta_min : float
        The lowest rate.
    last_epoch : int
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_max: int,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        self.T_max = T_max
        self.eta_min = eta_min
        super().__init__(optimizer, last_epoch)

    def _height(self, epoch: int) -> float:
        """Return twice the share of the way that is left."""
        return 1 + math.cos(math.pi * epoch / self.T_max)

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`."""
        epoch, now = self.last_epoch, self._rates_now()
        if self._is_initial and epoch == 0:
            return now
        if self._step_count == 1 and epoch > 0:
            return self._get_closed_form_lr()
        if (epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            # The rate before was the lowest one: no ratio leads on from it.
            rise = (1 - math.cos(math.pi / self.T_max)) / 2
            return [
                rate + (base - self.eta_min) * rise
                for rate, base in zip(now, self.base_lrs, strict=True)
            ]
        ratio = self._height(epoch) / self._height(epoch - 1)
        return [ratio * (rate - self.eta_min) + self.eta_min for rate in now]

    def _get_closed_form_lr(self) -> list[Any]:
        share = self._height(self.last_epoch) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]


class CosineAnnealingWarmRestarts(LRScheduler):
    """Half a cosine down to `eta_min`, again and again, each `T_mult` times as long.

    Parameters
    ----------
    optimizer : Optimizer
    T_0 : int
        Epochs of the first way down.
    T_mult : int
    eta_min : float
    last_epoch : int

    Notes
    -----
    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", 2017.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(value, int) or value < 1:
                raise ArgumentValueError(
                    "CosineAnnealingWarmRestarts", what=f"Expected integer {name} >= 1",
                    got=f"{value} of type {type(value)}",
                )  # fmt: skip
        self.T_0 = T_0
        self.T_i = T_0
        self.T_mult = T_mult
        self.eta_min = eta_min
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for the place in the current run."""
        share = (1 + math.cos(math.pi * self.T_cur / self.T_i)) / 2
        return [self.eta_min + (base - self.eta_min) * share for base in self.base_lrs]

    def step(self, epoch: float | None = None) -> None:
        """Go on by one epoch, or to an epoch, which need not be whole."""
        if epoch is None and self.last_epoch < 0:
            epoch = 0
        if epoch is None:
            epoch = self.last_epoch + 1
            self.T_cur += 1
            if self.T_cur >= self.T_i:
                self.T_cur -= self.T_i
                self.T_i *= self.T_mult
        else:
            if epoch < 0:
                raise ArgumentValueError(
                    "CosineAnnealingWarmRestarts.step", what="Expected non-negative epoch",
                    got=str(epoch),
                )  # fmt: skip
            self._place(epoch)
        self.last_epoch = math.floor(epoch)
        self._step_count += 1
        self._set_rates(self.get_lr())

    def _place(self, epoch: float) -> None:
        """Find the run that holds `epoch`."""
        if self.T_mult == 1:
            self.T_cur, self.T_i = epoch % self.T_0, self.T_0
            return
        start, self.T_i = 0, self.T_0
        while epoch >= start + self.T_i:
            start += self.T_i
            self.T_i *= self.T_mult
        self.T_cur = epoch - start

