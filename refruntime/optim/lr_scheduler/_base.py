"""LRScheduler: the contract of all learning-rate schedules.

State
-----
`last_epoch` counts the steps taken; `base_lrs` holds each group's rate at the start, which also
stands in the group as ``initial_lr``.

Invariants
----------
* A schedule sets the rates of its optimizer when it is made, and at each `step`.
* `get_lr` is recursive where a recursion exists: it goes from the rate that the group has now to
  the next, so that schedules can be chained and rates changed by hand. `_get_closed_form_lr`, where
  it exists, gives the rate of any epoch.
* The state dict is every attribute except the optimizer.
"""

from __future__ import annotations

import warnings
from typing import Any

from refruntime._impl import TensorImpl
from refruntime.errors import ArgumentTypeError
from refruntime.optim.optimizer import Optimizer

EPOCH_DEPRECATION = (
    "The epoch parameter in `scheduler.step()` was not necessary and is being deprecated where "
    "possible. Please use `scheduler.step()` to step the scheduler."
)


def set_rate(group: dict[str, Any], value: Any, key: str = "lr") -> None:
    """Put a rate into a group; a rate that is a tensor keeps being the same tensor."""
    if isinstance(group[key], TensorImpl):
        group[key].fill_(float(value))
    else:
        group[key] = value


def rates(optimizer: Any, key: str = "lr") -> list[Any]:
    """Return the current rate of each group; tensors are copied."""
    return [
        group[key].clone() if isinstance(group[key], TensorImpl) else group[key]
        for group in optimizer.param_groups
    ]


def per_group(op: str, name: str, value: Any, optimizer: Any) -> list[Any]:
    """Return a list with one value a group, from one value or such a list."""
    groups = optimizer.param_groups
    if not isinstance(value, (list, tuple)):
        return [value] * len(groups)
    if len(value) != len(groups):
        raise ValueError(
            f"{op}: expected {len(groups)} values for {name}, one for each parameter group, got "
            f"{len(value)}"
        )
    return list(value)


def _note_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    optimizer._opt_called = True


class LRScheduler:
    """Base class of all schedules.

    Parameters
    ----------
    optimizer : Optimizer
        Whose rates are set.
    last_epoch : int
        The epoch to go on from; -1 starts anew.
    """

    _is_initial = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentTypeError(
                type(self).__name__, expected="an Optimizer", got=type(optimizer).__name__
            )
        self.optimizer: Any = optimizer
        self._remember_initial(last_epoch)
        self.base_lrs: list[Any] = rates(optimizer, "initial_lr")
        self.last_epoch = last_epoch
        if not hasattr(self.optimizer, "_opt_called"):
            vars(optimizer)["_opt_called"] = False
            self.optimizer.register_step_post_hook(_note_step)
        self._initial_step()

    def _remember_initial(self, last_epoch: int) -> None:
        for i, group in enumerate(self.optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", rates(self.optimizer)[i])
            elif "initial_lr" not in group:
                raise KeyError(
                    "param 'initial_lr' is not specified in "
                    f"param_groups[{i}] when resuming a scheduler with last_epoch >= 0"
                )

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            del self._is_initial

    def get_lr(self) -> list[Any]:
        """Return the rate of each group for `last_epoch`; each schedule defines its own."""
        raise NotImplementedError

    def get_last_lr(self) -> list[Any]:
        """Return the rates that were set last."""
        return self._last_lr

    def step(self, epoch: int | None = None) -> None:
        """Go on to the next epoch (or to the given one) and set the rates."""
        self._warn_of_order()
        self._step_count += 1
        if epoch is None:
            self.last_epoch += 1
            values = self.get_lr()
        else:
            warnings.warn(EPOCH_DEPRECATION, UserWarning, stacklevel=2)
            self.last_epoch = epoch
            closed = getattr(self, "_get_closed_form_lr", None)
            values = self.get_lr() if closed is None else closed()
        self._set_rates(values)

    def _set_rates(self, values: list[Any]) -> None:
        for group, value in zip(self.optimizer.param_groups, values, strict=False):
            set_rate(group, value)
        self._last_lr = rates(self.optimizer)

    def _warn_of_order(self) -> None:
        if self._step_count == 1 and not getattr(self.optimizer, "_opt_called", True):
            warnings.warn(
                "Detected call of `lr_scheduler.step()` before `optimizer.step()`. Call them in "
                "the opposite order: otherwise the first value of the schedule is skipped.",
                UserWarning,
                stacklevel=3,
            )

    def state_dict(self) -> dict[str, Any]:
        """Return all attributes except the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` returned."""
        self.__dict__.update(state_dict)

    # What most schedules need.

    def _rates_now(self) -> list[Any]:
        return rates(self.optimizer)

    def _scaled_now(self, factor: float) -> list[Any]:
        return [rate * factor for rate in self._rates_now()]

    def _scaled_base(self, factor: float) -> list[Any]:
        return [base * factor for base in self.base_lrs]
