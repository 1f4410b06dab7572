"""Compiling for a GPU: the only importer of CuPy and of numba.cuda among the kernels.

State
-----
Compiled kernels by source and name. CuPy keeps the machine code on disk as well.

Invariants
----------
* Nothing is imported or compiled before a kernel is first launched.
* The text given to the compiler has our headers put in place: a changed header is a changed text,
  so that no stale code runs.
"""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

from refruntime import _optional
from refruntime.kernels import cuda_instances

OPTIONS = ("--std=c++17",)


def expanded(text: str) -> str:
    """Return a source with our own headers put in place of their includes."""
    return cuda_instances.expand(text)


@cache
def compiled(source: str, expression: str) -> Any:
    """Return a kernel of a source by its name expression; call it with grid, block, arguments.

    Raises
    ------
    OptionalDependencyError
        If CuPy cannot be imported.
    """
    module = _optional.cupy.RawModule(
        code=source, options=OPTIONS, name_expressions=(expression,)
    )
    return module.get_function(expression)


def compiled_instance(file: str, expression: str) -> Any:
    """Return an instance of a kernel template of ``cuda/<file>.cu``, by its name expression.

    Each instance is compiled by itself: a program uses few of the many that a file offers.
    """
    return compiled(cuda_instances.source(file), expression)


def numba_cuda() -> Any:
    """Return the module numba.cuda; in the simulator, what the simulator puts in its place.

    Raises
    ------
    OptionalDependencyError
        If numba-cuda cannot be imported.
    """
    if not _optional.numba_cuda:
        # Any use of a missing package raises with the reason.
        return _optional.numba_cuda.jit
    # The simulator replaces the attribute of the parent package, not the module.
    return importlib.import_module("numba").cuda
