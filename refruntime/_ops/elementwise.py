"""Pointwise ops: from a scalar body to a registered op.

State
-----
Each pointwise op keeps a plan for every combination of operand metas that it has met: the meta of
the result and a bound launch (the compiled loop, its range, its stride table). A repeated call
looks the plan up by the identity of the metas.

Invariants
----------
* Operands whose memory has one and the same dense order run as one flat loop, whatever that order
  is, and the result takes it too (torch's preserved strides). Anything else runs strided.
* Python numbers are immediates of the kernel: they take part in dtype promotion as torch's scalar
  category, and never become tensors.
* The arithmetic runs in the promoted dtype; loads and stores convert, so no operand is copied.
* Over complex numbers the gradient of a holomorphic function takes the conjugate of its derivative.
  The rules have real coefficients, so it is enough to give them conjugates of what was saved.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

from refruntime import _dtypes
from refruntime._dispatch import call, common_device
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta, empty_impl, meta_of
from refruntime._layout import broadcast_shapes, broadcast_strides, elementwise_strides, is_dense
from refruntime._ops.opdef import NO_PARAMS, OpDef, front, meta_or_value, register, require_tensor
from refruntime.errors import KernelMissingError
from refruntime.kernels import complexmath
from refruntime.kernels.pointwise import bind_cpu, bind_cuda

RESULTS = ("same", "real", "arith", "float", "bool")

# Plans are dropped all at once when a program runs through very many shapes.
_MAX_PLANS = 4096


def pointwise(
    *,
    result: str = "same",
    vjp: Callable[..., Any] | None = None,
    saves: tuple[str, ...] = (),
    samples: Callable[[], Iterable[Any]] | None = None,
    error_samples: Callable[[], Iterable[Any]] | None = None,
    reference: Callable[..., Any] | None = None,
    inplace: bool = True,
    method: bool = True,
    aliases: tuple[str, ...] = (),
    refuse: str = "",
    name: str | None = None,
    publish: bool = True,
    **fields: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make an op of a scalar body; the decorated name becomes the op's front function.

    Positional parameters of the body are tensor operands (numbers are allowed for all but one);
    keyword-only parameters are scalars.

    Parameters
    ----------
    result : {"same", "real", "arith", "float", "bool"}
        The dtype rule: the promoted dtype; the same with complex types taken to their real ones;
        the same but bool is refused; the promoted dtype with integers taken to the default float;
        bool.
    vjp, saves, samples, error_samples, reference
        As in `OpDef`.
    inplace, method : bool
        Whether ``name_`` and the Tensor method exist.
    aliases : tuple of str
        Further public names.
    refuse : str
        Dtype kinds (letters of ``DType.kind``) that the op does not take.
    name : str, optional
        The op's name when it is not the function's.
    publish : bool
        False registers the op only, for a front function written by hand; the decorated name is
        then the record.
    """

    def make(func: Callable[..., Any]) -> Callable[..., Any]:
        op_name = name or func.__name__.rstrip("_")
        rule = _Rule(op_name, result, refuse, lambda: complexmath.exists(op.body))
        operands = tuple(
            parameter.name
            for parameter in inspect.signature(func).parameters.values()
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY
        )
        op = OpDef(
            op_name, operands, infer=rule.infer, vjp=vjp,
            jvp="pointwise" if vjp is not None else None, batch="pointwise",
            saves=saves, samples=samples,
            error_samples=error_samples, reference=reference, inplace=inplace, scalar=func,
            **fields,
        )  # fmt: skip
        plans = Plans(op, rule)
        op.run = plans.run
        op.cpu = plans.kernel
        op.cuda = plans.kernel
        register(op)
        if not publish:
            return op  # type: ignore[return-value]
        made = _front_function(op, func)
        return front(op, method=method, inplace=inplace, name=op_name, aliases=aliases)(made)

    return make


