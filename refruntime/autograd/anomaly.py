"""Anomaly mode: which line of the forward made the node that fails, and where a NaN comes from.

State
-----
Whether the mode is on, for all threads; and for each thread the node that runs (`running`), which
is the parent of the nodes that a backward records.

Invariants
----------
* While the mode is off nothing of this module is called.
* A node that was recorded in the mode keeps the stack of its forward as text in
  ``metadata["traceback_"]``, and the node in whose backward it was recorded in
  ``metadata["parent_"]``.
* An error of a node comes out as it is; the forward line is told in a warning and in its notes.
"""

from __future__ import annotations

import pathlib
import threading
import traceback
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from refruntime._impl import TensorImpl
from refruntime._ops.opdef import ops
from refruntime.autograd import engine, record
from refruntime.autograd.levels import innermost
from refruntime.autograd.modes import no_grad
from refruntime.autograd.node import is_differentiable
from refruntime.errors import AutogradError

__all__ = [
    "detect_anomaly", "is_anomaly_check_nan_enabled", "is_anomaly_enabled", "set_detect_anomaly",
]  # fmt: skip

_PACKAGE = str(pathlib.Path(__file__).parent.parent)

_enabled = False
_check_nan = True


class _Running(threading.local):
    node: Any = None


running = _Running()


def is_anomaly_enabled() -> bool:
    """Whether anomaly mode is on."""
    return _enabled


def is_anomaly_check_nan_enabled() -> bool:
    """Whether anomaly mode looks for NaN."""
    return _check_nan


def _set(enabled: bool, check_nan: bool) -> None:
    global _enabled, _check_nan
    if enabled and not _enabled:
        record.observers.append(_remember)
        engine.observers.append(_watch)
    elif _enabled and not enabled:
        record.observers.remove(_remember)
        engine.observers.remove(_watch)
    _enabled, _check_nan = enabled, check_nan


class set_detect_anomaly:  # noqa: N801  torch's name
    """Switch anomaly mode at once; as a context manager, until the end of the block.

    Parameters
    ----------
    mode : bool
        On or off.
    check_nan : bool
        Whether a gradient that is NaN is an error.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._previous = (_enabled, _check_nan)
        _set(bool(mode), check_nan)

    def __enter__(self) -> None:
        """Do nothing: the constructor has done it."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        _set(*self._previous)


class detect_anomaly:  # noqa: N801
    """A block in which errors of backward name their forward line, and NaN is an error.

    The forward must run in the block too.
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan
        warnings.warn(
            "Anomaly Detection has been enabled. This mode will increase the runtime and should "
            "only be enabled for debugging.",
            stacklevel=2,
        )

    def __enter__(self) -> None:
        self._previous = (_enabled, _check_nan)
        _set(True, self._check_nan)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        _set(*self._previous)


# ---------------------------------------------------------------------------------------------
# Forward


def _remember(node: Any) -> None:
    """Keep the stack of the program with a node that is being recorded."""
    node.metadata["traceback_"] = _stack()
    if running.node is not None:
        node.metadata["parent_"] = running.node


def _stack() -> list[str]:
    """Return the stack down to the program's own line."""
    frames = traceback.extract_stack()
    while frames and frames[-1].filename.startswith(_PACKAGE):
        frames.pop()
    return frames.format()


# ---------------------------------------------------------------------------------------------
# Backward


def _watch(run: Any, node: Any, grads: list[Any]) -> Sequence[Any]:
    """Run a node; on failure, and on NaN, tell the line that made it."""
    previous, running.node = running.node, node
    try:
        results: Sequence[Any] = run(node, grads)
        if _check_nan:
            _require_numbers(node, results)
        return results
    except Exception as error:
        _tell(node, error)
        raise
    finally:
        running.node = previous


def _require_numbers(node: Any, results: Sequence[Any]) -> None:
    for place, gradient in enumerate(results):
        if isinstance(gradient, TensorImpl) and _has_nan(innermost(gradient)):
            raise AutogradError(
                "anomaly mode",
                what=f"Function '{node.name()}' returned nan values in its {place}th output.",
                expected="numbers", got="NaN",
                remedy="look at the operands of the forward line below",
            )  # fmt: skip


def _has_nan(gradient: Any) -> bool:
    if not is_differentiable(gradient.meta):
        return False
    with no_grad():
        return bool(ops.any(ops.isnan(gradient)))


def _tell(node: Any, error: BaseException) -> None:
    """Warn with the forward stack of a node, and of the nodes in whose backward it was made."""
    text = _told(node, f"Error detected in {node.name()}. ", "caused the error")
    parent, seen = node.metadata.get("parent_"), {node}
    while parent is not None and parent not in seen:
        seen.add(parent)
        text += "\n\n" + _told(parent, "", f"induced the previous calculation (in {parent.name()})")
        parent = parent.metadata.get("parent_")
    warnings.warn(text, stacklevel=2)
    error.add_note(text)


def _told(node: Any, start: str, what: str) -> str:
    lines = node.metadata.get("traceback_")
    if lines is None:
        return (
            f"{start}No forward pass information available. Enable detect anomaly during forward "
            "pass for more information."
        )
    return f"{start}Traceback of forward call that {what}:\n{''.join(lines)}"
