"""The command ``refruntime``: run a torch program, describe the installation, demo, allocator lab.

State
-----
None. Each subcommand is a function from its parsed arguments to an exit status.

Invariants
----------
* What a subcommand needs is imported when it runs, so ``refruntime --help`` stays instant.
* Arguments after the program's name belong to the program, whatever they look like.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

Row = dict[str, Any]
CORE_PACKAGES = ("numpy", "numba", "llvmlite", "ml_dtypes", "safetensors")


RUN_USAGE = """\
usage: refruntime run SCRIPT [ARG ...]
       refruntime run -m MODULE [ARG ...]

Run a Python program with torch's names standing for refruntime.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default those of this process.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    if arguments and arguments[0] in _DELEGATES:
        return _DELEGATES[arguments[0]](arguments[1:])
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 2
    return _info(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refruntime", description="Run PyTorch programs, and see what they do with memory."
    )
    parser.add_argument("--version", action="version", version=_own_version())
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    # Listed for --help; their arguments are not ours to parse (see _DELEGATES).
    commands.add_parser("run", help="run a program that imports torch")
    commands.add_parser("demo", help="train a network on digits and report on its memory")
    commands.add_parser("lab", help="read, replay and explain recordings of device memory")
    info = commands.add_parser("info", help="show versions, settings and optional packages")
    info.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _run(arguments: list[str]) -> int:
    from refruntime import compat

    match arguments:
        case ["-h" | "--help", *_]:
            print(RUN_USAGE, end="")
            return 0
        case ["-m", module, *rest]:
            return compat.run_module(module, rest)
        case [script, *rest] if not script.startswith("-"):
            return compat.run_script(script, rest)
    print(RUN_USAGE, end="", file=sys.stderr)
    return 2


def _demo(arguments: list[str]) -> int:
    from refruntime.demo import main as demo_main

    return demo_main(arguments)


def _lab(arguments: list[str]) -> int:
    if arguments[:1] == ["report"]:
        from refruntime.viz.lab.command import main as report_main

        return report_main(arguments[1:])
    from refruntime.lab.commands import main as lab_main

    return lab_main(arguments)


# Subcommands that hand all that follows to a program, which reads its arguments itself.
_DELEGATES: dict[str, Callable[[list[str]], int]] = {"run": _run, "demo": _demo, "lab": _lab}


def _info(options: argparse.Namespace) -> int:
    facts = _facts()
    if options.json:
        print(json.dumps(facts, indent=2))
        return 0
    print(f"refruntime {facts['refruntime']}  Python {facts['python']}  {facts['platform']}")
    print(f"cache directory: {facts['cache_dir']}")
    _print_table("core packages", ("name", "version"), facts["core"])
    _print_table("optional packages", ("name", "state"), facts["optional"])
    _print_table("settings", ("name", "value", "source", "env", "meaning"), facts["settings"])
    return 0


def _facts() -> dict[str, Any]:
    """Collect what ``refruntime info`` shows."""
    from refruntime.config import config

    return {
        "refruntime": _own_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cache_dir": config.cache_dir,
        "core": [{"name": name, "version": metadata.version(name)} for name in CORE_PACKAGES],
        "optional": _optional_rows(),
        "settings": config.describe(),
    }


def _optional_rows() -> list[Row]:
    from refruntime import _optional

    return [{**row, "state": _state_of(row)} for row in _optional.describe()]


def _state_of(row: Row) -> str:
    """Say whether an optional package is there, and else how to get it."""
    return "installed" if row["installed"] else f"not installed: pip install {row['extra']}"


def _print_table(title: str, columns: tuple[str, ...], rows: list[Row]) -> None:
    """Print rows under a title, each column as wide as its widest cell."""
    cells = [[str(row[column]) for column in columns] for row in rows]
    widths = [max((len(line[i]) for line in cells), default=0) for i in range(len(columns))]
    print(f"\n{title}")
    for line in cells:
        print("  " + "  ".join(map(str.ljust, line, widths)).rstrip())


def _own_version() -> str:
    try:
        return metadata.version("refruntime")
    except metadata.PackageNotFoundError:  # a source tree that was not installed
        return "(source tree)"
