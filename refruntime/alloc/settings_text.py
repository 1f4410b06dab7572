"""The text in which programs give allocator settings: its tokens, its keys, the rule of each key.

State
-----
None. A `Reader` lives while one text is read and collects the fields that the text sets.

Invariants
----------
* A text is cut at ``, : [ ]``; whitespace is dropped wherever it stands. What separates a key from
  its value, or two entries, has to be there, but any token will do.
* Two passes read a text: `read_generic` the keys that all accelerators share, `read_cuda` the rest.
  A key of the other pass is skipped; a key of neither is refused by the first.
* A number is the longest prefix that reads as one, modulo 2**64: ``-1`` is the largest there is,
  ``25.5`` is 25. Sizes are bytes below 2**63; what lies above saturates at `LARGEST`.
* What was read before a `Fault` stays in `Reader.values`.
"""

from __future__ import annotations

import math
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

MIB: Final = 1 << 20
UNLIMITED: Final = (1 << 63) - 1
LARGEST: Final = (1 << 63) - MIB  # the largest size that a text can set
MOST_DIVISIONS: Final = 1 << 62
INTERVALS: Final = 16  # of `roundup_power2_divisions`: 1 MiB to 32 GiB and above
LARGE_SEGMENT_ABOVE: Final = 10 * MIB
MOST_REGISTER_THREADS: Final = 128
ASYNC_BACKEND: Final = "cudaMallocAsync"


@dataclass(frozen=True, slots=True)
class Reserve:
    """Address space for one expandable segment.

    Parameters
    ----------
    value : float
        A positive number of GiB, or a share of the device's memory.
    gib : bool
        Which of the two.
    """

    value: float
    gib: bool

    def resolve(self, device_bytes: int) -> int:
        """Bytes to reserve on a device of `device_bytes`; never above 9/8 of it."""
        asked = self.value * ((1 << 30) if self.gib else device_bytes)
        return int(min(asked, full_reserve(device_bytes)))


def full_reserve(device_bytes: int) -> int:
    """Address space of an expandable segment unless a setting says less: 9/8 of the device."""
    return device_bytes + device_bytes // 8


class Fault(Exception):  # noqa: N818 -- it becomes an AllocatorSettingsError
    """Key, rule, value and PyTorch's class of error."""


