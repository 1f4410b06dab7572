"""An allocator that keeps nothing: every request and every free goes to the upstream.

It is what ``PYTORCH_NO_CUDA_MEMORY_CACHING=1`` asks for, so that tools which watch the driver see
each tensor by itself.

State
-----
The spans given out, by address. The tables stay empty: there are no statistics, no trace and no
segments, as in PyTorch.

Invariants
----------
* A span has exactly the bytes that were asked for.
* `record_stream` does nothing: a driver that takes memory back waits for the work on it.
"""

from __future__ import annotations

from typing import Any

from refruntime.alloc import categories, codes
from refruntime.alloc.caching import CachingAllocator
from refruntime.alloc.oom import check_request
from refruntime.alloc.queue import FREE, TAG, stray
from refruntime.alloc.tables import FAILED_FREE, FAILED_SIZE
from refruntime.alloc.upstream import Upstream, UpstreamExhausted


class UncachedAllocator(CachingAllocator):
    """Has the face of a `CachingAllocator`, and no cache; its parameters are the same."""

    def __init__(self, upstream: Upstream, **parameters: Any) -> None:
        super().__init__(upstream, **parameters)
        self._out: dict[int, int] = {}

    def malloc(self, nbytes: int, stream: int = 0, category: int = categories.DEFAULT) -> int:
        """Return the address of `nbytes` fresh bytes (0 for 0 bytes).

        Raises
        ------
        OutOfMemoryError
            If the upstream does not have them.
        ArgumentValueError
            If the size is negative or the category unknown.
        """
        nbytes, stream, category = check_request(self.device, nbytes, stream, category)
        if nbytes == 0:
            return 0
        try:
            address = self.upstream.reserve(nbytes, stream)
        except UpstreamExhausted:
            header = self.tables.header
            header[FAILED_SIZE], header[FAILED_FREE] = nbytes, self.upstream.memory_info()[0]
            raise self._report(codes.OUT_OF_MEMORY, nbytes)() from None
        self._out[address] = nbytes
        return address

    def free(self, address: int) -> None:
        """Give a span back to the upstream; address 0 is ignored.

        Raises
        ------
        ArgumentValueError
            If no span has this address.
        """
        if address == 0:
            return
        # Taken out first: of two threads that free it, only one gets so far.
        nbytes = self._out.pop(address, None)
        if nbytes is None:
            raise stray((FREE, address))
        try:
            self.upstream.release(address, nbytes)
        except BaseException:
            self._out[address] = nbytes
            raise

    def tag(self, address: int, category: int) -> None:
        """Do nothing, if the span and the category are known."""
        categories.name(category)
        if address and address not in self._out:
            raise stray((TAG, address))

    def owns(self, address: int) -> bool:
        """Whether a span that is out has this address."""
        return address in self._out

    def record_stream(self, address: int, stream: int) -> None:
        """Do nothing: the driver waits when the span is given back."""

    def compile(self) -> None:
        """Do nothing: there is nothing to gain."""