class _Rule:
    """The dtype and shape rule of a pointwise op."""

    def __init__(
        self, name: str, result: str, refuse: str, complex_too: Callable[[], bool]
    ) -> None:
        if result not in RESULTS:
            raise ValueError(f"result must be one of {RESULTS}, got {result!r}")
        self.name = name
        self.result = result
        self.refuse = refuse
        # Asked when a complex operand comes: it reads the body.
        self.complex_too = complex_too

    def compute_dtype(self, operands: tuple[Any, ...]) -> DType:
        """Return the dtype in which the body runs (half types: their float32)."""
        dtype = _dtypes.result_type(*operands)
        if self.result == "float" and not (dtype.is_floating_point or dtype.is_complex):
            dtype = _dtypes.get_default_dtype()
        if dtype.kind in self.refuse or (dtype.is_complex and not self.complex_too()):
            raise KernelMissingError(
                self.name,
                what=f"\"{self.name}\" not implemented for '{dtype.name.capitalize()}'",
                expected="another dtype",
                got=str(dtype),
                remedy="convert the operand, for example with .float()",
            )
        return dtype

    def infer(self, *operands: Any, **params: Any) -> TensorMeta:
        """Return the meta of the result."""
        metas = [value for value in operands if isinstance(value, TensorMeta)]
        if not metas:
            require_tensor(self.name, operands[0])
        dtype = self.compute_dtype(operands)
        if self.result == "bool":
            dtype = _dtypes.bool_
        elif self.result == "real":
            dtype = dtype.to_real()
        shape: tuple[int, ...] = metas[0].shape
        if any(meta.shape != shape for meta in metas):
            shape = broadcast_shapes(*[meta.shape for meta in metas], op=self.name)
        return meta_of(shape, dtype, _device(metas), _result_strides(metas, shape))


def _device(metas: list[TensorMeta]) -> Any:
    for meta in metas:
        if meta.device.type != "cpu":
            return meta.device
    return metas[0].device


def _result_strides(metas: list[TensorMeta], shape: Any) -> tuple[int, ...] | None:
    """Return the strides of the result; None for row-major ones, the common case."""
    if all(meta.contiguous and meta.shape == shape for meta in metas):
        return None
    return elementwise_strides(shape, *[_spread(meta, shape) for meta in metas])


