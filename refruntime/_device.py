"""Where tensors live, and the queues and marks of work there.

State
-----
One `Device` object a (type, index), made on demand and kept; and, a thread, the device that
factories use when the caller names none.

Invariants
----------
* Devices are interned: equal devices are one object.
* ``cuda`` and ``cuda:0`` are different names, as in PyTorch; a tensor carries one with an index.
* Streams and events of a device without queues (the CPU) do nothing but keep time.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from refruntime.errors import ArgumentTypeError, DeviceError

# Types a program may name. Only those with an allocator can hold tensors.
DEVICE_TYPES = ("cpu", "cuda", "meta", "mps", "xpu", "hip", "xla", "hpu", "mtia")


class Device:
    """A device type and, where there can be several, an index.

    Parameters
    ----------
    type : str, int or Device
        ``"cpu"``, ``"cuda"``, ``"cuda:1"``; an int means that GPU; a device is itself.
    index : int, optional
        The index, if `type` does not carry it.

    Raises
    ------
    DeviceError
        If the text does not name a device.
    ArgumentTypeError
        If `type` is of another Python type.
    """

    __slots__ = ("_text", "index", "type")

    type: str
    index: int | None
    _text: str

    def __new__(cls, type: Any, index: int | None = None) -> Device:
        if isinstance(type, Device) and index is None:
            return type
        key = (type, index)
        found = _parsed.get(key) if isinstance(type, str) else None
        if found is None:
            found = _intern(*_parse(type, index))
            if isinstance(type, str):
                _parsed[key] = found
        return found

    def __repr__(self) -> str:
        if self.index is None:
            return f"device(type={self.type!r})"
        return f"device(type={self.type!r}, index={self.index})"

    def __str__(self) -> str:
        return self._text

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{self!r} is immutable")

    def __reduce__(self) -> tuple[Any, ...]:
        return Device, (self.type, self.index)

    def __copy__(self) -> Device:
        return self

    def __deepcopy__(self, memo: Any) -> Device:
        return self

    def __enter__(self) -> Device:
        _defaults.stack.append(self)
        return self

    def __exit__(self, *exc: object) -> None:
        _defaults.stack.pop()


_interned: dict[tuple[str, int | None], Device] = {}
_parsed: dict[tuple[str, int | None], Device] = {}


def _intern(type: str, index: int | None) -> Device:
    found = _interned.get((type, index))
    if found is None:
        made = object.__new__(Device)
        object.__setattr__(made, "type", type)
        object.__setattr__(made, "index", index)
        object.__setattr__(made, "_text", type if index is None else f"{type}:{index}")
        found = _interned.setdefault((type, index), made)
    return found


def _parse(type: Any, index: int | None) -> tuple[str, int | None]:
    if isinstance(type, int) and not isinstance(type, bool) and index is None:
        type, index = "cuda", type
    if not isinstance(type, str):
        raise ArgumentTypeError(
            "device", expected="a str, an int or a device", got=f"{_type_name(type)} {type!r}",
            remedy="write for example device('cuda:0')",
        )  # fmt: skip
    name, colon, digits = type.partition(":")
    if name not in DEVICE_TYPES:
        raise _invalid("Expected one of " + ", ".join(DEVICE_TYPES) + " device type", type)
    if colon:
        if index is not None:
            raise _invalid("type (string) must not include an index because index was passed", type)
        if not digits.isdecimal() or (digits[0] == "0" and len(digits) > 1):
            raise _invalid("Invalid device string", type)
        index = int(digits)
    if index is not None and index < 0:
        raise _invalid("Device index must not be negative", f"{type}:{index}")
    return name, index


def _type_name(value: Any) -> str:
    return str(value.__class__.__name__)


def _invalid(what: str, got: str) -> DeviceError:
    return DeviceError(
        "device", what=what, expected="a device such as 'cpu' or 'cuda:0'", got=repr(got),
        remedy="correct the device string",
    )  # fmt: skip


CPU = Device("cpu")

# The public name: `device("cuda:0")`.
device = Device


class _Defaults(threading.local):
    """The devices that ``with device:`` blocks have set, and below them the thread's default."""

    def __init__(self) -> None:
        self.stack: list[Device] = [CPU]


