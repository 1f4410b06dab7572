"""Pooling: the registry's functions, which have torch's signatures, and p-norms made of them."""

from __future__ import annotations

from typing import Any

# Importing the tensor layer loads every family, so the names below are there.
from refruntime import _tensor as _tensor
from refruntime._ops.opdef import ops

max_pool1d: Any = ops.max_pool1d
max_pool2d: Any = ops.max_pool2d
max_pool3d: Any = ops.max_pool3d
avg_pool1d: Any = ops.avg_pool1d
avg_pool2d: Any = ops.avg_pool2d
avg_pool3d: Any = ops.avg_pool3d
adaptive_avg_pool1d: Any = ops.adaptive_avg_pool1d
adaptive_avg_pool2d: Any = ops.adaptive_avg_pool2d
adaptive_avg_pool3d: Any = ops.adaptive_avg_pool3d
adaptive_max_pool1d: Any = ops.adaptive_max_pool1d
adaptive_max_pool2d: Any = ops.adaptive_max_pool2d
adaptive_max_pool3d: Any = ops.adaptive_max_pool3d


def lp_pool2d(
    input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Any:
    """Return the p-norm of each window of ([N,] C, H, W)."""
    height, width = (
        (kernel_size, kernel_size) if isinstance(kernel_size, int) else tuple(kernel_size)
    )
    powers = avg_pool2d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return (powers.relu() * (height * width)).pow(1.0 / norm_type)


def lp_pool1d(
    input: Any, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
) -> Any:
    """Return the p-norm of each window of ([N,] C, L)."""
    width = kernel_size if isinstance(kernel_size, int) else kernel_size[0]
    powers = avg_pool1d(input.pow(norm_type), kernel_size, stride, 0, ceil_mode)
    return (powers.relu() * width).pow(1.0 / norm_type)
