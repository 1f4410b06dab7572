"""Settings of products and of attention on a GPU.

State
-----
`matmul`, the settings of products; and the names of the attention kernels that are switched off.
There is one attention kernel, which never stores the scores: the switches are read back, no more.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from refruntime import _optional


@dataclass(slots=True)
class MatmulSettings:
    """Which shortcuts products may take; none is taken."""

    allow_tf32: bool = False
    allow_fp16_reduced_precision_reduction: bool = False
    allow_bf16_reduced_precision_reduction: bool = False
    allow_fp16_accumulation: bool = False


matmul = MatmulSettings()
_off: set[str] = set()


def is_built() -> bool:
    """Whether the package that drives a GPU is installed."""
    return _optional.__getattr__("cupy").installed()


def _switch(name: str, enabled: bool) -> None:
    (_off.discard if enabled else _off.add)(name)


def flash_sdp_enabled() -> bool:
    """Whether flash attention is switched on."""
    return "flash" not in _off


def enable_flash_sdp(enabled: bool) -> None:
    """Switch flash attention on or off."""
    _switch("flash", enabled)


def mem_efficient_sdp_enabled() -> bool:
    """Whether memory-efficient attention is switched on."""
    return "mem_efficient" not in _off


def enable_mem_efficient_sdp(enabled: bool) -> None:
    """Switch memory-efficient attention on or off."""
    _switch("mem_efficient", enabled)


def math_sdp_enabled() -> bool:
    """Whether attention by plain products is switched on."""
    return "math" not in _off


def enable_math_sdp(enabled: bool) -> None:
    """Switch attention by plain products on or off."""
    _switch("math", enabled)


@contextmanager
def sdp_kernel(
    enable_flash: bool = True, enable_math: bool = True, enable_mem_efficient: bool = True,
    enable_cudnn: bool = True,
) -> Iterator[None]:  # fmt: skip
    """Set the switches of attention inside a ``with`` block."""
    before = set(_off)
    enable_flash_sdp(enable_flash)
    enable_math_sdp(enable_math)
    enable_mem_efficient_sdp(enable_mem_efficient)
    try:
        yield
    finally:
        _off.clear()
        _off.update(before)
