"""Machine code from the disk cache runs in another process, to the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BATTERY = Path(__file__).with_name("battery.py")


def run_battery() -> dict:
    done = subprocess.run(
        [sys.executable, str(BATTERY)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.slow
def test_every_cached_kernel_is_loaded_and_run_by_a_second_process():
    first, second = run_battery(), run_battery()
    assert second["loaded"] > 300
    assert second["compiled"] == []
    assert second["digests"] == first["digests"]
