"""``refruntime run``: a program sees the process that Python itself would give it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# The programs run in other folders; the tree under test must be found there too.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def refruntime_run(
    *args: str, cwd: Path, python: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *python, "-m", "refruntime", "run", *args],
        capture_output=True, text=True, cwd=cwd, env=ENVIRONMENT, timeout=300,
        check=False,
    )  # fmt: skip


@pytest.fixture
def program(tmp_path):
    """Return a function that writes ``prog.py`` and gives its folder."""

    def write(code: str, name: str = "prog.py") -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_text(textwrap.dedent(code))
        return tmp_path

    return write


def test_program_that_imports_torch_computes_gradients(program):
    folder = program("""
        import torch
        x = torch.tensor([1., 2.], requires_grad=True)
        y = torch.tensor([3., 4.], requires_grad=True)
        (x * y).sum().backward()
        print(x.grad)
    """)
    done = refruntime_run("prog.py", cwd=folder)
    assert done.stdout == "tensor([3., 4.])\n", done.stderr


def test_program_gets_its_arguments_even_those_that_look_like_ours(program):
    folder = program("import sys; print(sys.argv)")
    done = refruntime_run("prog.py", "--help", "-m", "x", "--version", cwd=folder)
    assert done.stdout.strip() == "['prog.py', '--help', '-m', 'x', '--version']"


def test_script_is_main_and_its_folder_is_first_on_the_path(program):
    folder = program("value = 41", "inner/beside.py")
    program(
        """
        import __main__, sys, beside
        assert __name__ == "__main__" and __main__.__file__.endswith("prog.py")
        def f(): return beside.value + 1
        assert __main__.f is f
        print(f(), sys.path[0])
        """,
        "inner/prog.py",
    )
    done = refruntime_run("inner/prog.py", cwd=folder)
    assert done.stdout.split() == ["42", os.path.realpath(folder / "inner")], done.stderr


def test_module_runs_with_its_package_and_arguments(program):
    folder = program("", "pack/__init__.py")
    program("import sys, torch, pack\nprint(pack.__name__, sys.argv[1:])", "pack/go.py")
    done = refruntime_run("-m", "pack.go", "--flag", cwd=folder)
    assert done.stdout.strip() == "pack ['--flag']", done.stderr


def test_traceback_starts_in_the_program(program):
    folder = program("""
        def fail():
            raise ValueError("from the program")
        fail()
    """)
    done = refruntime_run("prog.py", cwd=folder)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "prog.py" in lines[1]
    assert "runpy" not in done.stderr and "refruntime" not in done.stderr
    assert lines[-1] == "ValueError: from the program"


@pytest.mark.parametrize(("code", "status"), [("", 0), ("import sys; sys.exit(7)", 7)])
def test_exit_status_is_that_of_the_program(program, code, status):
    folder = program(code)
    assert refruntime_run("prog.py", cwd=folder).returncode == status


def test_missing_script_is_named_and_exits_with_two(tmp_path):
    done = refruntime_run("absent.py", cwd=tmp_path)
    assert done.returncode == 2
    assert "absent.py" in done.stderr and "Traceback" not in done.stderr


def test_no_program_at_all_prints_the_usage(tmp_path):
    done = refruntime_run(cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: refruntime run")


def test_fresh_child_processes_see_refruntime_as_torch(program):
    folder = program("""
        import multiprocessing, subprocess, sys
        import torch

        def name_of_torch(queue):
            import torch
            queue.put(torch.__name__)

        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            child = context.Process(target=name_of_torch, args=(queue,))
            child.start()
            print(queue.get(timeout=120))
            child.join()
            code = "import torch.nn; print(torch.nn.__name__)"
            print(subprocess.check_output([sys.executable, "-c", code], text=True).strip())
    """)
    done = refruntime_run("prog.py", cwd=folder)
    assert done.stdout.split() == ["refruntime", "refruntime.nn"], done.stderr
