"""What an allocator says when it has no memory: sizes in words, and the text of the error.

State
-----
None.

Invariants
----------
* The text gives, in this order: what was tried, capacity, free, allocated, reserved but not
  allocated, and what to do (the order that PyTorch's users search for).
"""

from __future__ import annotations

from dataclasses import dataclass

from refruntime.errors import OutOfMemoryError

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

    `tried` is the segment that was asked of the upstream, `free` what the upstream has left.
    """

    device: str
    tried: int
    capacity: int
    free: int
    allocated: int
    reserved: int

    def error(self) -> OutOfMemoryError:
        """Return the error that tells the user."""
        return OutOfMemoryError(
            "malloc",
            what=(
                f"{self.device} out of memory. Tried to allocate {format_size(self.tried)}. "
                f"{self.device} has a total capacity of {format_size(self.capacity)} of which "
                f"{format_size(self.free)} is free. {format_size(self.allocated)} is allocated by "
                f"tensors, and {format_size(self.reserved - self.allocated)} is reserved by "
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


def absurd_request(device: str, nbytes: int) -> OutOfMemoryError:
    """Return the error for a size that no machine has, which is mostly a sign of a wrong shape."""
    return OutOfMemoryError(
        "malloc",
        what=f"{device} out of memory. Tried to allocate {nbytes} bytes, more than 1 EiB",
        remedy="check the shape of the tensor",
    )
