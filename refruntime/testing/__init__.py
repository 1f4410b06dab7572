"""What tests need: closeness with torch's rules, random tensors, a guard against leaked memory."""

from __future__ import annotations

from refruntime.testing.comparison import assert_close
from refruntime.testing.creation import make_tensor
from refruntime.testing.leaks import MemoryLeakError, assert_no_leak

__all__ = ["MemoryLeakError", "assert_close", "assert_no_leak", "make_tensor"]
