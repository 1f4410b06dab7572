"""Pictures of the graph: nodes, edges, and the bytes that each node keeps for backward.

State
-----
A `Picture` is a list of boxes and a list of edges; both of its texts are made of them.

Invariants
----------
* Bytes are counted once: memory that several nodes keep belongs to the one drawn first, and the
  total is what the graph keeps alive.
* Nothing recurses: a graph may be as deep as memory allows.
* The layout of Graphviz is used where its ``dot`` program is on the path; else a plain one: a row
  for each distance from the outputs, edges straight.
"""

from __future__ import annotations

import html
import pathlib
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from refruntime._impl import TensorImpl
from refruntime.autograd.node import AccumulateGrad, Node, gradient_edge
from refruntime.autograd.saved import PackedValue, SavedValue
from refruntime.errors import ArgumentTypeError, AutogradError

__all__ = ["Picture", "draw"]


@dataclass(slots=True)
class Box:
    """One node: its label, in lines, and what it keeps."""

    lines: tuple[str, ...]
    saved_bytes: int
    leaf: bool
    rank: int = 0


@dataclass(slots=True)
class Picture:
    """A graph to be looked at: `dot` and `svg` are its texts; notebooks show it as it is."""

    boxes: list[Box] = field(default_factory=list)
    edges: list[tuple[int, int]] = field(default_factory=list)

    @property
    def saved_bytes(self) -> int:
        """What all nodes keep for backward, in bytes."""
        return sum(box.saved_bytes for box in self.boxes)

    @property
    def dot(self) -> str:
        """The graph in the language of Graphviz."""
        lines = [
            "digraph backward {",
            "  rankdir=TB;",
            '  node [shape=box, fontname="sans-serif"];',
        ]
        for number, box in enumerate(self.boxes):
            label = "\\n".join(line.replace('"', '\\"') for line in box.lines)
            style = ', style=filled, fillcolor="#d7ecd9"' if box.leaf else ""
            lines.append(f'  n{number} [label="{label}"{style}];')
        lines += [f"  n{start} -> n{end};" for start, end in self.edges]
        return "\n".join([*lines, "}"]) + "\n"

    @property
    def svg(self) -> str:
        """The picture, laid out by Graphviz if it is there."""
        program = shutil.which("dot")
        if program is not None:
            done = subprocess.run(
                [program, "-Tsvg"], input=self.dot, capture_output=True, text=True, check=False
            )
            if done.returncode == 0:
                return done.stdout
        return _plain_svg(self)

    def _repr_svg_(self) -> str:
        return self.svg

    def __str__(self) -> str:
        return self.dot

    def save(self, path: str | pathlib.Path) -> None:
        """Write the picture to a file; its name ends in ``.svg`` or ``.dot``."""
        target = pathlib.Path(path)
        target.write_text(self.dot if target.suffix == ".dot" else self.svg, encoding="utf-8")


def draw(outputs: Any, params: dict[str, Any] | None = None) -> Picture:
    """Return a picture of the graph that backward from `outputs` would run through.

    Parameters
    ----------
    outputs : tensor or sequence of tensors
        At least one of them requires grad.
    params : dict, optional
        Names of leaves: ``dict(module.named_parameters())``.

    Raises
    ------
    AutogradError
        If no output requires grad.
    """
    tensors = [outputs] if isinstance(outputs, TensorImpl) else list(outputs)
    for value in tensors:
        if not isinstance(value, TensorImpl):
            raise ArgumentTypeError("draw", expected="tensors", got=type(value).__name__)
    roots = [edge[0] for edge in map(gradient_edge, tensors) if edge[0] is not None]
    if not roots:
        raise AutogradError(
            "draw", what="no output requires grad, so there is no graph to draw",
            expected="a tensor with a grad_fn", got="tensors without history",
            remedy="compute outside of no_grad, from inputs that require grad",
        )  # fmt: skip
    names = {id(value): name for name, value in (params or {}).items()}
    return _picture(list(dict.fromkeys(roots)), names)


def _picture(roots: list[Node], names: dict[int, str]) -> Picture:
    order = _ordered(roots)
    number = {node: place for place, node in enumerate(order)}
    ranks = [0] * len(order)
    picture = Picture()
    counted: set[int] = set()
    for place, node in enumerate(order):
        for successor, _ in node.next_functions:
            if successor is not None:
                other = number[successor]
                picture.edges.append((place, other))
                ranks[other] = max(ranks[other], ranks[place] + 1)
        picture.boxes.append(_box(node, names, counted))
    for box, rank in zip(picture.boxes, ranks, strict=True):
        box.rank = rank
    return picture


