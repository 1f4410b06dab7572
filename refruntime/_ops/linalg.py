"""Products: matmul and its family, inner and outer products, linear.

Invariants
----------
* `matmul` of stacks is one op whose leading dimensions broadcast; its gradient is summed down to
  the operands by the engine, and a single matrix on the right gets its gradient as one product.
* Operands have one dtype; mixing is an error, as in torch.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NoReturn

from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorMeta, meta_of
from refruntime._layout import broadcast_shapes
from refruntime._ops import samples_reduce as samples
from refruntime._ops.opdef import NO_PARAMS, OpDef, front, ops, register, require_tensor
from refruntime._ops.reductions import torch_name
from refruntime.errors import DTypeError, KernelMissingError, ShapeError
from refruntime.kernels import matmul as kernels
from refruntime.kernels import matmul_cuda as gpu


def _clash(op: str, what: str, a: Any, b: Any, remedy: str) -> NoReturn:
    got = f"{tuple(a.shape)} and {tuple(b.shape)}"
    raise ShapeError(op, what=what, expected="inner sizes that agree", got=got, remedy=remedy)


def common_dtype(op: str, *metas: TensorMeta | None) -> DType:
    """Return the one dtype of the operands.

    Raises
    ------
    DTypeError
        If they differ.
    KernelMissingError
        If it is bool.
    """
    present = [meta for meta in metas if meta is not None]
    dtype = present[0].dtype
    for meta in present[1:]:
        if meta.dtype is not dtype:
            first, second = torch_name(dtype), torch_name(meta.dtype)
            raise DTypeError(
                op,
                what=f"expected m1 and m2 to have the same dtype, but got: {first.lower()} != "
                f"{second.lower()}",
                expected=str(dtype),
                got=str(meta.dtype),
                remedy="convert one of the operands with .to(dtype)",
            )
    if dtype.kind == "b":
        raise KernelMissingError(
            op, what=f"\"{op}\" not implemented for 'Bool'", expected="numbers", got=str(dtype),
            remedy="convert the operands, for example with .float()",
        )  # fmt: skip
    return dtype


def _require_ndim(op: str, name: str, meta: TensorMeta, ndim: int) -> None:
    if meta.ndim != ndim:
        kind = {1: "a vector", 2: "a matrix", 3: "a 3D tensor"}[ndim]
        raise ShapeError(
            op, what=f"{name} must be {kind}", expected=f"{ndim} dimension(s)",
            got=f"shape {tuple(meta.shape)}", remedy="use matmul, or reshape",
        )  # fmt: skip


def _turned(x: Any) -> Any:
    """Return the conjugate transpose of matrices."""
    turned = ops.transpose(x, -2, -1)
    return ops.conj(turned) if x.meta.dtype.is_complex else turned


# ---------------------------------------------------------------------------------------------
# mm, bmm, and matmul of stacks


def _mm_infer(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    _require_ndim("mm", "self", a, 2)
    _require_ndim("mm", "mat2", b, 2)
    dtype = common_dtype("mm", a, b)
    if a.shape[1] != b.shape[0]:
        _mat_clash("mm", a, b)
    return meta_of((a.shape[0], b.shape[1]), dtype, a.device)


def _mat_clash(op: str, a: TensorMeta, b: TensorMeta) -> NoReturn:
    sizes = f"{a.shape[0]}x{a.shape[1]} and {b.shape[0]}x{b.shape[1]}"
    what = f"mat1 and mat2 shapes cannot be multiplied ({sizes})"
    _clash(op, what, a, b, "transpose or reshape an operand")


def _mm_vjp(g: Any, n: Any) -> tuple[Any, Any]:
    ga = ops.mm(g, _turned(n.mat2)) if n.needs[0] else None
    return ga, ops.mm(_turned(n.input), g) if n.needs[1] else None


MM = register(
    OpDef("mm", ("input", "mat2"), jvp="bilinear", batch="matmul",
          **samples.MM, infer=_mm_infer, cpu=kernels.matmul_cpu,
          cuda=gpu.matmul_cuda, vjp=_mm_vjp,
          saves=("input", "mat2"), autocast="lower")
)  # fmt: skip


@front(MM)
def mm(input: Any, mat2: Any, *, out: Any = None) -> Any:
    """Return the product of two matrices."""
    require_tensor("mm", input)
    require_tensor("mm", mat2, "mat2")
    return call(MM, (input, mat2), NO_PARAMS, out)


def _stack_infer(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    dtype = common_dtype("matmul", a, b)
    if a.shape[-1] != b.shape[-2]:
        what = (
            "Expected size for first two dimensions of batch2 tensor to be: "
            f"[*, {a.shape[-1]}] but got: [*, {b.shape[-2]}]"
        )
        _clash("matmul", what, a, b, "transpose or reshape an operand")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2], op="matmul")
    return meta_of((*batch, a.shape[-2], b.shape[-1]), dtype, a.device)


def _stack_vjp(g: Any, n: Any) -> tuple[Any, Any]:
    a, b = n.input, n.mat2
    ga = _stacked(g, _turned(b)) if n.needs[0] else None
    if not n.needs[1]:
        return ga, None
    if b.ndim == 2:
        rows = ops.reshape(a, (-1, a.shape[-1]))
        return ga, ops.mm(_turned(rows), ops.reshape(g, (-1, g.shape[-1])))
    return ga, _stacked(_turned(a), g)


STACK = register(
    OpDef("bmm", ("input", "mat2"), jvp="bilinear", batch="matmul",
          **samples.BMM, infer=_stack_infer, cpu=kernels.matmul_cpu,
          cuda=gpu.matmul_cuda, vjp=_stack_vjp,
          saves=("input", "mat2"), autocast="lower")
)  # fmt: skip


def _stacked(a: Any, b: Any, out: Any = None) -> Any:
    """Multiply stacks of matrices whose leading dimensions broadcast."""
    return call(STACK, (a, b), NO_PARAMS, out)


@front(STACK)
def bmm(input: Any, mat2: Any, *, out: Any = None) -> Any:
    """Return the products of two batches of matrices of one size."""
    require_tensor("bmm", input)
    require_tensor("bmm", mat2, "mat2")
    _require_ndim("bmm", "batch1", input.meta, 3)
    _require_ndim("bmm", "batch2", mat2.meta, 3)
    (batch, _, inner), other = input.meta.shape, mat2.meta.shape
    if other[0] != batch or other[1] != inner:
        what = (
            "Expected size for first two dimensions of batch2 tensor to be: "
            f"[{batch}, {inner}] but got: [{other[0]}, {other[1]}]."
        )
        _clash("bmm", what, input.meta, mat2.meta, "use matmul, which broadcasts")
    return _stacked(input, mat2, out)


@front(STACK)
def matmul(input: Any, other: Any, *, out: Any = None) -> Any:
    """Return the matrix product of two tensors.

    Vectors count as a row on the left and as a column on the right; with more than two dimensions
    the leading ones broadcast.
    """
    require_tensor("matmul", input)
    require_tensor("matmul", other, "other")
    left, right = input.meta.ndim, other.meta.ndim
    if left == 0 or right == 0:
        raise ShapeError(
            "matmul",
            what=f"both arguments to matmul need to be at least 1D, but they are {left}D and "
            f"{right}D",
            expected="one dimension or more",
            got=f"{tuple(input.meta.shape)} and {tuple(other.meta.shape)}",
            remedy="use mul for scalars",
        )
    if left == 2 and right == 2:
        return mm(input, other, out=out)
    if left == 1 and right == 1:
        return dot(input, other, out=out)
    if left == 2 and right == 1:
        return mv(input, other, out=out)
    if left == 1:
        return _into(ops.squeeze(matmul(ops.unsqueeze(input, 0), other), -2), out)
    if right == 1:
        return _into(ops.squeeze(matmul(input, ops.unsqueeze(other, 1)), -1), out)
    return _stacked(input, other, out)


def _into(result: Any, out: Any) -> Any:
    return result if out is None else ops.copy_(out, result)


# ---------------------------------------------------------------------------------------------
# Vectors


def _dot_rule(name: str) -> Any:
    def infer(a: TensorMeta, b: TensorMeta) -> TensorMeta:
        if a.ndim != 1 or b.ndim != 1:
            raise ShapeError(
                name, what=f"1D tensors expected, but got {a.ndim}D and {b.ndim}D tensors",
                expected="two vectors", got=f"{tuple(a.shape)} and {tuple(b.shape)}",
                remedy="use matmul, or flatten",
            )  # fmt: skip
        dtype = common_dtype(name, a, b)
        if a.shape != b.shape:
            what = (
                f"inconsistent tensor size, expected tensor [{a.shape[0]}] and src "
                f"[{b.shape[0]}] to have the same "
                "number of elements"
            )
            _clash(name, what, a, b, "check the vectors' lengths")
        return meta_of((), dtype, a.device)

    return infer


def _conj(x: Any) -> Any:
    return ops.conj(x) if x.meta.dtype.is_complex else x


DOT = register(
    OpDef("dot", ("input", "tensor"), jvp="bilinear", batch="dot",
          **samples.DOT, infer=_dot_rule("dot"), cpu=kernels.dot_cpu,
          cuda=gpu.dot_cuda,
          vjp=lambda g, n: (ops.mul(g, _conj(n.tensor)), ops.mul(g, _conj(n.input))),
          saves=("input", "tensor"), autocast="lower")
)  # fmt: skip
VDOT = register(
    OpDef("vdot", ("input", "tensor"), jvp="bilinear", batch="dot", **samples.VDOT,
          infer=_dot_rule("vdot"), cpu=kernels.vdot_cpu,
          cuda=gpu.vdot_cuda,
          vjp=lambda g, n: (ops.mul(_conj(g), n.tensor), ops.mul(g, n.input)),
          saves=("input", "tensor"))
)  # fmt: skip


@front(DOT)
def dot(input: Any, tensor: Any, *, out: Any = None) -> Any:
    """Return the inner product of two vectors."""
    require_tensor("dot", input)
    require_tensor("dot", tensor, "tensor")
    return call(DOT, (input, tensor), NO_PARAMS, out)


@front(DOT)
def inner(input: Any, other: Any, *, out: Any = None) -> Any:
    """Return the inner products over the last dimensions."""
    require_tensor("inner", input)
    if input.meta.ndim == 0 or other.meta.ndim == 0:
        return ops.mul(input, other, out=out)
    return _into(ops.tensordot(input, other, dims=([-1], [-1])), out)


@front(VDOT)
def vdot(input: Any, other: Any, *, out: Any = None) -> Any:
    """Return the inner product of two vectors, the first conjugated."""
    require_tensor("vdot", input)
    return call(VDOT, (input, other), NO_PARAMS, out)


def _mv_infer(a: TensorMeta, b: TensorMeta) -> TensorMeta:
    _require_ndim("mv", "self", a, 2)
    _require_ndim("mv", "vec", b, 1)
    dtype = common_dtype("mv", a, b)
    if a.shape[1] != b.shape[0]:
        what = f"size mismatch, got input ({a.shape[0]}x{a.shape[1]}), vec ({b.shape[0]})"
        _clash("mv", what, a, b, "check the vector's length")
    return meta_of((a.shape[0],), dtype, a.device)


def _mv_vjp(g: Any, n: Any) -> tuple[Any, Any]:
    ga = outer(g, _conj(n.vec)) if n.needs[0] else None
    return ga, ops.mv(_turned(n.input), g) if n.needs[1] else None


MV = register(
    OpDef("mv", ("input", "vec"), jvp="bilinear", batch="mv",
          **samples.MV, infer=_mv_infer, cpu=kernels.mv_cpu,
          cuda=gpu.mv_cuda, vjp=_mv_vjp,
          saves=("input", "vec"), autocast="lower")
)  # fmt: skip


@front(MV)
def mv(input: Any, vec: Any, *, out: Any = None) -> Any:
    """Return the product of a matrix and a vector."""
    require_tensor("mv", input)
    require_tensor("mv", vec, "vec")
    return call(MV, (input, vec), NO_PARAMS, out)


@front(aliases=("ger",))
def outer(input: Any, vec2: Any, *, out: Any = None) -> Any:
    """Return the products of each pair of elements of two vectors."""
    require_tensor("outer", input)
    _require_ndim("outer", "self", input.meta, 1)
    _require_ndim("outer", "vec2", vec2.meta, 1)
    return ops.mul(ops.unsqueeze(input, 1), vec2, out=out)


# ---------------------------------------------------------------------------------------------
# Products with a sum


def _addmm_infer(
    input: TensorMeta, a: TensorMeta, b: TensorMeta, *, beta: Any, alpha: Any
) -> TensorMeta:
    dtype = common_dtype("addmm", a, b, input)
    if a.ndim == b.ndim == 2 and a.shape[1] != b.shape[0]:
        _mat_clash("addmm", a, b)
    result = _mm_infer(a, b) if a.ndim == b.ndim == 2 else _stack_infer(a, b)
    if broadcast_shapes(input.shape, result.shape, op="addmm") != tuple(result.shape):
        raise ShapeError(
            "addmm", what=f"The expanded size of the tensor must match {list(result.shape)}",
            expected=f"an input that broadcasts to {tuple(result.shape)}",
            got=str(tuple(input.shape)), remedy="check the input's shape",
        )  # fmt: skip
    return meta_of(result.shape, dtype, a.device)


def _scaled(x: Any, factor: Any) -> Any:
    if not (x.meta.dtype.is_floating_point or x.meta.dtype.is_complex):
        # As in torch, a factor takes the operands' type.
        factor = int(factor)
    return x if factor == 1 else ops.mul(x, factor)


def _addmm_vjp(g: Any, n: Any) -> tuple[Any, Any, Any]:
    ga = _scaled(matmul(g, _turned(n.mat2)), n.alpha) if n.needs[1] else None
    gb = _scaled(matmul(_turned(n.mat1), g), n.alpha) if n.needs[2] else None
    return _scaled(g, n.beta) if n.needs[0] else None, ga, gb


def _addmm_jvp(op: OpDef, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
    _, a, b = primals
    added, ta, tb = tangents
    terms = [] if added is None else [_scaled(ops.expand(added, out.shape), params["beta"])]
    products = ([] if ta is None else [(ta, b)]) + ([] if tb is None else [(a, tb)])
    terms += [_scaled(matmul(x, y), params["alpha"]) for x, y in products]
    return reduce(ops.add, terms)


def _addmm_op(name: str, **fields: Any) -> OpDef:
    return register(
        OpDef(name, ("input", "mat1", "mat2"), jvp=_addmm_jvp, batch="addmm", **fields,
              infer=_addmm_infer, cpu=kernels.addmm_cpu,
              cuda=gpu.addmm_cuda,
              vjp=_addmm_vjp, saves=("mat1", "mat2"), autocast="lower", inplace=True)
    )  # fmt: skip


ADDMM = _addmm_op("addmm", **samples.ADDMM)
BADDBMM = _addmm_op("baddbmm", **samples.BADDBMM)


@front(ADDMM, inplace=True)
def addmm(
    input: Any, mat1: Any, mat2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None
) -> Any:
    """Return ``beta * input + alpha * (mat1 @ mat2)``."""
    require_tensor("addmm", input)
    _require_ndim("addmm", "mat1", mat1.meta, 2)
    _require_ndim("addmm", "mat2", mat2.meta, 2)
    return call(ADDMM, (input, mat1, mat2), {"beta": beta, "alpha": alpha}, out)


@front(BADDBMM, inplace=True)
def baddbmm(
    input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None
) -> Any:
    """Return ``beta * input + alpha * (batch1 @ batch2)`` for batches of matrices."""
    require_tensor("baddbmm", input)
    _require_ndim("baddbmm", "batch1", batch1.meta, 3)
    _require_ndim("baddbmm", "batch2", batch2.meta, 3)
    return call(BADDBMM, (input, batch1, batch2), {"beta": beta, "alpha": alpha}, out)


@front(inplace=True)
def addbmm(
    input: Any, batch1: Any, batch2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None
) -> Any:
    """Return ``beta * input`` plus `alpha` times the sum of the batch's products."""
    total = _scaled(ops.sum(bmm(batch1, batch2), 0), alpha)
    return ops.add(total, _scaled(input, beta), out=out) if beta != 0 else _into(total, out)


