"""All parameters as one vector, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentTypeError

__all__ = ["parameters_to_vector", "vector_to_parameters"]


def parameters_to_vector(parameters: Iterable[Any]) -> Any:
    """Return one vector of all elements, parameter after parameter."""
    return ops.cat([param.reshape(-1) for param in parameters], 0)


def vector_to_parameters(vec: Any, parameters: Iterable[Any]) -> None:
    """Make the parameters views of the parts of one vector."""
    if not isinstance(vec, TensorImpl):
        raise ArgumentTypeError(
            "vector_to_parameters", expected="torch.Tensor", got=type(vec).__name__
        )
    whole: Any = vec
    start = 0
    for param in parameters:
        count = param.numel()
        param.data = whole[start : start + count].view(param.shape).data
        start += count
