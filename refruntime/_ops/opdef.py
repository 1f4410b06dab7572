"""The op record, the registry, and the namespace of front functions.

State
-----
`REGISTRY` maps a name to its `OpDef`. `ops` maps a name to the front function with torch's
signature; derivative rules call `ops.mul(...)` through it, so families need not import each other.
`METHODS` maps a name to the front function that `Tensor` takes as a method.

Invariants
----------
* One op is one record: eager execution, fake execution, autograd, the op-matrix test and the docs
  all read it. A field that does not apply is empty; `tests/_ops/test_registry.py` counts those.
* `infer` and `view` are pure: they read metas (and Python numbers), never data.
* A kernel writes into outputs that were allocated from `infer`'s answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

from refruntime._impl import TensorImpl, TensorMeta
from refruntime._ops.keywords import with_numpy_names
from refruntime.errors import ArgumentTypeError
from refruntime.kernels.scalar import Body

if TYPE_CHECKING:
    from refruntime._ops.samples import ErrorSample, Sample

NO_PARAMS: dict[str, Any] = {}


@dataclass(slots=True, eq=False)
class OpDef:
    """Everything that the runtime knows of one operator.

    Parameters
    ----------
    name : str
        torch's name.
    inputs : tuple of str
        The tensor operands in order; a last name that starts with ``*`` takes any number.
    infer : callable
        ``infer(*operand metas, numbers or None, **params)`` gives the meta of the output (a tuple
        of them for several): the dtype rule and the shape rule.
    cpu, cuda : callable, optional
        ``kernel(out, *operands, **params)``; `out` may be the first operand itself.
    view : callable, optional
        ``view(meta, **params) -> (shape, strides, element offset)``, in the place of kernels.
    vjp : callable, optional
        ``vjp(g, n)`` gives the gradient of each operand; `n` has what `saves` names, the params,
        ``n.metas`` and ``n.needs``.
    saves : tuple of str
        The values that `vjp` reads: operand names, ``out``, or ``out0``, ``out1``, ...
    nondiff_outputs : tuple of int
        Outputs that carry no gradient (indices).
    inplace : bool
        Whether ``name_`` exists.
    autocast : str, optional
        ``lower``, ``float32``, ``promote`` or None.
    random : bool
        Whether the op draws from a generator.
    backward_name : str, optional
        The class name of its node; default ``NameBackward0``.
    decomposition, cost : callable, optional
        For the compiler and the cost model.
    jvp : str or callable, optional
        Forward mode: the name of a rule of `autograd.derivatives` (``linear``, ``bilinear``,
        ``pointwise``, ``zero``), or ``jvp(op, primals, tangents, outputs, params)``; left out, the
        vjp is transposed.
    batch : str or callable, optional
        vmap: the name of a rule of `autograd.batching`, or ``batch(case)``; left out, the
        decomposition is batched, or the op runs once a sample.
    samples, error_samples : callable, optional
        The cases that the op-matrix test runs.
    reference : callable, optional
        The same function over NumPy arrays.
    """

    name: str
    inputs: tuple[str, ...]
    infer: Callable[..., Any] | None = None
    cpu: Callable[..., None] | None = None
    cuda: Callable[..., None] | None = None
    view: Callable[..., Any] | None = None
    vjp: Callable[..., Any] | None = None
    saves: tuple[str, ...] = ()
    nondiff_outputs: tuple[int, ...] = ()
    inplace: bool = False
    autocast: str | None = None
    random: bool = False
    backward_name: str | None = None
    decomposition: Callable[..., Any] | None = None
    jvp: str | Callable[..., Any] | None = None
    batch: str | Callable[..., Any] | None = None
    cost: Callable[..., Any] | None = None
    samples: Callable[[], Iterable[Sample]] | None = None
    error_samples: Callable[[], Iterable[ErrorSample]] | None = None
    reference: Callable[..., Any] | None = None
    # What runs the op without autograd: set by `register`, replaced for pointwise ops by the route
    # that caches a plan for each combination of metas.
    run: Any = field(default=None, repr=False)
    node_class: Any = field(default=None, repr=False)
    # Whether `vjp` gets the conjugates of complex values that were saved.
    conjugates: bool = field(default=False, repr=False)
    # The scalar function of a pointwise op; its parsed form is `body`.
    scalar: Callable[..., Any] | None = field(default=None, repr=False)
    _body: Any = field(default=None, repr=False)

    @property
    def body(self) -> Any:
        """The parsed scalar function of a pointwise op (parsed at the first use), or None."""
        if self._body is None and self.scalar is not None:
            self._body = Body.parse(self.scalar)
        return self._body

    def kernel(self, device_type: str) -> Callable[..., None] | None:
        """Return the kernel for a device type, or None."""
        return self.cpu if device_type == "cpu" else self.cuda

    @property
    def node_name(self) -> str:
        """The name of the graph node, as torch spells it."""
        if self.backward_name is not None:
            return self.backward_name
        return "".join(part.capitalize() for part in self.name.split("_")) + "Backward0"


REGISTRY: dict[str, OpDef] = {}
METHODS: dict[str, Callable[..., Any]] = {}
ops: Any = SimpleNamespace()

_default_run: Callable[..., Any] | None = None


def set_default_run(run: Callable[..., Any]) -> None:
    """Name the function that runs an op from its record; the dispatcher calls this once."""
    global _default_run
    _default_run = run


def register(op: OpDef) -> OpDef:
    """Enter an op into the registry; a name is registered once."""
    if op.name in REGISTRY:
        raise ValueError(f"op {op.name!r} is registered twice")
    if op.run is None:
        assert _default_run is not None
        op.run = _default_run
    REGISTRY[op.name] = op
    return op


F = TypeVar("F", bound=Callable[..., Any])


class Inplace:
    """Marks the `out` of a call as the first operand itself, whose history the result replaces."""

    __slots__ = ("target",)

    def __init__(self, target: TensorImpl) -> None:
        self.target = target


def front(
    op: OpDef | None = None,
    *,
    method: bool = True,
    inplace: bool = False,
    name: str | None = None,
    aliases: tuple[str, ...] = (),
) -> Callable[[F], F]:
    """Publish a function as ``ops.name``, and as what else the flags say.

    A function that can write elsewhere takes a keyword ``out=None`` and hands it to the `call` that
    makes the result.

    Parameters
    ----------
    op : OpDef, optional
        The record behind the function; None for a function composed of other ops.
    method : bool
        Also make it a Tensor method.
    inplace : bool
        Also make ``name_``, which writes the result into the first operand. Needs ``out``.
    name : str, optional
        The public name when it differs from the function's.
    aliases : tuple of str
        Further public names.
    """

    def publish(func: F) -> F:
        published = with_numpy_names(func)
        for public in (name or func.__name__.rstrip("_"), *aliases):
            _publish(public, published, method)
            if inplace:
                _publish(public + "_", inplace_form(public, published), method)
        published.op = func.op = op  # type: ignore[attr-defined]
        return func

    return publish


def _publish(public: str, func: Callable[..., Any], method: bool) -> None:
    setattr(ops, public, func)
    if method:
        METHODS[public] = func


def inplace_form(public: str, func: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``public_``: `func` with its result written into the first operand."""

    def inplace(self: TensorImpl, *args: Any, **kwargs: Any) -> Any:
        require_tensor(public + "_", self)
        return func(self, *args, out=Inplace(self), **kwargs)

    inplace.__name__ = inplace.__qualname__ = public + "_"
    inplace.__doc__ = f"Write ``{public}(self, ...)`` into ``self`` and return it."
    return inplace


def require_tensor(op: str, value: Any, name: str = "input") -> None:
    """Raise TypeError unless `value` is a tensor."""
    if not isinstance(value, TensorImpl):
        raise ArgumentTypeError(
            op,
            what=f"argument '{name}' must be Tensor",
            expected="Tensor",
            got=type(value).__name__,
            remedy="wrap the value with tensor(...)",
        )


def meta_or_value(value: Any) -> TensorMeta | Any:
    """Return what `infer` sees of an operand: the meta of a tensor, anything else as it is."""
    return value.meta if isinstance(value, TensorImpl) else value
