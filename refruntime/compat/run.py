"""Run a program that imports torch, as ``python SCRIPT`` and ``python -m MODULE`` would.

State
-----
``sys.argv``, ``sys.path`` and ``__main__`` of this process, set for the program; and the
environment variable ``PYTHONPATH``, through which its child processes find the shim.

Invariants
----------
* The program sees the arguments, the path and the ``__main__`` that Python itself would give it.
* A traceback begins in the program: frames of the launcher are not shown.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from refruntime.compat.names import install

_SHIM = str(Path(__file__).parent / "shim")
_LAUNCHER_FILES = frozenset({__file__, runpy.__file__, "<frozen runpy>"})


def run_script(script: str, args: Sequence[str] = ()) -> int:
    """Run a Python file (or a directory or zip file with a ``__main__.py``).

    Parameters
    ----------
    script : str
        Path of the program.
    args : sequence of str
        Its command-line arguments.

    Returns
    -------
    int
        The exit status: 0, or 1 after an uncaught exception, or 2 when there is no such file.
        ``SystemExit`` passes through.
    """
    if not Path(script).exists():
        print(f"refruntime: can't open file {script!r}: no such file", file=sys.stderr)
        return 2
    first_path = str(Path(script).resolve().parent)
    _enter([script, *args], first_path)
    return _guarded(lambda: runpy.run_path(script, run_name="__main__"))


def run_module(module: str, args: Sequence[str] = ()) -> int:
    """Run a module as ``python -m MODULE`` would; see `run_script`."""
    _enter([module, *args], str(Path.cwd()))
    return _guarded(lambda: runpy.run_module(module, run_name="__main__", alter_sys=True))


def _enter(argv: list[str], first_path: str) -> None:
    """Set the process up for the program."""
    install()
    sys.argv[:] = argv
    if sys.flags.safe_path:
        sys.path.insert(0, _SHIM)
    else:
        # Python puts the launcher's own folder first; the program expects its own there.
        sys.path[:1] = [first_path, _SHIM]
    inherited = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [_SHIM, inherited]))


def _guarded(program: Callable[[], Any]) -> int:
    """Run the program; show an uncaught exception the way the interpreter does."""
    try:
        program()
    except SystemExit:
        raise
    except BaseException as error:
        own = error.with_traceback(_without_launcher(error.__traceback__))
        sys.excepthook(type(own), own, own.__traceback__)
        return 130 if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _without_launcher(trace: TracebackType | None) -> TracebackType | None:
    """Drop the leading frames that belong to this file and to runpy."""
    while trace is not None and trace.tb_frame.f_code.co_filename in _LAUNCHER_FILES:
        trace = trace.tb_next
    return trace
