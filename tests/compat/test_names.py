"""torch's names after `install`, each case in a process of its own: the hook is process-wide."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The cases run in other folders; the tree under test must be found there too.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def run_python(code: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT, timeout=300,
        check=False,
    )  # fmt: skip


def check(code: str, cwd: Path | None = None) -> None:
    """Run `code`, whose assertions are the test."""
    done = run_python(code, cwd)
    assert done.returncode == 0, done.stderr


def test_torch_is_the_very_module_refruntime():
    check("""
        import refruntime, refruntime.compat
        assert refruntime.compat.install() is refruntime
        import torch
        assert torch is refruntime
    """)


@pytest.mark.parametrize(
    "name", ["nn", "nn.functional", "nn.modules", "optim", "utils.data", "autograd", "random"]
)
def test_submodule_is_one_object_under_both_names(name):
    check(f"""
        import importlib, refruntime.compat
        refruntime.compat.install()
        theirs = importlib.import_module("torch.{name}")
        ours = importlib.import_module("refruntime.{name}")
        assert theirs is ours
        assert ours.__name__ == ours.__spec__.name == "refruntime.{name}"
    """)


def test_import_as_binds_the_same_functional():
    check("""
        import refruntime.compat
        refruntime.compat.install()
        import torch.nn.functional as F
        import refruntime.nn.functional
        assert F is refruntime.nn.functional
        from torch.nn.functional import relu
        assert relu is F.relu
    """)


def test_module_is_executed_once_whichever_name_comes_first(tmp_path):
    # A probe package stands in for refruntime, so that executions can be counted.
    check("""
        import sys, types, refruntime.compat
        refruntime.compat.install()
        import refruntime
        from pathlib import Path
        folder = Path("extra"); folder.mkdir()
        source = "import builtins as b; b.count = getattr(b, 'count', 0) + 1"
        (folder / "counted.py").write_text(source)
        refruntime.__path__.append(str(folder.resolve()))
        import torch.counted
        import refruntime.counted
        import builtins
        assert builtins.count == 1
        assert torch.counted is refruntime.counted
    """, tmp_path)  # fmt: skip


def test_missing_submodule_raises_module_not_found_naming_it():
    check("""
        import refruntime.compat
        refruntime.compat.install()
        import importlib, importlib.util
        for name in ("torch.no_such_module", "torch.no_such_package.inner"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                assert error.name.startswith("torch.no_such"), error.name
                assert error.name in str(error)
            else:
                raise SystemExit("imported " + name)
        assert importlib.util.find_spec("torch.no_such_module") is None
        assert importlib.util.find_spec("torch.nn") is not None
    """)


def test_install_refuses_when_another_torch_is_loaded(tmp_path):
    (tmp_path / "torch.py").write_text("")
    check("""
        import torch, sys, refruntime.compat
        other = torch
        try:
            refruntime.compat.install()
        except refruntime.compat.TorchAlreadyImportedError as error:
            assert isinstance(error, ImportError)
            assert "torch.py" in str(error) and "refruntime run" in str(error)
        else:
            raise SystemExit("replaced the loaded torch")
        assert sys.modules["torch"] is other
        assert not refruntime.compat.installed()
    """, tmp_path)  # fmt: skip


def test_installed_names_win_over_a_torch_on_the_path(tmp_path):
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('the other torch was imported')")
    (package / "only_there.py").write_text("")
    check("""
        import refruntime.compat
        refruntime.compat.install()
        import torch
        try:
            import torch.only_there
        except ModuleNotFoundError as error:
            assert error.name == "torch.only_there"
        else:
            raise SystemExit("mixed the two")
    """, tmp_path)  # fmt: skip


def test_uninstall_takes_the_names_back_and_leaves_refruntime(tmp_path):
    check("""
        import sys, refruntime.compat
        refruntime.compat.install()
        import torch.nn
        held = torch.nn
        refruntime.compat.uninstall()
        assert not [name for name in sys.modules if name.split(".")[0] == "torch"]
        assert not refruntime.compat.installed()
        assert sys.modules["refruntime.nn"] is held
    """, tmp_path)


def test_install_twice_then_uninstall_once_leaves_nothing():
    check("""
        import sys, refruntime.compat
        before = list(sys.meta_path)
        refruntime.compat.install()
        refruntime.compat.install()
        assert len(sys.meta_path) == len(before) + 1
        refruntime.compat.uninstall()
        refruntime.compat.uninstall()
        assert sys.meta_path == before and "torch" not in sys.modules
    """)


def test_package_never_imports_torch_by_itself():
    check("""
        import sys, refruntime, refruntime.nn, refruntime.optim, refruntime.compat
        assert "torch" not in sys.modules
    """)
