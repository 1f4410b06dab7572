"""The allocator's settings as a snapshot holds them, as the text that people set.

State
-----
None.

Invariants
----------
* What stands at its default is left out, so the text of an untouched allocator is empty.
* Where the file has the text itself, that is what is returned.
"""

from __future__ import annotations

from typing import Any, Final

from refruntime.alloc import sizes
from refruntime.alloc.settings import AllocatorSettings
from refruntime.errors import ArgumentValueError

MIB: Final = 1 << 20
_CONF: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def text_of(settings: dict[str, Any]) -> str:
    """Return settings of a snapshot as ``key:value,...``."""
    for key in _CONF:
        if settings.get(key):
            return str(settings[key])
    return ",".join(f"{key}:{value}" for key, value in _pairs(settings))


def check_settings(text: str) -> AllocatorSettings:
    """Return the settings of a text; raises `ArgumentValueError` with what is wrong with it."""
    try:
        return AllocatorSettings().updated(text)
    except ValueError as error:
        raise ArgumentValueError("allocator settings", what=str(error), got=repr(text)) from None


def block_size(settings: AllocatorSettings, nbytes: int) -> int:
    """Return the bytes of a block for a request, where nothing is left over."""
    divisions = settings.divisions_of(nbytes)
    if divisions > 1 and nbytes > sizes.MIN_BLOCK * divisions:
        return int(sizes.round_to_step(nbytes, divisions))
    return max(int(sizes.round_up(nbytes, sizes.MIN_BLOCK)), sizes.MIN_BLOCK)


def _pairs(settings: dict[str, Any]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    split = _number(settings.get("max_split_size"))
    if 0 < split < 1 << 60:
        pairs.append(("max_split_size_mb", str(int(split) // MIB)))
    threshold = _number(settings.get("garbage_collection_threshold"))
    if threshold > 0:
        pairs.append(("garbage_collection_threshold", f"{threshold:g}"))
    if str(settings.get("expandable_segments")) == "True":
        pairs.append(("expandable_segments", "True"))
    divisions = _divisions(settings.get("roundup_power2_divisions"))
    if divisions:
        pairs.append(("roundup_power2_divisions", divisions))
    return pairs


def _number(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return 0.0


def _divisions(table: Any) -> str:
    """Return the divisions of the sixteen intervals as a number or a list; nothing if all are 0."""
    if not isinstance(table, dict) or not any(table.values()):
        return ""
    values = set(table.values())
    if len(values) == 1:
        return str(values.pop())
    return "[" + ",".join(f"{size}:{division}" for size, division in table.items()) + "]"
