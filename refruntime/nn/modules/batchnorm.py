"""Batch normalization, with running statistics.

Source: Ioffe and Szegedy, "Batch normalization", 2015.
"""

from __future__ import annotations

from typing import Any

from refruntime._dtypes import int64
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError
from refruntime.nn import functional, init
from refruntime.nn.modules.module import Module
from refruntime.nn.parameter import Parameter

__all__ = ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"]


class _NormBase(Module):
    """Settings, parameters and running statistics of batch and instance normalization."""

    _version = 2

    def __init__(
        self, num_features: int, eps: float, momentum: float | None, affine: bool,
        track_running_stats: bool, device: Any, dtype: Any, bias: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_features = num_features
        self.eps = eps
        self.momentum = momentum
        self.affine = affine
        self.track_running_stats = track_running_stats
        where = {"device": device, "dtype": dtype}
        for name, present in (("weight", affine), ("bias", affine and bias)):
            value = Parameter(ops.empty((num_features,), **where)) if present else None
            self.register_parameter(name, value)
        count = ops.zeros((), dtype=int64, device=device)
        for name, value in (
            ("running_mean", ops.zeros((num_features,), **where)),
            ("running_var", ops.ones((num_features,), **where)),
            ("num_batches_tracked", count),
        ):
            self.register_buffer(name, value if track_running_stats else None)
        self.reset_parameters()

    def reset_running_stats(self) -> None:
        """Set the running statistics to mean 0 and variance 1."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Set scale 1, shift 0, and the running statistics."""
        self.reset_running_stats()
        if self.weight is not None:
            init.ones_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)

    def _check_input_dim(self, input: Any) -> None:
        raise NotImplementedError

    def _expect(self, input: Any, dims: tuple[int, ...], text: str) -> None:
        if input.dim() not in dims:
            raise ArgumentValueError(
                type(self).__name__, what=f"expected {text} input (got {input.dim()}D input)"
            )

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, local_metadata: dict[str, Any], *rest: Any
    ) -> None:
        # Before version 2 the batches were not counted.
        if (local_metadata.get("version") or 0) < 2 and self.track_running_stats:
            count = self.num_batches_tracked
            known = ops.zeros((), dtype=int64) if count is None else count
            state_dict.setdefault(prefix + "num_batches_tracked", known)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)


class _BatchNorm(_NormBase):
    """Normalization of each channel over the batch.

    Parameters
    ----------
    num_features : int
        Channels (dimension 1).
    eps : float
        Added to the variance.
    momentum : float or None
        The weight of a new batch in the running statistics; None takes their plain mean.
    affine : bool
        Whether a scale and a shift are learned.
    track_running_stats : bool
        Whether statistics are kept for evaluation.
    device, dtype : optional
        Of parameters and buffers.
    bias : bool
        Whether the shift is there.
    """

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True, device: Any = None,
        dtype: Any = None, *, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias
        )

    def _factor(self) -> float:
        """Count the batch and return its weight in the running statistics."""
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            if self.momentum is None:
                return 1.0 / float(self.num_batches_tracked)
        return 0.0 if self.momentum is None else self.momentum

    def forward(self, input: Any) -> Any:
        """Normalize the input, shaped (batch, channels, ...)."""
        self._check_input_dim(input)
        factor = self._factor()
        from_batch = self.training or (self.running_mean is None and self.running_var is None)
        keep = not self.training or self.track_running_stats
        return functional.batch_norm(
            input,
            self.running_mean if keep else None,
            self.running_var if keep else None,
            self.weight, self.bias, from_batch, factor, self.eps,
        )  # fmt: skip


class BatchNorm1d(_BatchNorm):
    """Batch normalization of (batch, channels) or (batch, channels, length); see `BatchNorm2d`."""

    def _check_input_dim(self, input: Any) -> None:
        self._expect(input, (2, 3), "2D or 3D")


class BatchNorm2d(_BatchNorm):  # noqa: D101 - the base's
    __doc__ = _BatchNorm.__doc__

    def _check_input_dim(self, input: Any) -> None:
        self._expect(input, (4,), "4D")


class BatchNorm3d(_BatchNorm):
    """Batch normalization of (batch, channels, depth, height, width); see `BatchNorm2d`."""

    def _check_input_dim(self, input: Any) -> None:
        self._expect(input, (5,), "5D")
