"""Files as streams of pieces: plain or gzipped, with progress and one kind of error.

State
-----
None; `Source` holds an open file.

Invariants
----------
* Whatever is wrong with a file ends in one `ArgumentValueError` that names it.
* Progress is told at most a few times a second, on what the caller gives; silence is the default.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final

from refruntime.errors import ArgumentValueError

PIECE: Final = 1 << 20

# Called with the share that is done, from 0 to 1.
Progress = Callable[[float], None]


def silent(share: float) -> None:
    """Tell nobody."""


def unreadable(path: str | Path, why: str) -> ArgumentValueError:
    """Return the error for a file that cannot be read as what it was taken for."""
    return ArgumentValueError(
        "read", what=f"{path}: {why}",
        remedy="formats read: PyTorch snapshots (pickle or JSON), RMM CSV logs, event lists "
        "(JSON lines), minimalloc CSV; each of them also gzipped",
    )  # fmt: skip


class Source:
    """An open recording.

    Parameters
    ----------
    path : str or Path
        The file; a gzipped one is told by its first bytes.
    progress : callable
        Called with the share of the file that has been read.
    """

    def __init__(self, path: str | Path, progress: Progress = silent) -> None:
        self.path = Path(path)
        self._progress = progress
        # Opening a pipe waits for its writer; and it cannot be read from the start again.
        if self.path.is_fifo() or self.path.is_socket():
            raise unreadable(path, "not a regular file")
        try:
            self._size = self.path.stat().st_size
            self._raw: BinaryIO = self.path.open("rb")
        except OSError as error:
            raise unreadable(path, error.strerror or str(error)) from None
        self.gzipped = self._raw.read(2) == b"\x1f\x8b"
        self._raw.seek(0)
        opened = gzip.GzipFile(fileobj=self._raw) if self.gzipped else self._raw
        self._stream = io.BufferedReader(opened, PIECE)

    def __enter__(self) -> Source:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        self._stream.close()
        self._raw.close()

    def peek(self) -> bytes:
        """Return the first bytes, without reading on."""
        with self._told():
            return self._stream.peek(4096)[:4096]

    def pieces(self) -> Iterator[bytes]:
        """Yield the content piece by piece."""
        while True:
            with self._told():
                piece = self._stream.read(PIECE)
            if not piece:
                return
            if self._size:
                self._progress(min(self._raw.tell() / self._size, 1.0))
            yield piece

    def lines(self) -> Iterator[str]:
        """Yield the content line by line, as text."""
        rest = b""
        for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                yield line.decode("utf-8", "replace").rstrip("\r")
        if rest:
            yield rest.decode("utf-8", "replace").rstrip("\r")

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, zlib.error) as error:
            raise unreadable(self.path, f"broken or cut off ({error})") from None
