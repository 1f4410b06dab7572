"""Codes: what the core's calls return instead of a row or an address. They are not positive."""

from __future__ import annotations

from typing import Final

DONE: Final = 0
OUT_OF_MEMORY: Final = -1  # nothing could serve the request
REJECTED: Final = -2  # refused before anything was tried
UNKNOWN: Final = -3  # no block in use has this address
GATED: Final = -4  # compiled calls are not allowed now
INVALID: Final = -5  # a size or a category that makes no sense