class Plans:
    """The cached plans of one pointwise op."""

    __slots__ = ("_into", "_outputs", "op", "rule")

    def __init__(self, op: OpDef, rule: _Rule) -> None:
        self.op = op
        self.rule = rule
        self._outputs: dict[Any, tuple[TensorMeta, Any]] = {}
        self._into: dict[Any, Any] = {}
        # Plans hold dtypes that were promoted under the default dtype of their time.
        _dtypes.on_default_change.append(self.forget)

    def forget(self) -> None:
        """Drop all plans."""
        self._outputs.clear()
        self._into.clear()

    def run(self, op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any]) -> TensorImpl:
        """Allocate the result and compute it."""
        # Identity of metas and classes of numbers decide everything but the values themselves.
        if len(inputs) == 2:
            first, second = inputs
            key: Any = (
                first.meta if isinstance(first, TensorImpl) else type(first),
                second.meta if isinstance(second, TensorImpl) else type(second),
            )
        elif len(inputs) == 1:
            key = inputs[0].meta
        else:
            key = tuple([v.meta if isinstance(v, TensorImpl) else type(v) for v in inputs])
        if params:
            key = (key, *map(type, params.values()))
        plan = self._outputs.get(key)
        if plan is None:
            plan = self._plan(key, inputs, params)
        out = empty_impl(plan[0])
        plan[1](out, inputs, params)
        return out

    def run_pair(
        self, first: TensorImpl, second: TensorImpl, category: int | None = None
    ) -> TensorImpl:
        """Do what `run` does for two tensors without parameters, with fewer questions."""
        plan = self._outputs.get((first.meta, second.meta))
        if plan is None:
            return self.run(self.op, (first, second), NO_PARAMS)
        out = empty_impl(plan[0], category)
        plan[1](out, (first, second), NO_PARAMS)
        return out

    def _plan(
        self, key: Any, inputs: tuple[Any, ...], params: dict[str, Any]
    ) -> tuple[TensorMeta, Any]:
        common_device(self.op.name, inputs)
        meta = self.rule.infer(*map(meta_or_value, inputs), **params)
        if len(self._outputs) >= _MAX_PLANS:
            self._outputs.clear()
        plan = self._outputs[key] = (meta, self._bind(meta, inputs, params))
        return plan

    def kernel(self, out: TensorImpl, *inputs: Any, **params: Any) -> None:
        """Compute into memory that exists: the record's kernel."""
        kinds = [v.meta if isinstance(v, TensorImpl) else type(v) for v in inputs]
        key = (out.meta, *kinds, *map(type, params.values()))
        launch = self._into.get(key)
        if launch is None:
            if len(self._into) >= _MAX_PLANS:
                self._into.clear()
            launch = self._into[key] = self._bind(out.meta, inputs, params)
        launch(out, inputs, params)

    def _bind(
        self, out: TensorMeta, inputs: tuple[Any, ...], params: dict[str, Any]
    ) -> Callable[..., None]:
        operands = tuple(map(meta_or_value, inputs))
        compute = self.rule.compute_dtype(operands)
        if compute.is_complex:
            self._use_conjugates()
            return complexmath.bind_complex(self.op.name, self.op.body, compute)
        metas = [value for value in operands if isinstance(value, TensorMeta)]
        flat = is_dense(out.shape, out.strides) and all(
            meta.shape == out.shape and meta.strides == out.strides for meta in metas
        )
        strides = None
        if not flat:
            strides = [out.strides, *[_spread(meta, out.shape) for meta in metas]]
        bind = bind_cpu if out.device.type == "cpu" else bind_cuda
        return bind(self.op.name, self.op.body, compute, out, operands, strides, params)

    def _use_conjugates(self) -> None:
        """Let nodes of this op look for complex values from now on; real programs never pay."""
        if not self.op.conjugates and self.rule.result != "real":
            self.op.conjugates = True
            self.op.node_class = None


def _spread(meta: TensorMeta, shape: Any) -> tuple[int, ...]:
    if meta.shape == shape:
        return meta.strides
    return tuple(broadcast_strides(meta.shape, meta.strides, shape))


def _front_function(op: OpDef, func: Callable[..., Any]) -> Callable[..., Any]:
    """Make the public function of a pointwise op from the signature of its body."""
    signature = inspect.signature(func)
    scalars = {
        name: parameter.default
        for name, parameter in signature.parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    count = len(op.inputs)
    made: Callable[..., Any]
    if scalars:
        made = _with_scalars(op, count, scalars)
    elif count == 1:

        def made(input: Any, *, out: Any = None) -> Any:
            return call(op, (input,), NO_PARAMS, out)

    elif count == 2:

        def made(input: Any, other: Any, *, out: Any = None) -> Any:
            return call(op, (input, other), NO_PARAMS, out)

    else:

        def made(*operands: Any, out: Any = None) -> Any:
            return call(op, operands, NO_PARAMS, out)

    made.__name__ = made.__qualname__ = op.name
    made.__doc__ = func.__doc__ or f"Compute ``{op.name}`` elementwise."
    return made


def _with_scalars(op: OpDef, count: int, scalars: dict[str, Any]) -> Callable[..., Any]:
    """Make a public function whose scalar parameters may be given by place or by name."""
    names = tuple(scalars)

    def made(*args: Any, out: Any = None, **kwargs: Any) -> Any:
        operands, placed = args[:count], args[count:]
        params = dict(scalars)
        params.update(zip(names, placed, strict=False))
        for name, value in kwargs.items():
            if name not in scalars:
                raise TypeError(f"{op.name}() got an unexpected keyword argument {name!r}")
            params[name] = value
        if len(operands) < count or len(placed) > len(names):
            raise TypeError(
                f"{op.name}() takes {count} tensor(s) and {', '.join(names)}; got {len(args)} "
                "positional arguments"
            )
        return call(op, operands, params, out)

    return made