_SPACE: Final = str.maketrans("", "", " \t\n\v\f\r")
_INTEGER: Final = re.compile(r"(?P<sign>[+-]?)0*(?P<digits>[0-9]+)")
_REAL: Final = re.compile(
    r"[+-]?(?:(?P<named>(?i:inf|nan))"
    r"|0[xX](?P<hexadecimal>[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)(?:[pP][+-]?[0-9]+)?"
    r"|(?P<decimal>[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)"
)
_PLAIN_REAL: Final = re.compile(r"[+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_FLAGS: Final = {"True": True, "False": False}


def tokens_of(text: str) -> list[str]:
    """Cut `text` at its separators, which are tokens themselves."""
    return [token for token in re.split(r"([,:\[\]])", text.translate(_SPACE)) if token]


class Reader:
    """A text being read: its tokens, and the fields of the settings, of which it sets some.

    Methods take the position of a token and the key that it belongs to.
    """

    __slots__ = ("tokens", "values")

    def __init__(self, text: str, values: dict[str, Any]) -> None:
        self.tokens = tokens_of(text)
        self.values = {**values, "last_text": text}

    def token(self, at: int, key: str) -> str:
        """Return the token, which has to be there."""
        if at >= len(self.tokens):
            raise Fault(key, "more to follow", "the end of the text", RuntimeError)
        return self.tokens[at]

    def flag(self, at: int, key: str) -> bool:
        """Return the truth value that the token spells."""
        token = self.token(at, key)
        if token not in _FLAGS:
            raise Fault(key, "True or False", repr(token), ValueError)
        return _FLAGS[token]

    def integer(self, at: int, key: str) -> int:
        """Return the integer that the token starts with, modulo 2**64."""
        token = self.token(at, key)
        match = _INTEGER.match(token)
        if match is None:
            raise Fault(key, "an integer", repr(token), ValueError)
        digits = match["digits"]
        if len(digits) > 20 or int(digits) >> 64:
            raise Fault(key, "an integer below 2**64", repr(token), IndexError)
        return (-int(digits) if match["sign"] == "-" else int(digits)) % (1 << 64)

    def real(self, at: int, key: str) -> float:
        """Return the number, decimal or hexadecimal, that the token starts with."""
        token = self.token(at, key)
        match = _REAL.match(token)
        if match is None:
            raise Fault(key, "a number", repr(token), ValueError)
        value = _float_of(match[0])
        is_zero = not (match["hexadecimal"] or match["decimal"] or "").strip("0.")
        if not is_zero and not sys.float_info.min <= abs(value) < math.inf:
            raise Fault(key, "a number that a double holds", repr(token), IndexError)
        return value


def _float_of(literal: str) -> float:
    """Read a decimal or hexadecimal literal; one that is too large gives infinity."""
    try:
        return float.fromhex(literal) if "x" in literal.lower() else float(literal)
    except OverflowError:
        return math.inf


# --- one function a kind of value: from the place of the value and its key it sets the field, and
# it returns the position of the last token that it used.
_Read = Callable[[Reader, int, str], int]
Pass = Callable[[Reader], None]


def _flag(*names: str) -> _Read:
    def read(reader: Reader, at: int, key: str) -> int:
        reader.values.update(dict.fromkeys(names, reader.flag(at, key)))
        return at

    return read


def _size(name: str, least: Callable[[Reader], int] = lambda reader: 0) -> _Read:
    """A number of MiB that is at least `least` bytes."""

    def read(reader: Reader, at: int, key: str) -> int:
        size = min(reader.integer(at, key) * MIB, LARGEST)
        if size < least(reader):
            rule = f"at least {least(reader) // MIB}"
            raise Fault(key, rule, repr(reader.tokens[at]), ValueError)
        reader.values[name] = size
        return at

    return read


def _share(name: str, rule: str, holds: Callable[[float], bool]) -> _Read:
    def read(reader: Reader, at: int, key: str) -> int:
        share = reader.real(at, key)
        if not holds(share):
            raise Fault(key, rule, repr(reader.tokens[at]), ValueError)
        reader.values[name] = share
        return at

    return read


def _power_of_two(reader: Reader, at: int, key: str, rule: str) -> int:
    value = reader.integer(at, key)
    if value.bit_count() != 1:
        raise Fault(key, rule, repr(reader.tokens[at]), ValueError)
    return value


def _register_threads(reader: Reader, at: int, key: str) -> int:
    rule = f"a power of two up to {MOST_REGISTER_THREADS}"
    threads = _power_of_two(reader, at, key, rule)
    if threads > MOST_REGISTER_THREADS:
        raise Fault(key, rule, repr(reader.tokens[at]), ValueError)
    reader.values["pinned_num_register_threads"] = threads
    return at


def _backend(reader: Reader, at: int, key: str) -> int:
    """The backend is chosen when the process starts; a text can only confirm it."""
    name = reader.token(at, key)
    if name not in ("native", ASYNC_BACKEND):
        raise Fault(key, f"native or {ASYNC_BACKEND}", repr(name), ValueError)
    if name != reader.values["backend"]:
        rule = f"{reader.values['backend']}, as when the process started"
        raise Fault(key, rule, repr(name), RuntimeError)
    return at


def _divisions(reader: Reader, at: int, key: str) -> int:
    """One number for all intervals, or a list ``[MiB:divisions,...,>:divisions]``."""
    if reader.token(at, key) == "[":
        return _divisions_list(reader, at + 1, key)
    divisions = _power_of_two(reader, at, key, "a power of two")
    _set_divisions(reader, 0, INTERVALS, divisions)
    return at


def _divisions_list(reader: Reader, at: int, key: str) -> int:
    """Each entry sets its own interval; the first also those below, ``>`` those above the last."""
    last, first = 0, True
    while at < len(reader.tokens) and reader.tokens[at] != "]":
        divisions = reader.integer(at + 2, key)
        if divisions.bit_count() > 1:
            raise Fault(key, "divisions of 0 or a power of two", str(divisions), ValueError)
        if reader.tokens[at] == ">":
            _set_divisions(reader, last + 1, INTERVALS, divisions)
        else:
            start = _power_of_two(reader, at, key, "intervals that start at a power of two")
            last = min(start.bit_length() - 1, INTERVALS - 1)
            _set_divisions(reader, 0 if first else last, last + 1, divisions)
            first = False
        at += 3 if reader.token(at + 3, key) == "]" else 4
    reader.token(at, key)
    return at


def _set_divisions(reader: Reader, start: int, stop: int, divisions: int) -> None:
    table = list(reader.values["roundup_power2_divisions"])
    table[start:stop] = [min(divisions, MOST_DIVISIONS)] * (stop - start)
    reader.values["roundup_power2_divisions"] = tuple(table)


def _reserve_of(token: str) -> Reserve | None:
    """A share or a number of GiB; None, with a warning, if it is neither."""
    gib = token[-1:] in ("G", "g")
    literal = token[:-1] if gib else token
    value = float(literal) if _PLAIN_REAL.fullmatch(literal) else 0.0
    if not 0.0 < value < math.inf:
        warnings.warn(
            f"reserve {token!r} of an expandable segment is ignored: it has to be a positive share "
            "such as 0.5 or a size such as 40G"
        )  # fmt: skip
        return None
    return Reserve(value, gib)


def _reserve(reader: Reader, at: int, key: str) -> int:
    reserve = _reserve_of(reader.token(at, key))
    if reserve is not None:
        reader.values["expandable_segments_reserve"] = reserve
    return at


def _reserve_by_class(reader: Reader, at: int, key: str) -> int:
    """``[name:reserve,...]``; replaces the list before it."""
    reserves: dict[str, Reserve] = {}
    while reader.token(at + 1, key) != "]":
        name, reserve = reader.tokens[at + 1], _reserve_of(reader.token(at + 3, key))
        if reserve is not None:
            reserves[name] = reserve
        at += 4 if reader.token(at + 4, key) == "," else 3
    reader.values["expandable_segments_reserve_by_class"] = tuple(reserves.items())
    return at + 1


def _least_large_segment(reader: Reader) -> int:
    return LARGE_SEGMENT_ABOVE + MIB


def _large_segment(reader: Reader) -> int:
    size: int = reader.values["large_segment_size"]
    return size


MENDS: Final = (
    "mend_search_after_sync",
    "mend_rejection_releases_cache",
    "mend_gc_without_fraction",
    "mend_expandable_max_split",
    "mend_settings_atomic",
)

_LARGE: Final = "large_segment_size_mb"
_PINNED_BOUNDS: Final = frozenset({"pinned_max_round_threshold_mb", "pinned_max_cached_size_mb"})
_GENERIC: Final[dict[str, _Read]] = {
    "max_split_size_mb": _size("max_split_size", _large_segment),
    "max_non_split_rounding_mb": _size("max_non_split_rounding", _large_segment),
    "garbage_collection_threshold": _share(
        "garbage_collection_threshold", "between 0 and 1, both excluded", lambda x: 0 < x < 1
    ),
    "roundup_power2_divisions": _divisions,
    "expandable_segments": _flag("expandable_segments"),
    "pinned_use_background_threads": _flag("pinned_use_background_threads"),
    "pinned_max_round_threshold_mb": _size("pinned_max_round_threshold"),
    "pinned_max_cached_size_mb": _size("pinned_max_cached_size"),
}
_CUDA: Final[dict[str, _Read]] = {
    "release_lock_on_cudamalloc": _flag("release_lock_on_cudamalloc"),
    "release_lock_on_hipmalloc": _flag("release_lock_on_cudamalloc"),
    "pinned_use_cuda_host_register": _flag("pinned_use_cuda_host_register"),
    "pinned_use_hip_host_register": _flag("pinned_use_cuda_host_register"),
    "pinned_num_register_threads": _register_threads,
    "pinned_reserve_segment_size_mb": _size("pinned_reserve_segment_size", lambda reader: MIB),
    "pinned_free_catch_all": _flag("pinned_free_catch_all"),
    "graph_capture_record_stream_reuse": _flag("graph_capture_record_stream_reuse"),
    "per_process_memory_fraction": _share(
        "per_process_memory_fraction", "between 0 and 1", lambda x: 0 <= x <= 1
    ),
    "throw_on_cudamalloc_oom": _flag("throw_on_cudamalloc_oom"),
    "expandable_segments_reserve": _reserve,  # newer than 2.14.1, like the next
    "expandable_segments_reserve_by_class": _reserve_by_class,
    **{name: _flag(name) for name in MENDS},
    "mended": _flag(*MENDS),
    "backend": _backend,
}
KEYS: Final = frozenset({_LARGE, *_GENERIC, *_CUDA})


def read_generic(reader: Reader) -> None:
    """Read the keys that all accelerators share; four fields start afresh each time."""
    reader.values.update(
        max_split_size=UNLIMITED,
        roundup_power2_divisions=(0,) * INTERVALS,
        garbage_collection_threshold=0.0,
    )
    _read_large_segment(reader)
    reader.values["max_non_split_rounding"] = _large_segment(reader)
    seen = _read_entries(reader, _GENERIC)
    if seen >= _PINNED_BOUNDS and _rounds_beyond_cache(reader.values):
        warnings.warn("pinned_max_round_threshold_mb above pinned_max_cached_size_mb has no effect")


def _rounds_beyond_cache(values: Mapping[str, Any]) -> bool:
    return bool(values["pinned_max_round_threshold"] > values["pinned_max_cached_size"])


def _read_large_segment(reader: Reader) -> None:
    """Look for the key at every token, because other rules depend on its value."""
    at = 0
    while at < len(reader.tokens):
        if reader.tokens[at] == _LARGE:
            at = _size("large_segment_size", _least_large_segment)(reader, at + 2, _LARGE)
        at += 1


def read_cuda(reader: Reader) -> None:
    """The pass over the keys of CUDA, and our own."""
    seen = _read_entries(reader, _CUDA)
    if reader.values["backend"] == ASYNC_BACKEND and "backend" in seen and len(seen) > 1:
        warnings.warn(f"backend:{ASYNC_BACKEND} ignores the other keys")


def _read_entries(reader: Reader, reads: Mapping[str, _Read]) -> set[str]:
    """Read the entries whose key is in `reads`, skip the others; which were read."""
    at, seen = 0, set()
    while at < len(reader.tokens):
        key = reader.tokens[at]
        if key in reads:
            at = reads[key](reader, at + 2, key)
            seen.add(key)
        elif key in KEYS:
            at = _skip(reader, at + 2, key)
        else:
            _refuse(key)
        at += 2
    return seen


def _skip(reader: Reader, at: int, key: str) -> int:
    """The last token of a value that another pass reads."""
    if reader.token(at, key) == "[":
        while reader.token(at, key) != "]":
            at += 1
    return at


def _refuse(key: str) -> NoReturn:
    raise Fault(key, f"one of {', '.join(sorted(KEYS))}", repr(key), ValueError)
