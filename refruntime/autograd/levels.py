"""Levels of function transforms, and the tensors that stand for others while a level is open.

State
-----
Each thread has a stack of open levels: one for each `vmap`, each forward derivative and each
reverse derivative that is running. A `Wrapper` is a tensor of one level that stands for tensors of
lower ones: `vmap` and forward derivatives have a kind each.

Invariants
----------
* Levels opened later have higher numbers. A wrapper holds only tensors of lower levels, so an
  operator with several wrappers among its operands is one of the highest level first.
* A wrapper shows shape, dtype and strides of what the program means; it has no memory of its own,
  and using it as if it had some is an error and never a wrong result.
* Reverse derivatives need no wrapper: their history is recorded on the tensors inside.
* A wrapper knows its level; nothing here depends on the thread that runs an operator.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from refruntime import _impl
from refruntime._dispatch import call
from refruntime._impl import TensorImpl, TensorMeta
from refruntime._ops.opdef import Inplace, OpDef, ops
from refruntime.autograd.modes import state
from refruntime.errors import AutogradError, ShapeError

Tensors = Callable[[Any], Any]

_numbers = itertools.count(1)


class Level:
    """One running transform."""

    __slots__ = ("alive", "number")

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.alive = True


class _Stack(threading.local):
    def __init__(self) -> None:
        self.levels: list[Level] = []


stack = _Stack()


@contextlib.contextmanager
def opened(level: Level) -> Iterator[Any]:
    """Keep a level open for a block; what is left of it afterwards is refused."""
    stack.levels.append(level)
    try:
        yield level
    finally:
        stack.levels.pop()
        level.alive = False


class _NoMemory:
    """Stands where a tensor has its storage; nothing can be read from it."""

    __slots__ = ("nbytes",)

    # What the memory is for is known of the tensors inside.
    category = None

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def __getattr__(self, name: str) -> Any:
        raise ShapeError(
            "storage",
            what=f"Cannot access data pointer or storage ({name}) of a tensor that stands for "
            "others inside a function transform",
            expected="an operator", got="direct access to memory",
            remedy="use operators only inside vmap, jvp and dual levels",
        )  # fmt: skip


class Wrapper:
    """A tensor that stands for tensors of lower levels; mixed into the class of tensors."""

    level: Level
    meta: TensorMeta
    autograd: Any

    # What a view is a view of, and the function that shows it; None for what is no view.
    origin: tuple[Any, Tensors] | None = None

    # What a kind of wrapper calls itself in errors.
    kind: ClassVar[str] = "transform"

    def call_op(self, op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> Any:
        """Run an op that has wrappers among its operands."""
        return highest(inputs).run_op(op, inputs, params, None)

    def call_into(
        self, op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any], out: Any
    ) -> Any:
        """Run an op whose result goes into tensors that exist."""
        return highest(inputs).run_op(op, inputs, params, out)

    def run_op(self, op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any], out: Any) -> Any:
        """Run an op at this wrapper's level."""
        raise NotImplementedError

    # -- what transforms ask of each other's wrappers ------------------------------------------

    def parts(self) -> tuple[Any, ...]:
        """Return the tensors inside."""
        raise NotImplementedError

    def mapped(self, function: Tensors) -> Any:
        """Return a wrapper of the same kind around ``function`` of each tensor inside."""
        raise NotImplementedError

    def entered(self, function: Tensors) -> Any:
        """Return the wrapper with ``function`` of what a reverse derivative is taken by."""
        return self.mapped(function)

    def differentiated(
        self, outputs: list[Any], inputs: list[Any], cotangents: list[Any], below: Any
    ) -> list[Any]:
        """Return gradients at this wrapper's level, by ``below`` of the tensors inside."""
        raise NotImplementedError

    def lowered(self, batch: Any) -> Any:
        """Return the wrapper with the dimension of a lower `vmap` level shown in front."""
        raise NotImplementedError

    def raised(self, batch: Any) -> Any:
        """Undo `lowered`."""
        raise NotImplementedError

    def split_at(self, level: Level) -> tuple[Any, Any]:
        """Return primal and tangent (or None) at a lower level of forward derivatives."""
        raise NotImplementedError

    def join_at(self, level: Level, primal: Any, tangent: Any) -> Any:
        """Undo `split_at` for parts of which one at least is a wrapper of this level."""
        raise NotImplementedError

    # -- the face of a tensor ------------------------------------------------------------------

    @property
    def base(self) -> TensorImpl:
        """What the wrapper shows: it is a view, whose memory nothing may take over."""
        return innermost(self)

    @property
    def requires_grad(self) -> bool:
        """Whether gradients flow to what is inside."""
        return any(getattr(part, "requires_grad", False) for part in self.parts())

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        """Refuse unless nothing would change: what is differentiated is an argument of `grad`."""
        if requires_grad and not self.requires_grad:
            raise AutogradError(
                "requires_grad_",
                what="You are attempting to call Tensor.requires_grad_() inside of a function "
                "being transformed",
                expected="an argument of torch.func.grad or jacrev", got=f"a tensor of {self.kind}",
                remedy="make the tensor an argument of the function that is differentiated",
            )  # fmt: skip
        return self

    @property
    def data(self) -> Any:
        """The same values without history."""
        return self.detach()  # type: ignore[attr-defined]

    def take_on(self, other: Any) -> Any:
        """Become another wrapper of the same level, and return the tensor."""
        self.__dict__.update(other.__dict__)
        self.meta = other.meta
        return self

    def address(self) -> int:
        """Refuse: there is no memory."""
        return self.storage.ptr  # type: ignore[attr-defined, no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.storage.pickled  # type: ignore[attr-defined]


