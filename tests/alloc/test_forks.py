"""Nobody is inside an allocator while the process forks, and nobody waits for ever for that."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this platform")

# A thread that is inside one turnstile, and wants another, while the process forks.
_NESTED = """
import os, threading, time, warnings
from refruntime.alloc.turnstile import Turnstile
warnings.simplefilter("ignore", DeprecationWarning)
turnstiles, inside = [Turnstile() for _ in range(8)], threading.Event()
def nest(outer, inner):
    with outer:
        inside.set()
        time.sleep(0.2)
        with inner:
            pass
good = 0
for number in range(8):
    inside.clear()
    thread = threading.Thread(target=nest, args=(turnstiles[number], turnstiles[number - 1]))
    thread.start()
    inside.wait()
    child = os.fork()
    if child == 0:
        for turnstile in turnstiles:
            with turnstile:
                pass
        os._exit(0)
    thread.join()
    good += os.waitpid(child, 0)[1] == 0
print(good)
"""


def test_a_fork_waits_for_a_thread_that_goes_from_one_turnstile_into_another() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _NESTED], capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("8\n", "")
