"""The settings of the caching allocator, and the text in which programs give them.

State
-----
None. An `AllocatorSettings` is a value; `updated` reads a text such as
``"max_split_size_mb:128,expandable_segments:True"`` and returns the value after it.

Invariants
----------
* The rules are those of PyTorch 2.14.1, found by putting texts to its own parser.
* Four fields fall back to their defaults with every text, even an empty one: `max_split_size`,
  `max_non_split_rounding` (to the large segment size), `garbage_collection_threshold` and
  `roundup_power2_divisions`. All others keep their value until a text sets them again.
* A rejected text leaves behind what was set before the entry at fault: the error's `kept`.
* Sizes are bytes below 2**63; `UNLIMITED` is the size of what is not limited.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final

from refruntime.alloc.settings_text import (
    ASYNC_BACKEND,
    INTERVALS,
    LARGEST,
    MENDS,
    MIB,
    UNLIMITED,
    Fault,
    Reader,
    Reserve,
    full_reserve,
    read_cuda,
    read_generic,
    tokens_of,
)
from refruntime.errors import ArgumentTypeError, RefruntimeError

GENERIC_VARIABLES: Final = (
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_HIP_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)
CUDA_VARIABLES: Final = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
NO_CACHING_VARIABLES: Final = ("PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING")


class AllocatorSettingsError(RefruntimeError, ValueError, IndexError, RuntimeError):
    """A settings text that breaks a rule.

    PyTorch raises ValueError for a value that makes no sense, IndexError for a number that does not
    fit its type and RuntimeError for a text that stops too early; this error is all three.

    Attributes
    ----------
    key, rule, value : str
        The entry at fault, what it has to be, and what it is.
    torch_class : type
        What PyTorch raises in this place.
    kept : AllocatorSettings
        The settings that PyTorch's allocator goes on with: what came before the entry is applied.
    """

    key: str
    rule: str
    value: str
    torch_class: type[Exception]
    kept: AllocatorSettings

    def __init__(self, fault: Fault, kept: AllocatorSettings) -> None:
        self.key, self.rule, self.value, self.torch_class = fault.args
        self.kept = kept
        super().__init__(
            "allocator settings", what=self.key, expected=self.rule, got=self.value,
            remedy=f"the text was {kept.last_text!r}",
        )  # fmt: skip

    def __reduce__(self) -> tuple[Any, ...]:
        fault = Fault(self.key, self.rule, self.value, self.torch_class)
        return type(self), (fault, self.kept)


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """What the caching allocator is told to do.

    One field a key (table 1.8 of the policy), sizes in bytes. The fields that start with ``mend_``
    are refruntime's own: each replaces a flaw of PyTorch's allocator by what one would expect, and
    is off unless asked for, so that decisions stay equal to PyTorch's.

    Parameters
    ----------
    mend_search_after_sync : bool
        Search the pool again after waiting for pending frees, before giving up (pytorch#189504).
    mend_rejection_releases_cache : bool
        Let `throw_on_cudamalloc_oom` refuse only what does not fit after the cache was released.
    mend_gc_without_fraction : bool
        Let `garbage_collection_threshold` work also when no memory fraction is set.
    mend_expandable_max_split : bool
        Keep blocks above `max_split_size` whole in expandable segments too.
    mend_settings_atomic : bool
        A rejected text changes nothing at all.
    last_text : str
        The text that was read last, rejected or not.
    uncached : bool
        Every request goes to the driver; set by the environment only.
    """

    backend: str = "native"
    large_segment_size: int = 20 * MIB
    max_split_size: int = UNLIMITED
    max_non_split_rounding: int = 20 * MIB
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = (0,) * INTERVALS
    expandable_segments: bool = False
    expandable_segments_reserve: Reserve | None = None
    expandable_segments_reserve_by_class: tuple[tuple[str, Reserve], ...] = ()
    release_lock_on_cudamalloc: bool = False
    graph_capture_record_stream_reuse: bool = False
    per_process_memory_fraction: float = 1.0
    throw_on_cudamalloc_oom: bool = False
    pinned_use_cuda_host_register: bool = False
    pinned_num_register_threads: int = 1
    pinned_use_background_threads: bool = False
    pinned_reserve_segment_size: int = 0
    pinned_free_catch_all: bool = False
    pinned_max_round_threshold: int = UNLIMITED
    pinned_max_cached_size: int = UNLIMITED
    mend_search_after_sync: bool = False
    mend_rejection_releases_cache: bool = False
    mend_gc_without_fraction: bool = False
    mend_expandable_max_split: bool = False
    mend_settings_atomic: bool = False
    last_text: str = ""
    uncached: bool = False

    def updated(self, text: str) -> AllocatorSettings:
        """Return the settings after `text`, ``"key:value,key:value,..."``.

        Raises
        ------
        ArgumentTypeError
            If `text` is no string.
        AllocatorSettingsError
            If an entry breaks a rule. Its `kept` holds the settings to go on with.
        """
        if not isinstance(text, str):
            raise ArgumentTypeError("allocator settings", expected="a str", got=type(text).__name__)
        return self._after(text, read_generic, read_cuda)

    def _after(self, text: str, *passes: Callable[[Reader], None]) -> AllocatorSettings:
        """The settings once `passes` have read `text`."""
        reader = Reader(text, {each.name: getattr(self, each.name) for each in fields(self)})
        try:
            for read in passes:
                read(reader)
        except Fault as fault:
            kept = self if self.mend_settings_atomic else AllocatorSettings(**reader.values)
            raise AllocatorSettingsError(fault, replace(kept, last_text=text)) from None
        return AllocatorSettings(**reader.values)

    @property
    def mended(self) -> bool:
        """Whether every flaw is mended."""
        return all(getattr(self, name) for name in MENDS)

    def divisions_of(self, size: int) -> int:
        """The divisions of a power of two into which `size` bytes are rounded; 0 or 1 is none."""
        interval = size.bit_length() - 21
        return self.roundup_power2_divisions[min(max(interval, 0), INTERVALS - 1)]

    def reserve_bytes(self, device_bytes: int, reserve_class: str = "") -> int:
        """Address space of a new expandable segment for a stream of `reserve_class`."""
        by_class = dict(self.expandable_segments_reserve_by_class)
        reserve = by_class.get(reserve_class, self.expandable_segments_reserve)
        return full_reserve(device_bytes) if reserve is None else reserve.resolve(device_bytes)

    def as_snapshot(self) -> dict[str, Any]:
        """The ``allocator_settings`` of a memory snapshot, with PyTorch's keys and types."""
        return {
            "PYTORCH_CUDA_ALLOC_CONF": self.last_text,
            "max_split_size": _signed(self.max_split_size),
            "garbage_collection_threshold": self.garbage_collection_threshold,
            "expandable_segments": self.expandable_segments,
            "pinned_num_register_threads": self.pinned_num_register_threads,
            "release_lock_on_cudamalloc": self.release_lock_on_cudamalloc,
            "pinned_use_cuda_host_register": self.pinned_use_cuda_host_register,
            "graph_capture_record_stream_reuse": self.graph_capture_record_stream_reuse,
            "max_round_threshold": _signed(self.pinned_max_round_threshold),
            "max_cached_size": _signed(self.pinned_max_cached_size),
            "roundup_power2_divisions": {
                str(1 << k): divisions for k, divisions in enumerate(self.roundup_power2_divisions)
            },
        }

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> AllocatorSettings:
        """Read the settings from environment variables.

        The first variable that is there counts, even if it is empty: of `GENERIC_VARIABLES` for
        the keys of all accelerators, of `CUDA_VARIABLES` for those of CUDA.

        Raises
        ------
        AllocatorSettingsError
            If an entry breaks a rule.
        """
        generic = _first_present(environ, GENERIC_VARIABLES)
        own = _first_present(environ, CUDA_VARIABLES)
        uncached = any(_switch(environ, name) for name in NO_CACHING_VARIABLES)
        settings = cls(backend=_requested_backend(own or ""), uncached=uncached)
        if generic is not None:
            settings = settings._after(generic, read_generic)
        if own is not None:
            settings = replace(settings._after(own, read_cuda), last_text=settings.last_text)
        return settings


def _signed(size: int) -> int:
    """A size as the signed word that PyTorch shows; what saturated was close to 2**64 there."""
    return {UNLIMITED: -1, LARGEST: -MIB}.get(size, size)


# --- the environment --------------------------------------------------------------------------
def _first_present(environ: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((environ[name] for name in names if name in environ), None)


def _switch(environ: Mapping[str, str], name: str) -> bool:
    """Whether `name` is ``1``; any other text but ``0`` is warned about and ignored."""
    text = environ.get(name, "0")
    if text not in ("0", "1"):
        warnings.warn(f"{name}={text!r} is ignored: it has to be 0 or 1")
    return text == "1"


def _requested_backend(text: str) -> str:
    """The backend that a process starts with."""
    tokens = tokens_of(text)
    asks = any(
        token == "backend" and tokens[at + 2 : at + 3] == [ASYNC_BACKEND]
        for at, token in enumerate(tokens)
    )
    return ASYNC_BACKEND if asks else "native"