_defaults = _Defaults()


def get_default_device() -> Device:
    """Return the device on which factories create tensors when none is named."""
    return _defaults.stack[-1]


def set_default_device(device: Any) -> None:
    """Set the device on which this thread's factories create tensors; None means the CPU."""
    _defaults.stack[0] = CPU if device is None else Device(device)


# ---------------------------------------------------------------------------------------------
# Streams and events: value objects whose CPU twins run everything at once, in program order


class Stream:
    """A queue of work on a device. On the CPU, work has been done when the call returns.

    Parameters
    ----------
    device : device, optional
    priority : int
        Lower is more urgent.
    stream_id : int
        The handle; 0 is the device's default stream.
    """

    __slots__ = ("_previous", "device", "priority", "stream_id")

    def __init__(self, device: Any = None, priority: int = 0, stream_id: int = 0) -> None:
        self.device = CPU if device is None else Device(device)
        self.priority = priority
        self.stream_id = stream_id
        self._previous: list[Stream] = []

    def __repr__(self) -> str:
        return f"torch.Stream device_type={self.device.type}, stream_id={self.stream_id}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stream):
            return NotImplemented
        return self.device is other.device and self.stream_id == other.stream_id

    def __hash__(self) -> int:
        return hash((self.device, self.stream_id))

    def __enter__(self) -> Stream:
        self._previous.append(current_stream(self.device))
        _streams.current[self.device] = self
        return self

    def __exit__(self, *exc: object) -> None:
        _streams.current[self.device] = self._previous.pop()

    def query(self) -> bool:
        """Say whether all work in the stream is done."""
        return True

    def synchronize(self) -> None:
        """Wait until all work in the stream is done."""

    def wait_stream(self, stream: Stream) -> None:
        """Make later work here wait for the work now in `stream`."""

    def wait_event(self, event: Event) -> None:
        """Make later work here wait for `event`."""
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """Mark the present end of the stream."""
        marked = Event(self.device) if event is None else event
        marked.record(self)
        return marked


class _Streams(threading.local):
    """The stream that each device uses on this thread."""

    def __init__(self) -> None:
        self.current: dict[Device, Stream] = {}


_streams = _Streams()


def current_stream(device: Any = None) -> Stream:
    """Return the stream that this thread uses on `device`."""
    where = CPU if device is None else Device(device)
    found = _streams.current.get(where)
    return Stream(where) if found is None else found


class Event:
    """A mark in a stream, with a time stamp if `enable_timing`."""

    __slots__ = ("_stamp_ns", "blocking", "device", "enable_timing", "interprocess")

    def __init__(
        self, device: Any = None, enable_timing: bool = False, blocking: bool = False,
        interprocess: bool = False,
    ) -> None:  # fmt: skip
        self.device = CPU if device is None else Device(device)
        self.enable_timing = enable_timing
        self.blocking = blocking
        self.interprocess = interprocess
        self._stamp_ns: int | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Mark the present end of `stream`."""
        self._stamp_ns = time.perf_counter_ns()

    def wait(self, stream: Stream | None = None) -> None:
        """Make later work in `stream` wait for the mark."""

    def query(self) -> bool:
        """Say whether all work before the mark is done."""
        return True

    def synchronize(self) -> None:
        """Wait until all work before the mark is done."""

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds from this mark to `end_event`.

        Raises
        ------
        DeviceError
            If an event was made without ``enable_timing`` or has not been recorded.
        """
        stamps = [
            event._stamp_ns if event.enable_timing else None for event in (self, end_event)
        ]  # fmt: skip
        if stamps[0] is None or stamps[1] is None:
            raise DeviceError(
                "Event.elapsed_time",
                what="Both events must be recorded and created with enable_timing",
                expected="two recorded timing events",
                got=f"{self!r} and {end_event!r}",
                remedy="create them with Event(enable_timing=True) and call record() on both",
            )
        return (stamps[1] - stamps[0]) / 1e6

    def __repr__(self) -> str:
        state = "recorded" if self._stamp_ns is not None else "not recorded"
        timing = "timing" if self.enable_timing else "no timing"
        return f"Event({self.device}, {timing}, {state})"
