"""The processor that the CPU kernels are compiled for."""

from __future__ import annotations

_LEVELS = ("avx512f", "avx2")
_NAMES = {"avx512f": "AVX512", "avx2": "AVX2"}


def get_cpu_capability() -> str:
    """Return the widest vector instructions of this processor, ``DEFAULT`` if it has none."""
    # Part of numba, imported here because importing the package must not load a compiler.
    from llvmlite import binding

    features = binding.get_host_cpu_features()
    return next((_NAMES[level] for level in _LEVELS if features.get(level)), "DEFAULT")
