"""The documentation's links into the code point at what they name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_links_into_the_code_are_fresh():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "refresh_links.py"), "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
