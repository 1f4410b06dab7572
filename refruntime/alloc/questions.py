"""What the core asks of the outside: the questions, their arguments and their answers.

All arguments and answers are integers; sizes are in bytes.
"""

from __future__ import annotations

from typing import Final

RESERVE: Final = 1  # size, stream, number of a private pool's upstream: address, or 0
RELEASE: Final = 2  # address, size, number of a private pool's upstream
RESERVE_ADDRESSES: Final = 3  # size: address, or 0
RELEASE_ADDRESSES: Final = 4  # address, size
MAP: Final = 5  # address, size, page: 1, or 0 if there is no memory (then nothing is mapped)
UNMAP: Final = 6  # address, size, page, stream: waits for the stream first
RECORD_EVENT: Final = 7  # stream: name of the event
QUERY_EVENT: Final = 8  # event: whether it has passed
WAIT_EVENT: Final = 9  # event
RELEASE_EVENT: Final = 10  # event: it may be recorded again
SYNCHRONIZE: Final = 11  # stream: waits for it
FREE_CALLBACKS: Final = 12  # whether a callback has freed memory
FREE_MEMORY: Final = 13  # bytes that the upstream has left, as the driver says

# Only while graphs are captured; a block is named by its row.
MARK_ENDS: Final = 14  # block, stream: how many nodes end the stream's work, now marked; -1: none
IS_AFTER_MARKS: Final = 15  # block, stream: whether all that was marked comes before its next work
FORGET_MARKS: Final = 16  # block
