"""Readers of recordings: one function, which finds out what a file is.

State
-----
None.

Invariants
----------
* No file is believed: nothing is resolved, called or run, and whatever is wrong with a file ends in
  one `ArgumentValueError` that names it.
* A file is read as a stream, gzipped or not, and never held whole.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from refruntime.errors import ArgumentValueError
from refruntime.lab.readers.source import Progress, Source, silent, unreadable
from refruntime.lab.recording import Recording

__all__ = ["Progress", "read"]


def read(path: str | Path, progress: Progress = silent) -> Recording:
    """Read a recording of any known format.

    Parameters
    ----------
    path : str or Path
        A PyTorch snapshot (pickle of protocol 2 to 5, or JSON), an RMM log, an event list, or a
        minimalloc list of buffers; each of them may be gzipped.
    progress : callable
        Called now and then with the share that has been read.

    Raises
    ------
    ArgumentValueError
        If the file cannot be read, is damaged, cut off, hostile, or of no known format.
    """
    with Source(path, progress) as source:
        try:
            return _read(source)
        except ArgumentValueError as error:
            if str(path) in str(error):
                raise
            raise unreadable(path, f"{error.what} ({error.got})") from None


def _read(source: Source) -> Recording:
    from refruntime.lab.readers import csv_logs, event_list

    head = source.peek()
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    first_line = text.split(b"\n", 1)[0]
    if head[:1] == b"\x80" or _looks_like_old_pickle(head):
        return _snapshot(source, "pickle")
    if (text[:1] == b"#" and b'"op"' in text) or (text[:1] == b"{" and b'"op"' in first_line[:200]):
        return event_list.read_event_list(source)
    if text[:1] in (b"{", b"["):
        return _snapshot(source, "json")
    names = {name.strip().lower() for name in first_line.split(b",")}
    if {b"action", b"pointer", b"size"} <= names:
        return csv_logs.read_rmm(source)
    if {b"lower", b"upper", b"size"} <= names:
        return csv_logs.read_buffers(source)
    raise unreadable(source.path, "empty" if not head else "of no known format")


def _looks_like_old_pickle(head: bytes) -> bool:
    """Whether it begins as pickles of protocols 0 and 1 do; the reader says that it takes none."""
    return head[:2] in (b"(d", b"(l", b"}q", b"]q", b"cb", b"co", b"cp", b"c_")


def _snapshot(source: Source, encoding: str) -> Recording:
    from refruntime.lab.readers import json_scan, pickle_scan, snapshot

    kernels: dict[str, Any] = {"pickle": pickle_scan.scan_pickle, "json": json_scan.scan_json}
    return snapshot.read_snapshot(source, kernels[encoding], f"PyTorch snapshot ({encoding})")
