"""The floors of the house hold: import-linter's contracts, and that they cover every module."""

from __future__ import annotations

import configparser
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def lint_imports() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()",
         "--no-cache"],
        capture_output=True, text=True, cwd=ROOT, timeout=300, check=False,
    )  # fmt: skip


def test_no_module_imports_from_a_higher_floor():
    done = lint_imports()
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_stands_on_a_floor():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    floors = config["importlinter:contract:layers"]["layers"]
    named = {word.strip("()") for word in floors.replace("|", " ").replace(":", " ").split()}
    rooms = {path.stem for path in (ROOT / "refruntime").glob("*.py")}
    rooms |= {path.parent.name for path in (ROOT / "refruntime").glob("*/__init__.py")}
    assert rooms - {"__init__"} <= named
