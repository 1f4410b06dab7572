"""Settings that all tests share."""

from __future__ import annotations

import os

from hypothesis import settings

# The first example of a test may compile a kernel, which takes seconds: no deadline on examples.
settings.register_profile("default", deadline=None)
# What lands must not depend on luck; new examples are found on the developers' machines.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")