@front(inplace=True)
def addmv(input: Any, mat: Any, vec: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None) -> Any:
    """Return ``beta * input + alpha * (mat @ vec)``."""
    product = _scaled(mv(mat, vec), alpha)
    return ops.add(_scaled(input, beta), product, out=out) if beta != 0 else _into(product, out)


@front(inplace=True)
def addr(
    input: Any, vec1: Any, vec2: Any, *, beta: Any = 1, alpha: Any = 1, out: Any = None
) -> Any:
    """Return ``beta * input`` plus `alpha` times the outer product of two vectors."""
    if input.meta.dtype.kind == "b":
        both = ops.mul(outer(vec1, vec2), bool(alpha))
        return ops.logical_or(ops.mul(input, bool(beta)), both, out=out)
    product = _scaled(outer(vec1, vec2), alpha)
    return ops.add(_scaled(input, beta), product, out=out) if beta != 0 else _into(product, out)


# ---------------------------------------------------------------------------------------------
# linear and bilinear


def _linear_infer(input: TensorMeta, weight: TensorMeta, bias: TensorMeta | None) -> TensorMeta:
    dtype = common_dtype("linear", input, weight, bias)
    inner_size = weight.shape[-1]
    if input.ndim == 0 or input.shape[-1] != inner_size:
        rows = input.numel // input.shape[-1] if input.ndim and input.shape[-1] else 0
        width = input.shape[-1] if input.ndim else 0
        turned = "x".join(map(str, reversed(weight.shape)))
        what = f"mat1 and mat2 shapes cannot be multiplied ({rows}x{width} and {turned})"
        _clash("linear", what, input, weight, "check in_features of the layer")
    if bias is not None and tuple(bias.shape) not in (tuple(weight.shape[:-1]), (1,), ()):
        raise ShapeError(
            "linear", expected=f"a bias of shape {tuple(weight.shape[:-1])}",
            got=str(tuple(bias.shape)), remedy="make the bias as long as the weight has rows",
        )  # fmt: skip
    return meta_of((*input.shape[:-1], *weight.shape[:-1]), dtype, input.device)


