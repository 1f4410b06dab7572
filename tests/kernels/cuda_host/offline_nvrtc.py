"""Compiles the CUDA kernels with NVRTC for a card that need not be there.

State: none. Invariants: the same source text and the same name expressions as `launch.raw` uses;
the result is machine code (a cubin) for the architecture asked for, not only PTX.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from refruntime.kernels import cuda_instances

ARCHITECTURES = ("sm_75", "sm_80", "sm_90")
HEADER = "cuda_fp16.h"
PLACES = (
    ("numba_cuda", "numba/cuda/include/13"),
    ("numba_cuda", "numba/cuda/include/12"),
    ("nvidia", "cu13/include"),
    ("nvidia", "cuda_runtime/include"),
)


@cache
def header_folder() -> Path:
    """The folder of CUDA's half-precision headers; several wheels carry a copy."""
    for package, folder in PLACES:
        spec = importlib.util.find_spec(package)
        for root in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(root) / folder / HEADER).exists():
                return Path(root) / folder
    raise FileNotFoundError(f"{HEADER}: install numba-cuda or the toolkit's header wheel")


# Two speeds: QUICK still parses, instantiates and assembles every kernel, it only optimises less.
FULL: tuple[str, ...] = ("-std=c++17",)
QUICK: tuple[str, ...] = (*FULL, "-Ofc=max")


@dataclass(frozen=True)
class Resources:
    """What the assembler says of one instance (bytes, and registers a thread)."""

    expression: str
    registers: int
    static_shared: int
    spilled: int


def compile_file(
    file: str, architecture: str, options: tuple[str, ...] = FULL
) -> tuple[dict[str, str], bytes]:
    """``{name expression: mangled name}`` of every instance in the table, and the cubin."""
    expressions = cuda_instances.expressions(file)
    names, cubin, _ = compile_text(
        cuda_instances.source(file), expressions, architecture, options, f"{file}.cu"
    )
    return names, cubin


def compile_text(
    text: str,
    expressions: tuple[str, ...],
    architecture: str,
    options: tuple[str, ...] = FULL,
    name: str = "kernels.cu",
) -> tuple[dict[str, str], bytes, str]:
    """The same for any source text, with the compiler's log."""
    from cupy.cuda import nvrtc

    program = nvrtc.createProgram(text, name, [], [])
    try:
        for expression in expressions:
            nvrtc.addNameExpression(program, expression)
        try:
            nvrtc.compileProgram(
                program, [f"-arch={architecture}", *options, f"-I{header_folder()}"]
            )
        except nvrtc.NVRTCError as error:
            raise RuntimeError(
                f"{name}, {architecture}:\n{nvrtc.getProgramLog(program)}"
            ) from error
        lowered = {e: nvrtc.getLoweredName(program, e) for e in expressions}
        return lowered, nvrtc.getCUBIN(program), nvrtc.getProgramLog(program)
    finally:
        nvrtc.destroyProgram(program)


_USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")
_SPILLED = re.compile(r"(\d+) bytes spill stores")


def resources_of(file: str, architecture: str, options: tuple[str, ...]) -> list[Resources]:
    """Registers, static shared memory and spills of every instance, from the assembler's report."""
    names, _, log = compile_text(
        cuda_instances.source(file),
        cuda_instances.expressions(file),
        architecture,
        (*options, "--ptxas-options=-v"),
        f"{file}.cu",
    )
    expressions = {mangled: expression for expression, mangled in names.items()}
    found, current, spilled = [], "", 0
    for line in log.splitlines():
        named = re.search(r"Compiling entry function '(\w+)'", line)
        if named:
            current = expressions[named.group(1)]
        if stores := _SPILLED.search(line):
            spilled = int(stores.group(1))
        if used := _USED.search(line):
            found.append(Resources(current, int(used.group(1)), int(used.group(2) or 0), spilled))
    if len(found) != len(names):
        raise RuntimeError(f"{file}: the log reports {len(found)} of {len(names)} kernels")
    return found
