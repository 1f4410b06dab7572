"""Instance normalization: each channel of each sample by itself.

Source: Ulyanov, Vedaldi, Lempitsky, "Instance normalization", 2016.
"""

from __future__ import annotations

from typing import Any

from refruntime.errors import ArgumentValueError
from refruntime.nn import functional
from refruntime.nn.modules.batchnorm import _NormBase

__all__ = ["InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"]


class _InstanceNorm(_NormBase):
    """Normalization of each channel of each sample over its own extent.

    Parameters
    ----------
    num_features : int
        Channels (dimension 1, or 0 without a batch).
    eps : float
        Added to the variance.
    momentum : float
        The weight of a new batch in the running statistics.
    affine : bool
        Whether a scale and a shift are learned.
    track_running_stats : bool
        Whether statistics are kept for evaluation.
    device, dtype : optional
        Of parameters and buffers.
    bias : bool
        Whether the shift is there.
    """

    spatial: int

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False, device: Any = None, dtype: Any = None, *,
        bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device, dtype, bias
        )

    def _check_input_dim(self, input: Any) -> None:
        n = self.spatial
        self._expect(input, (n + 1, n + 2), f"{n + 1}D or {n + 2}D")

    def forward(self, input: Any) -> Any:
        """Normalize the input, shaped ([batch,] channels, ...)."""
        self._check_input_dim(input)
        bare = input.dim() == self.spatial + 1
        channels = input.shape[0 if bare else 1]
        if channels != self.num_features and self.affine:
            raise ArgumentValueError(
                type(self).__name__, expected=f"{self.num_features} channels", got=str(channels)
            )
        batch = input.unsqueeze(0) if bare else input
        out = functional.instance_norm(
            batch, self.running_mean, self.running_var, self.weight, self.bias,
            self.training or not self.track_running_stats,
            self.momentum if self.momentum is not None else 0.0, self.eps,
        )  # fmt: skip
        return out.squeeze(0) if bare else out


class InstanceNorm1d(_InstanceNorm):
    """Instance normalization over one dimension; see `InstanceNorm2d`."""

    spatial = 1


class InstanceNorm2d(_InstanceNorm):  # noqa: D101 - the base's
    __doc__ = _InstanceNorm.__doc__

    spatial = 2


class InstanceNorm3d(_InstanceNorm):
    """Instance normalization over three dimensions; see `InstanceNorm2d`."""

    spatial = 3
