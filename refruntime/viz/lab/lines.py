"""Stacks as a page can carry them, and the line of a stack that a person looks for.

State
-----
None.

Invariants
----------
* Each line, each frame, and each text in a frame is stored once.
* The line of a stack is its innermost frame in Python code that is not a library's, or its
  innermost Python frame. Where no Python was on the stack, as in PyTorch's backward threads, it is
  the frame of the backward node, then that of the operator, then the innermost one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from refruntime.alloc.trace import Frame, Frames

# Folders whose code a user did not write: installed packages, and the frameworks themselves.
_LIBRARY: Final = re.compile(r"(^|[/\\])(site-packages|dist-packages|torch|refruntime)[/\\]")
_SLASH: Final = re.compile(r"[/\\]")
# Functions of PyTorch's C++ side that say what was computed; the allocator's own say nothing.
_NODE: Final = re.compile(r"(\w+Backward\w*)::apply\(")
_OPERATOR: Final = re.compile(r"\b(at)::_ops::(\w+)::")


@dataclass(frozen=True, slots=True, eq=False)
class StackTable:
    """Interned stacks: `frames` of stack s are ``frame[start[s]:start[s + 1]]``.

    A frame is the numbers of its file and function in `texts`, and its line number. `line` holds
    the line of each stack, an index into `labels`, and `own` its frame; -1 for an empty stack.
    """

    start: NDArray[Any]
    frame: NDArray[Any]
    own: NDArray[Any]
    line: NDArray[Any]
    frame_file: NDArray[Any]
    frame_number: NDArray[Any]
    frame_name: NDArray[Any]
    texts: list[str]
    labels: list[str]


def frame_of(stack: Frames) -> Frame | None:
    """Return the frame that stands for a stack; None for an empty one."""
    python = [frame for frame in stack if frame[0].endswith(".py")]
    own = [frame for frame in python if not _LIBRARY.search(frame[0])]
    nodes = [frame for frame in stack if _NODE.search(frame[2])]
    # An operator may call others: the outermost is the one that somebody asked for.
    operators = [frame for frame in reversed(stack) if _OPERATOR.search(frame[2])]
    return next(iter([*own, *python, *nodes, *operators, *stack]), None)


def label_of(frame: Frame) -> str:
    """Return a frame in a few words: the last folder, the file, the line and the function."""
    file, line, name = frame
    if not file.endswith(".py"):
        return _short(name)
    return f"{'/'.join(_SLASH.split(file)[-2:])}:{line} {name}"


def _short(name: str) -> str:
    """Return a C++ function without its arguments and outer namespaces."""
    telling = _NODE.search(name) or _OPERATOR.search(name)
    if telling:
        return "::".join(telling.groups())
    return "::".join(name.split("(")[0].split("::")[-2:]) or name


def intern(stacks: tuple[Frames, ...]) -> StackTable:
    """Return stacks as columns of numbers."""
    frames: dict[Frame, int] = {}
    labels: dict[str, int] = {}
    texts: dict[str, int] = {}
    listed: list[int] = []
    start, own, line = [0], [], []
    for stack in stacks:
        listed += [frames.setdefault(frame, len(frames)) for frame in stack]
        start.append(len(listed))
        chosen = frame_of(stack)
        own.append(-1 if chosen is None else frames[chosen])
        line.append(-1 if chosen is None else labels.setdefault(label_of(chosen), len(labels)))
    return StackTable(
        _int(start), _int(listed), _int(own), _int(line),
        _int([texts.setdefault(file, len(texts)) for file, _, _ in frames]),
        _int([number for _, number, _ in frames]),
        _int([texts.setdefault(name, len(texts)) for _, _, name in frames]),
        list(texts), list(labels),
    )  # fmt: skip


def _int(values: list[int]) -> NDArray[Any]:
    return np.array(values, np.int32)
