"""torch.nn.attention: which implementations scaled_dot_product_attention may use.

State
-----
The stack of what `sdpa_kernel` blocks allow. There is one implementation here, which serves every
choice; the names exist so that programs which choose run.
"""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator
from typing import Any

from refruntime.errors import ArgumentTypeError

__all__ = ["SDPBackend", "sdpa_kernel"]


class SDPBackend(enum.IntEnum):
    """The implementations of attention that PyTorch tells apart."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


_allowed: list[tuple[SDPBackend, ...]] = [tuple(SDPBackend)[1:]]


def allowed_backends() -> tuple[SDPBackend, ...]:
    """Return what the innermost `sdpa_kernel` block allows."""
    return _allowed[-1]


@contextlib.contextmanager
def sdpa_kernel(backends: Any, set_priority: bool = False) -> Iterator[None]:
    """Allow only some implementations within the block.

    Parameters
    ----------
    backends : SDPBackend or list of SDPBackend
    set_priority : bool
        Accepted.
    """
    given = [backends] if isinstance(backends, SDPBackend) else list(backends)
    for backend in given:
        if not isinstance(backend, SDPBackend):
            raise ArgumentTypeError(
                "sdpa_kernel", expected="SDPBackend", got=type(backend).__name__
            )
    _allowed.append(tuple(given))
    try:
        yield
    finally:
        _allowed.pop()
