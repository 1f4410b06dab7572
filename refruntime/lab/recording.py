"""A recording: what one process did with its device memory, whatever file it came from.

State
-----
Columns of NumPy arrays; nothing here changes once it is read.

Invariants
----------
* An event's `stack` and `pool` are places in the tables `stacks` and `pools` of the recording; 0 is
  the empty stack and the default pool.
* Segments are sorted by address; ``blocks.segment[i]`` is the segment of block `i`; blocks stand
  in the order of their addresses.
* What a file lacks is said in `notes`, in words; nothing is made up for it in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from refruntime.lab.events import EventList

Array = np.ndarray[Any, np.dtype[Any]]

ACTIONS: Final = (
    "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
    "segment_unmap", "oom", "snapshot", "annotate", "other",
)  # fmt: skip
(
    ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP,
    SEGMENT_UNMAP, OOM, SNAPSHOT, ANNOTATE, OTHER,
) = range(len(ACTIONS))  # fmt: skip
SEGMENT_ACTIONS: Final = (SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP)

STATES: Final = ("inactive", "active_allocated", "active_pending_free")
INACTIVE, ALLOCATED, PENDING = range(len(STATES))

Frame = tuple[str, int, str]  # file, line, function
Pool = tuple[int, int]
DEFAULT_POOL: Final[Pool] = (0, 0)


@dataclass(frozen=True, slots=True)
class Events:
    """The trace of one device, one entry an event.

    Attributes
    ----------
    action : ndarray of uint8
        A place in `ACTIONS`.
    addr, size : ndarray of int64
        Bytes; for ``oom`` the address is what the device had free.
    stream : ndarray of int64
        The stream's handle.
    time_us : ndarray of int64
        Microseconds, 0 where the file says nothing.
    pool, stack : ndarray of int32
        Places in the tables of the recording.
    category : ndarray of int16
        A place in `Recording.categories`, 0 where nobody said.
    """

    action: Array
    addr: Array
    size: Array
    stream: Array
    time_us: Array
    pool: Array
    stack: Array
    category: Array

    def __len__(self) -> int:
        return len(self.action)

    def __getitem__(self, keep: Any) -> Events:
        return Events(*(getattr(self, name)[keep] for name in self.__slots__))

    @classmethod
    def empty(cls, count: int = 0) -> Events:
        """Return `count` events of zeros."""
        return cls(*(np.zeros(count, dtype) for dtype in _DTYPES))

    @classmethod
    def of_rows(cls, rows: list[tuple[int, ...]]) -> Events:
        """Return events from tuples of all fields."""
        matrix = np.array(rows, np.int64).reshape(-1, len(_DTYPES))
        return cls(*(matrix[:, i].astype(dtype) for i, dtype in enumerate(_DTYPES)))

    def count(self, action: int) -> int:
        """Return how many events of an action there are."""
        return int(np.count_nonzero(self.action == action))


_DTYPES: Final = (
    np.uint8, np.int64, np.int64, np.int64, np.int64, np.int32, np.int32, np.int16,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a device at the end, one entry a segment, by address."""

    address: Array
    size: Array
    stream: Array
    pool: Array
    is_small: Array
    is_expandable: Array

    def __len__(self) -> int:
        return len(self.address)

    @classmethod
    def of_rows(cls, rows: list[tuple[int, ...]]) -> Segments:
        """Return segments from tuples of all fields, which must be sorted by address."""
        matrix = np.array(rows, np.int64).reshape(-1, 6)
        return cls(*(matrix[:, i].copy() for i in range(4)), *(matrix[:, i] != 0 for i in (4, 5)))


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of all segments, one entry a block; `state` is a place in `STATES`."""

    segment: Array
    address: Array
    size: Array
    requested: Array
    state: Array
    stack: Array
    category: Array

    def __len__(self) -> int:
        return len(self.address)

    @classmethod
    def of_rows(cls, rows: list[tuple[int, ...]]) -> Blocks:
        """Return blocks from tuples of all fields."""
        matrix = np.array(rows, np.int64).reshape(-1, 7)
        return cls(*(matrix[:, i].copy() for i in range(7)))


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a recording: its trace, and what it held at the end."""

    index: int
    events: Events
    segments: Segments
    blocks: Blocks

    @property
    def reserved_bytes(self) -> int:
        """The bytes of the segments at the end."""
        return int(self.segments.size.sum())


@dataclass(frozen=True, slots=True)
class Recording:
    """What a file says.

    Attributes
    ----------
    source, format : str
        The path, and what kind of file it is.
    devices : tuple of Device
        Those that have a trace or segments.
    frames : tuple of Frame
        Every frame, once.
    stacks : tuple of ndarray
        Places in `frames`, innermost first; the first stack is empty.
    pools : tuple of pair of int
        The pools' names; the first is the default pool.
    categories : tuple of str
        The first is "unknown".
    settings : dict
        The allocator's, as the file has them; empty where it has none.
    annotations : tuple of dict
        Marks that the program set.
    notes : tuple of str
        What is missing or odd.
    capacity : int
        Bytes of the device, 0 where nobody said.
    script : EventList, optional
        Where the file is an event list, the list itself.
    """

    source: str
    format: str
    devices: tuple[Device, ...]
    frames: tuple[Frame, ...] = ()
    stacks: tuple[Array, ...] = (np.zeros(0, np.int64),)
    pools: tuple[Pool, ...] = (DEFAULT_POOL,)
    categories: tuple[str, ...] = ("unknown",)
    settings: dict[str, Any] = field(default_factory=dict)
    annotations: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    capacity: int = 0
    script: EventList | None = None

    def stack_frames(self, stack: int) -> Iterator[Frame]:
        """Yield the frames of a stack, innermost first."""
        for frame in self.stacks[stack]:
            yield self.frames[int(frame)]

    @property
    def settings_text(self) -> str:
        """The allocator's settings in the form that PyTorch's environment variable takes."""
        from refruntime.lab.settings import text_of

        return text_of(self.settings)


def no_segments() -> tuple[Segments, Blocks]:
    """Return the segments and blocks of a file that says nothing of them."""
    return Segments.of_rows([]), Blocks.of_rows([])
