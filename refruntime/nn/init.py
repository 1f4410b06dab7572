"""torch.nn.init: filling parameters with their first values.

State
-----
None. Every function fills its tensor in place, without recording, and returns it.

Invariants
----------
* Fans follow PyTorch's layout: dimension 0 is the output, dimension 1 the input, the rest is the
  receptive field.

Sources: Glorot and Bengio, 2010 (xavier); He et al., 2015 (kaiming); Saxe et al., 2013
(orthogonal); Martens, 2010 (sparse).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from refruntime._dtypes import float64
from refruntime._ops.opdef import ops
from refruntime.autograd import no_grad
from refruntime.errors import ArgumentValueError

__all__ = [
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "kaiming_normal_",
    "kaiming_uniform_",
    "normal_",
    "ones_",
    "orthogonal_",
    "sparse_",
    "trunc_normal_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]

_FIXED_GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "conv_transpose1d": 1.0,
    "conv_transpose2d": 1.0, "conv_transpose3d": 1.0, "sigmoid": 1.0, "tanh": 5.0 / 3,
    "relu": math.sqrt(2.0), "selu": 0.75,
}  # fmt: skip


def _bad(op: str, what: str, **fields: Any) -> ArgumentValueError:
    return ArgumentValueError(op, what=what, **fields)


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """Return the factor that keeps variances through a nonlinearity.

    Parameters
    ----------
    nonlinearity : str
        ``linear``, ``conv1d``, ..., ``sigmoid``, ``tanh``, ``relu``, ``leaky_relu``, ``selu``.
    param : float, optional
        The negative slope of ``leaky_relu``; default 0.01.
    """
    if nonlinearity in _FIXED_GAINS:
        return _FIXED_GAINS[nonlinearity]
    if nonlinearity != "leaky_relu":
        raise _bad("calculate_gain", f"Unsupported nonlinearity {nonlinearity}")
    if param is not None and (isinstance(param, bool) or not isinstance(param, (int, float))):
        raise _bad("calculate_gain", f"negative_slope {param} not a valid number")
    slope = 0.01 if param is None else param
    return math.sqrt(2.0 / (1 + slope**2))


def _calculate_fan_in_and_fan_out(tensor: Any) -> tuple[int, int]:
    if tensor.dim() < 2:
        raise _bad(
            "init",
            "Fan in and fan out can not be computed for tensor with fewer than 2 dimensions",
            expected="at least 2 dimensions", got=f"shape {tuple(tensor.shape)}",
        )  # fmt: skip
    field = math.prod(tensor.shape[2:])
    return tensor.shape[1] * field, tensor.shape[0] * field


def _calculate_correct_fan(tensor: Any, mode: str) -> int:
    mode = mode.lower()
    if mode not in ("fan_in", "fan_out"):
        raise _bad("init", f"Mode {mode} not supported, please use one of ['fan_in', 'fan_out']")
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return fan_in if mode == "fan_in" else fan_out


def uniform_(tensor: Any, a: float = 0.0, b: float = 1.0, generator: Any = None) -> Any:
    """Fill from the uniform distribution on [a, b)."""
    with no_grad():
        return tensor.uniform_(a, b, generator=generator)


def normal_(tensor: Any, mean: float = 0.0, std: float = 1.0, generator: Any = None) -> Any:
    """Fill from the normal distribution."""
    with no_grad():
        return tensor.normal_(mean, std, generator=generator)


def trunc_normal_(
    tensor: Any, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0,
    generator: Any = None,
) -> Any:  # fmt: skip
    """Fill from the normal distribution, cut to [a, b].

    The uniform distribution between the distribution function's values at `a` and `b` goes through
    its inverse.
    """
    root2 = math.sqrt(2.0)
    # erf at the bounds: twice the distribution function, less one.
    low, high = math.erf((a - mean) / std / root2), math.erf((b - mean) / std / root2)
    with no_grad():
        tensor.uniform_(low, high, generator=generator)
        tensor.erfinv_().mul_(std * root2).add_(mean)
        return tensor.clamp_(min=a, max=b)


def constant_(tensor: Any, val: float) -> Any:
    """Fill with one value."""
    with no_grad():
        return tensor.fill_(val)


def ones_(tensor: Any) -> Any:
    """Fill with 1."""
    return constant_(tensor, 1.0)


def zeros_(tensor: Any) -> Any:
    """Fill with 0."""
    return constant_(tensor, 0.0)


def eye_(tensor: Any) -> Any:
    """Fill a matrix with the identity."""
    if tensor.dim() != 2:
        raise _bad("eye_", "Only tensors with 2 dimensions are supported")
    with no_grad():
        return tensor.copy_(ops.eye(*tensor.shape, dtype=tensor.dtype, device=tensor.device))


def dirac_(tensor: Any, groups: int = 1) -> Any:
    """Fill a convolution's weight so that it passes its input through, in each group."""
    if tensor.dim() not in (3, 4, 5):
        raise _bad("dirac_", "Only tensors with 3, 4, or 5 dimensions are supported")
    if tensor.shape[0] % groups:
        raise _bad("dirac_", "dim 0 must be divisible by groups")
    per_group = tensor.shape[0] // groups
    centre = tuple(size // 2 for size in tensor.shape[2:])
    with no_grad():
        tensor.zero_()
        for group in range(groups):
            for channel in range(min(per_group, tensor.shape[1])):
                tensor[(group * per_group + channel, channel, *centre)] = 1
    return tensor


def xavier_uniform_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Fill uniformly on ±gain * sqrt(6 / (fan_in + fan_out))."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    bound = gain * math.sqrt(6.0 / (fan_in + fan_out))
    return uniform_(tensor, -bound, bound, generator)


def xavier_normal_(tensor: Any, gain: float = 1.0, generator: Any = None) -> Any:
    """Fill normally with deviation gain * sqrt(2 / (fan_in + fan_out))."""
    fan_in, fan_out = _calculate_fan_in_and_fan_out(tensor)
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / (fan_in + fan_out)), generator)


