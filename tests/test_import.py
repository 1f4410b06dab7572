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


# Importing a module later sets its name in the package, over whatever the package has put there.
_SHADOWED = """
import importlib, pkgutil, sys, types, refruntime
found = [refruntime] + [
    importlib.import_module(info.name)
    for info in pkgutil.walk_packages(refruntime.__path__, "refruntime.") if info.ispkg
]
for package in found:
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        value = vars(package).get(info.name.rpartition(".")[2])
        if value is not None and not isinstance(value, types.ModuleType):
            if info.name not in sys.modules:
                print(info.name)
"""


def test_no_module_takes_the_name_of_something_its_package_has_from_elsewhere():
    done = subprocess.run(
        [sys.executable, "-c", _SHADOWED], capture_output=True, text=True, timeout=300, check=True
    )
    assert done.stdout == ""


@pytest.mark.parametrize("module", ["async_driver", "stream_ordered", "strategies"])
def test_a_module_can_be_the_first_that_is_imported(module):
    # They need each other's neighbours: a cycle shows only in the one that comes first.
    name = f"refruntime.alloc.{module}"
    assert name in loaded_after(f"import {name}")
