"""What ``import refruntime`` may and may not load."""

from __future__ import annotations

import subprocess
import sys

import pytest


def loaded_after(code: str) -> set[str]:
    """Return the names of the modules that a fresh process has loaded after `code`."""
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys\nprint(*sys.modules)"],
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    return set(done.stdout.split())


@pytest.mark.parametrize("code", ["import refruntime", "import refruntime; refruntime.zeros(3)"])
def test_import_and_first_tensor_load_no_gpu_package(code):
    heavy = {"cupy", "numba.cuda", "numba_cuda", "cuda", "torch"}
    assert loaded_after(code) & heavy == set()


def test_import_loads_neither_numba_nor_plotting():
    heavy = {"numba", "llvmlite", "scipy", "sklearn", "matplotlib", "tqdm", "mpi4py"}
    assert loaded_after("import refruntime") & heavy == set()
