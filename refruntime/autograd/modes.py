"""Grad mode and inference mode: what is recorded, for each thread.

Invariants
----------
* The mode is thread-local; a new thread starts with recording on.
* The context managers also work as decorators; a decorated generator has the mode only while its
  own code runs, never between its values.
* What operators make in inference mode is an inference tensor for good, as are its views: its
  writes are not counted, so outside of the mode it can be read, but neither saved for backward nor
  written to. Views of other tensors stay what those are.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from types import TracebackType
from typing import Any, TypeVar

from refruntime import _dispatch, _storage
from refruntime._impl import TensorImpl, plain_types
from refruntime._ops.opdef import OpDef
from refruntime._storage import UNTRACKED
from refruntime.errors import AutogradError

F = TypeVar("F", bound=Callable[..., Any])


class _State(threading.local):
    grad = True
    inference = False


state = _State()


def is_grad_enabled() -> bool:
    """Whether operations of this thread are recorded."""
    return state.grad


def is_inference_mode_enabled() -> bool:
    """Whether this thread is inside `inference_mode`."""
    return state.inference


class _Mode:
    """A context manager that sets the grad mode, and a decorator that does so around calls."""

    def _grad(self) -> bool:
        raise NotImplementedError

    def __enter__(self) -> None:
        self._previous = state.grad
        state.grad = self._grad()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        state.grad = self._previous

    def clone(self) -> _Mode:
        """Return a fresh context of the same mode, for one call of a decorated function."""
        return type(self)()

    def __call__(self, func: F) -> F:
        if inspect.isgeneratorfunction(func):
            generator: F = self._decorate_generator(func)
            return generator

        @functools.wraps(func)
        def decorated(*args: Any, **kwargs: Any) -> Any:
            with self.clone():
                return func(*args, **kwargs)

        return decorated  # type: ignore[return-value]

    def _decorate_generator(self, func: Any) -> Any:
        @functools.wraps(func)
        def decorated(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            generator = func(*args, **kwargs)
            step: Callable[[], Any] = functools.partial(next, generator)
            while True:
                try:
                    with self.clone():
                        value = step()
                except StopIteration as stop:
                    return stop.value
                try:
                    received = yield value
                    step = functools.partial(generator.send, received)
                except GeneratorExit:
                    with self.clone():
                        generator.close()
                    raise
                except BaseException as error:
                    step = functools.partial(generator.throw, error)

        return decorated


class no_grad(_Mode):  # noqa: N801 - torch's spelling
    """Record nothing in this context: results do not require grad."""

    def __new__(cls, func: Any = None) -> Any:
        """Allow ``@no_grad`` without parentheses, as torch does."""
        mode = super().__new__(cls)
        return mode if func is None else mode(func)

    def _grad(self) -> bool:
        return False


class enable_grad(_Mode):  # noqa: N801
    """Record operations in this context, also inside `no_grad`."""

    def __new__(cls, func: Any = None) -> Any:
        """Allow ``@enable_grad`` without parentheses."""
        mode = super().__new__(cls)
        return mode if func is None else mode(func)

    def _grad(self) -> bool:
        return True


class set_grad_enabled(_Mode):  # noqa: N801
    """Set the grad mode at once; as a context manager, until the end of the block."""

    def __init__(self, mode: bool) -> None:
        self._mode = bool(mode)
        self._previous = state.grad
        state.grad = self._mode

    def _grad(self) -> bool:
        return self._mode

    def __enter__(self) -> None:
        state.grad = self._mode

    def __call__(self, func: F) -> F:
        """Decorate `func`; the mode that the constructor set ends here."""
        state.grad = self._previous
        return super().__call__(func)

    def clone(self) -> _Mode:
        """Return a fresh context of the same mode."""
        return set_grad_enabled(self._mode)


class inference_mode(_Mode):  # noqa: N801
    """Record nothing and count no writes; ``inference_mode(False)`` leaves an outer one."""

    def __new__(cls, mode: Any = True) -> Any:
        """Allow ``@inference_mode`` without parentheses."""
        if callable(mode):
            return cls(True)(mode)
        return super().__new__(cls)

    def __init__(self, mode: Any = True) -> None:
        self._mode = bool(mode)

    def _grad(self) -> bool:
        return not self._mode

    def __enter__(self) -> None:
        super().__enter__()
        self._previous_inference = state.inference
        state.inference = self._mode
        if self._mode:
            _dispatch.enter_mode(_infer)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:  # fmt: skip
        super().__exit__(kind, value, traceback)
        state.inference = self._previous_inference
        if self._mode:
            _dispatch.leave_mode(_infer)

    def clone(self) -> _Mode:
        """Return a fresh context of the same mode."""
        return inference_mode(self._mode)


# ---------------------------------------------------------------------------------------------
# Inference tensors


def is_inference(tensor: TensorImpl) -> bool:
    """Whether a tensor was made in inference mode."""
    return tensor.counter is UNTRACKED


_NUMBERS = frozenset({float, int, bool, complex, type(None)})


def _infer(op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any], out: Any) -> Any:
    """Run an op; in inference mode, make its results inference tensors."""
    if out is not None or op.view is not None or not state.inference:
        return _dispatch.call_under(_infer, op, inputs, params, out)
    if len(_dispatch.modes) == 1 and _dispatch.autocast is None and all(map(_is_plain, inputs)):
        outputs = op.run(op, inputs, params)  # nothing is recorded here
    else:
        outputs = _dispatch.call_under(_infer, op, inputs, params)
    for value in outputs if isinstance(outputs, tuple) else (outputs,):
        if isinstance(value, TensorImpl):
            _note_made(value)
    return outputs


def _note_made(tensor: TensorImpl) -> None:
    """Make a fresh tensor an inference tensor, if this thread is in inference mode."""
    if state.inference and tensor.counter is tensor.storage:
        tensor.counter = UNTRACKED


def _is_plain(value: Any) -> bool:
    kind = type(value)
    return kind in plain_types or kind in _NUMBERS


def _require_inference() -> None:
    if not state.inference:
        raise AutogradError(
            "inference tensor",
            what="Inference tensors cannot be saved for backward, and do not track version "
            "counter. Please do not use Tensors created in inference mode in computation tracked "
            "by autograd",
            expected="a tensor made outside of inference mode", got="an inference tensor",
            remedy="make a clone to get a normal tensor, or use torch.no_grad() instead of "
            "torch.inference_mode()",
        )  # fmt: skip


def _require_writable(name: str) -> None:
    if not state.inference:
        raise AutogradError(
            name,
            what="Inplace update to inference tensor outside InferenceMode is not allowed",
            expected="a tensor made outside of inference mode", got="an inference tensor",
            remedy="make a clone to get a normal tensor before doing inplace update",
        )  # fmt: skip


_storage.require_inference = _require_inference
_dispatch.require_writable = _require_writable
_dispatch.note_made = _note_made