def _linear_vjp(g: Any, n: Any) -> tuple[Any, Any, Any]:
    x, weight = n.input, n.weight
    gx = gw = gb = None
    if n.needs[0]:
        gx = matmul(g, _conj(weight)) if weight.ndim == 2 else outer_last(g, weight)
    if n.needs[1] or n.needs[2]:
        rows = ops.reshape(g, (-1, g.shape[-1])) if weight.ndim == 2 else ops.reshape(g, (-1, 1))
        if n.needs[1]:
            flat = ops.reshape(x, (-1, x.shape[-1]))
            gw = ops.reshape(ops.mm(ops.transpose(rows, 0, 1), _conj(flat)), weight.shape)
        if n.needs[2]:
            gb = ops.reshape(ops.sum(rows, 0), n.metas[2].shape)
    return gx, gw, gb


def outer_last(g: Any, weight: Any) -> Any:
    """Return the gradient of a linear map onto one number: ``g`` times the weight vector."""
    return ops.mul(ops.unsqueeze(g, -1), _conj(weight))


LINEAR = register(
    OpDef("linear", ("input", "weight", "bias"), jvp="bilinear", batch="linear", **samples.LINEAR,
          infer=_linear_infer, cpu=kernels.linear_cpu,
          cuda=gpu.linear_cuda,
          vjp=_linear_vjp, saves=("input", "weight"), autocast="lower",
          backward_name="AddmmBackward0")
)  # fmt: skip


@front(LINEAR, method=False)
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Return ``input @ weight.T + bias`` over the last dimension of `input`."""
    require_tensor("linear", input)
    require_tensor("linear", weight, "weight")
    return call(LINEAR, (input, weight, bias), NO_PARAMS)
