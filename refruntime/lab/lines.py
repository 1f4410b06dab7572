"""The line of a program that an allocation is put down to.

State
-----
None.

Invariants
----------
* Frames of the interpreter's C++ side and of the framework itself are passed over, as long as a
  frame of the program follows.
"""

from __future__ import annotations

from typing import Final

from refruntime.lab.recording import Frame, Recording

UNKNOWN: Final = "unknown line (no frames were recorded)"
_OWN: Final = ("/torch/", "/refruntime/", "<frozen ", "/runpy.py", "/threading.py")


def line_of(recording: Recording, stack: int) -> str:
    """Return ``file:line function`` of a stack's first frame that belongs to the program."""
    frames = list(recording.stack_frames(stack))
    for frame in frames:
        if _is_program(frame):
            return _said(frame)
    python = [frame for frame in frames if frame[0].endswith(".py")]
    return _said((python or frames)[0]) if frames else UNKNOWN


def _is_program(frame: Frame) -> bool:
    file = frame[0]
    return file.endswith((".py", ".ipynb", ">")) and not any(part in file for part in _OWN)


def _said(frame: Frame) -> str:
    file, line, name = frame
    return f"{file}:{line} {name}"
