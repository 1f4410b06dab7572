"""What an allocator says when it has no memory: sizes in words, and the text of the error.

State
-----
None.

Invariants
----------
* The text gives, in this order: what was tried, capacity, free, the limit if one is set, allocated,
  kept by private pools if there are any, reserved but not allocated, and what to do (the order that
  PyTorch's users search for).
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from refruntime.alloc import categories
from refruntime.alloc.sizes import MAX_REQUEST
from refruntime.errors import ArgumentTypeError, ArgumentValueError, OutOfMemoryError

_UNITS = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def format_size(nbytes: int) -> str:
    """Return a size as PyTorch prints it: bytes up to 1024, then KiB, MiB or GiB."""
    for unit, label in _UNITS:
        if nbytes > unit:
            return f"{nbytes / unit:.2f} {label}"
    return f"{nbytes} bytes"


@dataclass(frozen=True, slots=True)
class Shortage:
    """The figures behind an out-of-memory error, all in bytes.

    Attributes
    ----------
    tried : int
        The segment that was asked of the upstream.
    capacity, free : int
        What the upstream has, and has left.
    allocated, reserved : int
        Bytes of blocks in use, and bytes held.
    limit : int
        Bytes that may be reserved, or -1.
    private : int
        Free bytes that are kept for private pools. PyTorch counts them as allocated, and so does
        the text.
    """

    device: str
    tried: int
    capacity: int
    free: int
    allocated: int
    reserved: int
    limit: int = -1
    private: int = 0

    def error(self) -> OutOfMemoryError:
        """Return the error that tells the user."""
        limit = f", {format_size(self.limit)} may be reserved" if self.limit >= 0 else ""
        taken = self.allocated + self.private
        private = (
            f", {format_size(self.private)} of it kept by private pools" if self.private else ""
        )
        return OutOfMemoryError(
            "malloc",
            what=(
                f"{self.device} out of memory. Tried to allocate {format_size(self.tried)}. "
                f"{self.device} has a total capacity of {format_size(self.capacity)} of which "
                f"{format_size(self.free)} is free{limit}. {format_size(taken)} is allocated by "
                f"tensors{private}, and {format_size(self.reserved - taken)} is reserved by "
                "refruntime but unallocated"
            ),
            remedy=_remedy(self),
        )


def _remedy(shortage: Shortage) -> str:
    idle = shortage.reserved - shortage.allocated
    if idle >= shortage.tried:
        return (
            "the unallocated bytes lie in pieces between live tensors: free those that are no "
            "longer needed, or allocate the large ones first"
        )
    return (
        "drop tensors that are no longer needed, run without gradients where none are wanted, or "
        "use a smaller batch"
    )


def rejection(device: str, nbytes: int) -> OutOfMemoryError:
    """Return the error for a request refused by `throw_on_cudamalloc_oom`."""
    return OutOfMemoryError(
        "malloc",
        what=(
            f"{device} out of memory. {format_size(nbytes)} were refused without asking the "
            "device: with them, more than per_process_memory_fraction allows would be reserved"
        ),
        remedy="raise that setting, or switch throw_on_cudamalloc_oom off",
    )


def check_request(device: str, nbytes: Any, stream: Any, category: Any) -> tuple[int, int, int]:
    """Return size, stream and category as plain integers; refuse what makes no sense.

    Raises
    ------
    ArgumentTypeError
        If one is no whole number.
    ArgumentValueError
        If the size or the stream is negative, or the category unknown.
    OutOfMemoryError
        If no machine has so many bytes.
    """
    nbytes = _whole("malloc", "bytes", nbytes)
    if nbytes < 0:
        raise ArgumentValueError("malloc", expected="a size of 0 bytes or more", got=nbytes)
    if nbytes > MAX_REQUEST:
        raise absurd_request(device, nbytes)
    category = _whole("malloc", "category", category)
    categories.name(category)
    return nbytes, check_stream("malloc", stream), category


def check_stream(op: str, stream: Any) -> int:
    """Return a stream as a plain integer; refuse what can be none."""
    handle = _whole(op, "stream", stream)
    if not 0 <= handle < 1 << 62:
        raise ArgumentValueError(op, expected="a stream, 0 or a handle", got=handle)
    return handle


def _whole(op: str, what: str, value: Any) -> int:
    try:
        return int(operator.index(value))
    except TypeError:
        expected = f"a whole number ({what})"
        raise ArgumentTypeError(op, expected=expected, got=repr(value)) from None


def absurd_request(device: str, nbytes: int) -> OutOfMemoryError:
    """Return the error for a size that no machine has, which is mostly a sign of a wrong shape."""
    return OutOfMemoryError(
        "malloc",
        what=f"{device} out of memory. Tried to allocate {nbytes} bytes, more than 1 EiB",
        remedy="check the shape of the tensor",
    )