def _kaiming_std(tensor: Any, a: float, mode: str, nonlinearity: str) -> float | None:
    if 0 in tensor.shape:
        # Nothing to fill; torch only warns.
        return None
    return calculate_gain(nonlinearity, a) / math.sqrt(_calculate_correct_fan(tensor, mode))


def kaiming_uniform_(
    tensor: Any, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Any:  # fmt: skip
    """Fill uniformly on ±gain * sqrt(3 / fan).

    Parameters
    ----------
    a : float
        The negative slope of ``leaky_relu``.
    mode : str
        ``fan_in`` keeps variances forward, ``fan_out`` backward.
    nonlinearity : str
        See `calculate_gain`.
    """
    std = _kaiming_std(tensor, a, mode, nonlinearity)
    if std is None:
        return tensor
    return uniform_(tensor, -math.sqrt(3.0) * std, math.sqrt(3.0) * std, generator)


def kaiming_normal_(
    tensor: Any, a: float = 0, mode: str = "fan_in", nonlinearity: str = "leaky_relu",
    generator: Any = None,
) -> Any:  # fmt: skip
    """Fill normally with deviation gain / sqrt(fan); parameters as in `kaiming_uniform_`."""
    std = _kaiming_std(tensor, a, mode, nonlinearity)
    return tensor if std is None else normal_(tensor, 0.0, std, generator)


def orthogonal_(tensor: Any, gain: float = 1, generator: Any = None) -> Any:
    """Fill with a (semi-)orthogonal matrix, the dimensions after the first taken as one."""
    if tensor.dim() < 2:
        raise _bad("orthogonal_", "Only tensors with 2 or more dimensions are supported")
    if tensor.numel() == 0:
        return tensor
    rows = tensor.shape[0]
    columns = tensor.numel() // rows
    tall = (max(rows, columns), min(rows, columns))
    with no_grad():
        drawn = ops.empty(tall, dtype=float64).normal_(0, 1, generator=generator)
        q, r = np.linalg.qr(drawn.numpy())
        # The factorisation fixes signs; undo that, so that the distribution is the uniform one.
        q = q * np.sign(np.diagonal(r)) * gain
        if rows < columns:
            q = q.T
        return tensor.copy_(ops.from_numpy(np.ascontiguousarray(q)).reshape(tensor.shape))


def sparse_(tensor: Any, sparsity: float, std: float = 0.01, generator: Any = None) -> Any:
    """Fill a matrix normally, then set a share of each column to 0."""
    if tensor.dim() != 2:
        raise _bad("sparse_", "Only tensors with 2 dimensions are supported")
    rows, columns = tensor.shape
    empty = math.ceil(sparsity * rows)
    with no_grad():
        tensor.normal_(0, std, generator=generator)
        for column in range(columns):
            places = ops.randperm(rows, generator=generator)[:empty]
            tensor[places, column] = 0
    return tensor


def _old_name(function: Callable[..., Any]) -> Callable[..., Any]:
    """The names without underscore, which old programs still call."""

    def renamed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    renamed.__name__ = renamed.__qualname__ = function.__name__.rstrip("_")
    renamed.__doc__ = f"Older name of `{function.__name__}`."
    return renamed


uniform = _old_name(uniform_)
normal = _old_name(normal_)
constant = _old_name(constant_)
eye = _old_name(eye_)
dirac = _old_name(dirac_)
xavier_uniform = _old_name(xavier_uniform_)
xavier_normal = _old_name(xavier_normal_)
kaiming_uniform = _old_name(kaiming_uniform_)
kaiming_normal = _old_name(kaiming_normal_)
orthogonal = _old_name(orthogonal_)
sparse = _old_name(sparse_)
