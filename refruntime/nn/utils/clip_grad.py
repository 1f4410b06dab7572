"""Clipping gradients by their joint norm or by value."""

from __future__ import annotations

from typing import Any

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd import no_grad

__all__ = [
    "clip_grad_norm",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "get_total_norm",
]


def _grads(parameters: Any) -> list[Any]:
    tensors: Any = [parameters] if isinstance(parameters, TensorImpl) else parameters
    return [param.grad for param in tensors if param.grad is not None]


def get_total_norm(
    tensors: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Any:  # fmt: skip
    """Return the norm of all elements of all tensors together.

    Parameters
    ----------
    tensors : Tensor or iterable of Tensor
    norm_type : float
        p; infinity gives the largest absolute value.
    error_if_nonfinite : bool
        Whether an infinite or NaN norm is an error.
    foreach : bool, optional
        Accepted; there is one implementation.
    """
    members = [tensors] if isinstance(tensors, TensorImpl) else list(tensors)
    if not members:
        return ops.zeros(())
    with no_grad():
        norms = [ops.linalg_vector_norm(tensor, float(norm_type)) for tensor in members]
        total = ops.linalg_vector_norm(ops.stack(norms, 0), float(norm_type))
    if error_if_nonfinite and not bool(total.isfinite()):
        raise RuntimeError(
            f"The total norm of order {float(norm_type)} for gradients from `parameters` is "
            "non-finite, so it cannot be clipped. To disable this error and scale the gradients by "
            "the non-finite norm anyway, set `error_if_nonfinite=False`"
        )
    return total


def clip_grads_with_norm_(
    parameters: Any, max_norm: float, total_norm: Any, foreach: bool | None = None
) -> None:
    """Scale gradients, in place, so that a norm of `total_norm` becomes `max_norm` at most."""
    factor = min(1.0, float(max_norm) / (float(total_norm) + 1e-6))
    if factor == 1.0:
        return
    with no_grad():
        for grad in _grads(parameters):
            grad.mul_(factor)


def clip_grad_norm_(
    parameters: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False,
    foreach: bool | None = None,
) -> Any:  # fmt: skip
    """Scale the gradients, in place, so that their joint norm is at most `max_norm`.

    Returns
    -------
    Tensor
        The norm before.
    """
    members = [parameters] if isinstance(parameters, TensorImpl) else list(parameters)
    total = get_total_norm(_grads(members), norm_type, error_if_nonfinite, foreach)
    clip_grads_with_norm_(members, max_norm, total, foreach)
    return total


def clip_grad_norm(parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
    """Older name of `clip_grad_norm_`."""
    return clip_grad_norm_(parameters, max_norm, norm_type)


def clip_grad_value_(
    parameters: Any, clip_value: float, foreach: bool | None = None
) -> None:
    """Clip each element of the gradients, in place, to ±`clip_value`."""
    bound = float(clip_value)
    with no_grad():
        for grad in _grads(parameters):
            grad.clamp_(min=-bound, max=bound)