@functools.cache
def class_of(kind: Any, shell: Any) -> type:
    """Return the class of wrappers of a kind: tensors to Python, wrappers to operators."""
    return type(kind.__name__.lstrip("_"), (kind, shell), {"__module__": kind.__module__})


def wrapper(kind: type, level: Level, meta: TensorMeta, inside: TensorImpl) -> Any:
    """Make a wrapper around `inside`; the caller sets what else there is."""
    made: Any = object.__new__(class_of(kind, _impl._shell))  # type: ignore[arg-type]
    made.storage = _NoMemory(inside.storage.nbytes)
    made.meta = meta
    made.byte_offset = inside.byte_offset
    made.counter = inside.counter
    made.autograd = None
    made.level = level
    return made


def highest(values: Any) -> Any:
    """Return the wrapper of the highest level among some values.

    Raises
    ------
    AutogradError
        If its level is closed: the wrapper has outlived its transform.
    """
    top: Any = None
    for value in values:
        if isinstance(value, Wrapper) and (top is None or value.level.number > top.level.number):
            top = value
    if not top.level.alive:
        raise AutogradError(
            top.kind,
            what=f"a tensor of {top.kind} is used after the transform has ended",
            expected="use inside the function that is transformed",
            got="a tensor that was kept outside",
            remedy="return it from the function instead",
        )
    return top


class Shown:
    """What a view op shows of a tensor."""

    __slots__ = ("number", "op", "params")

    def __init__(self, op: OpDef, params: dict[str, Any], number: int | None) -> None:
        self.op = op
        self.params = params
        self.number = number

    def __call__(self, value: Any) -> Any:
        """Return what the op shows of `value`."""
        shown = call(self.op, (value,), self.params)
        return shown if self.number is None else shown[self.number]


def kept(op: OpDef, inputs: tuple[Any, ...], out: Any) -> tuple[Any, ...]:
    """Return the operands of a call that writes into the first one, safe from being overwritten.

    A wrapper's op computes its result first and writes it then; what the op saves for backward must
    be the value before.
    """
    saved = isinstance(out, Inplace) and op.inputs[0] in op.saves and state.grad
    if not saved or not any(getattr(value, "requires_grad", False) for value in inputs):
        return inputs
    old = ops.clone(out.target)
    return tuple([old if value is out.target else value for value in inputs])


def is_wrapper_of(value: Any, level: Level) -> bool:
    """Whether a value is a wrapper of exactly this level."""
    return isinstance(value, Wrapper) and value.level is level


def innermost(value: Any) -> TensorImpl:
    """Return a tensor with memory that a wrapper stands for (the first one)."""
    while isinstance(value, Wrapper):
        value = value.parts()[0]
    return value  # type: ignore[no-any-return]
