"""What live bytes are for: small integer constants, so that the compiled core can count by them.

State
-----
Constants only.

Invariants
----------
* The numbers are dense from zero, and `NAMES[number]` is the name shown to users.
* A block has exactly one category at any time; bytes nobody labelled are TEMPORARY.
"""

from __future__ import annotations

from typing import Final

from refruntime.errors import ArgumentValueError

TEMPORARY: Final = 0
PARAMETER: Final = 1
GRADIENT: Final = 2
OPTIMIZER: Final = 3
ACTIVATION: Final = 4
SAVED: Final = 5
COMMUNICATION: Final = 6
EXTERNAL: Final = 7

NAMES: Final[tuple[str, ...]] = (
    "temporary", "parameter", "gradient", "optimizer", "activation", "saved", "communication",
    "external",
)  # fmt: skip
COUNT: Final = len(NAMES)
DEFAULT: Final = TEMPORARY


def name(category: int) -> str:
    """Return the name of a category number."""
    if not 0 <= category < COUNT:
        raise ArgumentValueError("category", expected=f"0 to {COUNT - 1}", got=category)
    return NAMES[category]


def number(category_name: str) -> int:
    """Return the number of a category name."""
    if category_name not in NAMES:
        raise ArgumentValueError(
            "category", expected="one of " + ", ".join(NAMES), got=repr(category_name)
        )
    return NAMES.index(category_name)
