"""Scaling a loss, so that gradients in float16 do not vanish.

State
-----
The scale, how many steps have been finite in a row, and for each optimizer whether its gradients
have been divided by the scale, and whether they were finite.

Invariants
----------
* A step whose gradients are not all finite is left out; then the scale shrinks. It grows after
  `growth_interval` finite steps in a row.
* Gradients of an optimizer are divided once between two updates.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from refruntime import _storage
from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd import no_grad
from refruntime.errors import ArgumentValueError, AutogradError


@dataclass(slots=True)
class _Progress:
    """What has been done with one optimizer's gradients since the last update."""

    unscaled: bool = False
    stepped: bool = False
    finite: bool = True


class GradScaler:
    """Scale losses up and gradients down again, leaving out steps that overflowed.

    Parameters
    ----------
    device : str
        The kind of device; ``cuda`` without a GPU disables the scaler.
    init_scale : float
        The first scale.
    growth_factor, backoff_factor : float
        What the scale is multiplied by after `growth_interval` finite steps, and after an overflow.
    growth_interval : int
        See above.
    enabled : bool
        False makes every method pass its argument through.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if enabled and device == "cuda" and not _storage.gpu_allocators:
            warnings.warn(
                "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
                stacklevel=2,
            )
            enabled = False
        if not growth_factor > 1.0 or not 0.0 < backoff_factor < 1.0:
            raise ArgumentValueError(
                "GradScaler", expected="growth_factor > 1 and 0 < backoff_factor < 1",
                got=f"{growth_factor} and {backoff_factor}",
            )  # fmt: skip
        self._device = device
        self._enabled = enabled
        self._scale = float(init_scale)
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._growth_tracker = 0
        self._progress: dict[int, _Progress] = {}

    def scale(self, outputs: Any) -> Any:
        """Return a loss, or several, multiplied by the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, TensorImpl):
            return ops.mul(outputs, self._scale)
        if isinstance(outputs, Iterable):
            scaled = (self.scale(output) for output in outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise ArgumentValueError(
            "GradScaler.scale", what="outputs must be a Tensor or an iterable of Tensors",
            expected="Tensor", got=type(outputs).__name__,
        )  # fmt: skip

    def _of(self, optimizer: Any) -> _Progress:
        return self._progress.setdefault(id(optimizer), _Progress())

    def unscale_(self, optimizer: Any) -> None:
        """Divide the gradients of an optimizer's parameters by the scale, to clip them."""
        if not self._enabled:
            return
        progress = self._of(optimizer)
        if progress.unscaled or progress.stepped:
            raise AutogradError(
                "GradScaler.unscale_",
                what="unscale_() has already been called on this optimizer since the last update()."
                if progress.unscaled
                else "unscale_() is being called after step().",
                expected="one call between two updates",
                got="another one",
            )
        with no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.mul_(1.0 / self._scale)
                        finite = bool(ops.all(ops.isfinite(parameter.grad)))
                        progress.finite = progress.finite and finite
        progress.unscaled = True

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Take a step, unless a gradient is not finite; returns what the optimizer returns."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise AutogradError(
                "GradScaler.step", what="Closure use is not currently supported",
                expected="an optimizer that needs no closure", got="closure=...",
            )  # fmt: skip
        progress = self._of(optimizer)
        if progress.stepped:
            raise AutogradError(
                "GradScaler.step", what="step() has already been called since the last update().",
                expected="one step between two updates", got="another one",
            )  # fmt: skip
        if not progress.unscaled:
            self.unscale_(optimizer)
        progress.stepped = True
        return optimizer.step(*args, **kwargs) if progress.finite else None

    def update(self, new_scale: Any = None) -> None:
        """Adjust the scale to what the steps since the last update have shown."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        elif not self._progress:
            raise AutogradError(
                "GradScaler.update", what="No inf checks were recorded prior to update.",
                expected="a step before", got="none",
            )  # fmt: skip
        else:
            self._adjust(all(progress.finite for progress in self._progress.values()))
        self._progress.clear()

    def _adjust(self, finite: bool) -> None:
        if not finite:
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
            return
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            grown = self._scale * self._growth_factor
            self._scale = grown if math.isfinite(grown) else self._scale
            self._growth_tracker = 0

    def get_scale(self) -> float:
        """Return the scale; 1 if the scaler is disabled."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether the scaler does anything."""
        return self._enabled

    def get_growth_factor(self) -> float:
        """Return what the scale is multiplied by after enough finite steps."""
        return self._growth_factor

    def get_backoff_factor(self) -> float:
        """Return what the scale is multiplied by after an overflow."""
        return self._backoff_factor

    def get_growth_interval(self) -> int:
        """Return how many finite steps in a row make the scale grow."""
        return self._growth_interval

    def state_dict(self) -> dict[str, Any]:
        """Return the state, empty if the scaler is disabled."""
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from a state."""
        if not self._enabled:
            return
        if not state_dict:
            raise AutogradError(
                "GradScaler.load_state_dict", what="The source state dict is empty, possibly "
                "because it was saved from a disabled instance of GradScaler.",
                expected="the state of an enabled scaler", got="an empty dict",
            )  # fmt: skip
        self._scale = float(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._growth_tracker = state_dict["_growth_tracker"]