def _ordered(roots: list[Node]) -> list[Node]:
    """Return all nodes, each before those that it leads to."""
    seen, stack = set(roots), list(roots)
    while stack:
        for successor, _ in stack.pop().next_functions:
            if successor is not None and successor not in seen:
                seen.add(successor)
                stack.append(successor)
    # A node is numbered after its operands; leaves, which have one number, come last.
    return sorted(seen, key=lambda n: (type(n) is AccumulateGrad, -n.sequence_nr))


def _box(node: Node, names: dict[int, str], counted: set[int]) -> Box:
    kept = 0
    for tensor in saved_tensors(node):
        storage = tensor.storage
        if id(storage) not in counted:
            counted.add(id(storage))
            kept += storage.nbytes
    if type(node) is AccumulateGrad:
        leaf = node.variable
        lines = [names.get(id(leaf), "leaf"), _shape_of(leaf.meta)]
    else:
        lines = [node.name()]
        shapes = [_shape_of(meta) for meta in node.output_metas if meta is not None]
        lines += [", ".join(shapes)] if shapes else []
        lines += [f"saves {_size(kept)}"] if kept else []
    return Box(tuple(lines), kept, type(node) is AccumulateGrad)


def _shape_of(meta: Any) -> str:
    return f"{meta.dtype.name}{list(meta.shape)}"


def _size(nbytes: int) -> str:
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} B"


def saved_tensors(node: Any) -> Iterable[TensorImpl]:
    """Return the tensors with memory that a node keeps for its backward, leaves excepted."""
    waiting = [getattr(node, "saved_values", None), getattr(node, "_saved", None)]
    inner = getattr(node, "inner", None)
    waiting += [getattr(inner, "saved_values", None)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, (list, tuple)):
            waiting.extend(value)
        elif isinstance(value, PackedValue):
            waiting.append(value.packed)
        elif isinstance(value, SavedValue):
            waiting.append(value.tensor)
        elif isinstance(value, TensorImpl) and not _is_leaf(value):
            yield value


def _is_leaf(value: TensorImpl) -> bool:
    meta = value.autograd
    return meta is not None and meta.requires_grad and meta.grad_fn is None


# ---------------------------------------------------------------------------------------------
# The plain layout

_LINE, _PAD, _GAP, _CHAR = 16, 8, 28, 7.2


def _plain_svg(picture: Picture) -> str:
    """Lay the graph out in rows and return it as SVG."""
    rows = _rows(picture)
    boxes = picture.boxes
    width = [max(len(line) for line in box.lines) * _CHAR + 2 * _PAD for box in boxes]
    height = [len(box.lines) * _LINE + _PAD for box in boxes]
    total = max(sum(width[k] for k in row) + _GAP * (len(row) + 1) for row in rows)
    left, top = [0.0] * len(boxes), [0.0] * len(boxes)
    y = float(_GAP)
    for row in rows:
        x = (total - sum(width[k] for k in row) - _GAP * (len(row) - 1)) / 2
        for k in row:
            left[k], top[k] = x, y
            x += width[k] + _GAP
        y += max(height[k] for k in row) + _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total:.0f}" height="{y:.0f}" '
        'font-family="monospace" font-size="12">'
    ]
    for start, end in picture.edges:
        parts.append(
            f'<line x1="{left[start] + width[start] / 2:.1f}" '
            f'y1="{top[start] + height[start]:.1f}" x2="{left[end] + width[end] / 2:.1f}" '
            f'y2="{top[end]:.1f}" stroke="#888"/>'
        )
    for k, box in enumerate(boxes):
        parts.append(_box_svg(box, left[k], top[k], width[k], height[k]))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _box_svg(box: Box, x: float, y: float, width: float, height: float) -> str:
    fill = "#d7ecd9" if box.leaf else "#ffffff"
    lines = "".join(
        f'<text x="{x + width / 2:.1f}" y="{y + _LINE * (k + 1):.1f}" text-anchor="middle">'
        f"{html.escape(line)}</text>"
        for k, line in enumerate(box.lines)
    )
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" '
        f'stroke="#333"/>{lines}'
    )


def _rows(picture: Picture) -> list[list[int]]:
    """Return the boxes of each rank, each near the boxes that lead to it."""
    rows: list[list[int]] = [[] for _ in range(max(box.rank for box in picture.boxes) + 1)]
    for k, box in enumerate(picture.boxes):
        rows[box.rank].append(k)
    above: dict[int, list[int]] = {}
    for start, end in picture.edges:
        above.setdefault(end, []).append(start)
    place: dict[int, float] = {}
    for row in rows:
        row.sort(key=lambda k: _mean([place[j] for j in above.get(k, ())]))
        for position, k in enumerate(row):
            place[k] = (position + 0.5) / len(row)
    return rows


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
