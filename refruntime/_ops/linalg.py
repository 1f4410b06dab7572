"""Matrix products: matmul and its forms, linear, addmm, einsum, tensordot.

Invariants
----------
* Three records do all the work: ``mm`` (two matrices), ``bmm`` (batches of matrices, broadcasting)
  and ``linear`` (with ``addmm`` beside it); everything else arranges operands for them by views.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorMeta, meta_of
from refruntime._layout import broadcast_shapes
from refruntime._ops.opdef import NO_PARAMS, OpDef, front, ops, register, require_tensor
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime.errors import DTypeError, KernelMissingError, ShapeError
from refruntime.kernels import matmul as kernels


def _same_dtype(name: str, *metas: TensorMeta | None) -> DType:
    known = [meta for meta in metas if meta is not None]
    dtype = known[0].dtype
    for meta in known[1:]:
        if meta.dtype is not dtype:
            raise DTypeError(
                name,
                what=f"expected m1 and m2 to have the same dtype, but got: {dtype.name} != "
                f"{meta.dtype.name}",
                expected=str(dtype),
                got=str(meta.dtype),
                remedy="convert one of them with .to(dtype)",
            )
    if not kernels.supports(dtype):
        raise KernelMissingError(
            name, what=f'"{name}" not implemented for \'{dtype.name.capitalize()}\'',
            expected="a numeric dtype", got=str(dtype), remedy="convert with .float()",
        )  # fmt: skip
    return dtype


def _check_inner(name: str, first: TensorMeta, second: TensorMeta) -> None:
    if first.shape[-1] != second.shape[-2]:
        shapes = f"({_times(first)} and {_times(second)})"
        raise ShapeError(
            name,
            what=f"mat1 and mat2 shapes cannot be multiplied {shapes}",
            expected=f"{first.shape[-1]} rows in the second operand",
            got=str(second.shape[-2]),
            remedy="transpose or reshape an operand",
        )


def _times(meta: TensorMeta) -> str:
    return "x".join(map(str, meta.shape))


def _check_rank(name: str, meta: TensorMeta, rank: int, which: str) -> None:
    if meta.ndim != rank:
        raise ShapeError(
            name,
            what=f"{which} must be a {'matrix' if rank == 2 else f'{rank}D tensor'}",
            expected=f"{rank} dimensions",
            got=f"{meta.ndim} (shape {tuple(meta.shape)})",
            remedy="use matmul, which takes any rank",
        )


def _mT(value: Any) -> Any:  # noqa: N802 - torch's name for the transpose of matrices
    return ops.transpose(value, -2, -1)


def _mm_infer(input: TensorMeta, mat2: TensorMeta) -> TensorMeta:
    _check_rank("mm", input, 2, "self")
    _check_rank("mm", mat2, 2, "mat2")
    _check_inner("mm", input, mat2)
    return meta_of((input.shape[0], mat2.shape[1]), _same_dtype("mm", input, mat2), input.device)


def _product_vjp(product: str) -> Any:
    def vjp(g: Any, n: Any) -> Any:
        multiply = getattr(ops, product)
        first = multiply(g, _mT(n.mat2)) if n.needs[0] else None
        second = multiply(_mT(n.input), g) if n.needs[1] else None
        return first, second

    return vjp


def _product_cost(input: TensorMeta, mat2: TensorMeta, **params: Any) -> dict[str, int]:
    batch = input.numel // max(input.shape[-1], 1)
    return {"flops": 2 * batch * input.shape[-1] * mat2.shape[-1]}


def _mm_samples() -> Any:
    for n, k, m in ((3, 4, 5), (1, 7, 1), (2, 0, 3)):
        yield Sample((T((n, k)), T((k, m))), grad=k > 0)
    yield Sample((T((3, 4), layout="transposed"), T((4, 2), layout="strided")), name="layouts")
    yield Sample((T((3, 4), _dtypes.int64), T((4, 2), _dtypes.int64)), grad=False, name="int")


def _mm_errors() -> Any:
    yield ErrorSample((T((2, 3)), T((4, 5))), RuntimeError, r"cannot be multiplied \(2x3 and 4x5\)")
    yield ErrorSample((T((2,)), T((4, 5))), RuntimeError, "must be a matrix")
    yield ErrorSample((T((2, 2)), T((2, 2), _dtypes.float64)), RuntimeError, "same dtype")


MM = register(
    OpDef(
        "mm", ("input", "mat2"), infer=_mm_infer, cpu=kernels.matmul_cpu, cuda=kernels.matmul_cuda,
        vjp=_product_vjp("mm"), saves=("input", "mat2"), autocast="lower", cost=_product_cost,
        samples=_mm_samples, error_samples=_mm_errors, reference=np.matmul,
    )
)  # fmt: skip


@front(MM)
def mm(input: Any, mat2: Any, *, out: Any = None) -> Any:
    """Return the product of two matrices, (n, k) and (k, m)."""
    require_tensor("mm", mat2, "mat2")
    return call(MM, (input, mat2), NO_PARAMS, out)


def _bmm_infer(input: TensorMeta, mat2: TensorMeta) -> TensorMeta:
    _check_inner("bmm", input, mat2)
    batch = broadcast_shapes(input.shape[:-2], mat2.shape[:-2], op="bmm")
    shape = (*batch, input.shape[-2], mat2.shape[-1])
    return meta_of(shape, _same_dtype("bmm", input, mat2), input.device)


def _bmm_samples() -> Any:
    yield Sample((T((2, 3, 4)), T((2, 4, 5))))
    yield Sample((T((3, 2, 4), layout="transposed"), T((3, 4, 1))), name="transposed")
    yield Sample((T((0, 3, 4)), T((0, 4, 5))), grad=False, name="empty")


BMM = register(
    OpDef(
        "bmm", ("input", "mat2"), infer=_bmm_infer, cpu=kernels.matmul_cpu,
        cuda=kernels.matmul_cuda, vjp=_product_vjp("matmul"), saves=("input", "mat2"),
        autocast="lower", cost=_product_cost, samples=_bmm_samples, reference=np.matmul,
    )
)  # fmt: skip


@front(BMM)
def bmm(input: Any, mat2: Any, *, out: Any = None) -> Any:
    """Return the products of two batches of matrices, (b, n, k) and (b, k, m)."""
    for which, value in (("batch1", input), ("batch2", mat2)):
        require_tensor("bmm", value, which)
        _check_rank("bmm", value.meta, 3, which)
    if input.meta.shape[0] != mat2.meta.shape[0]:
        raise ShapeError(
            "bmm",
            what="Expected size for first two dimensions of batch2 tensor to be: "
            f"[{input.meta.shape[0]}, {input.meta.shape[2]}]",
            expected=f"a batch of {input.meta.shape[0]}",
            got=str(mat2.meta.shape[0]),
            remedy="use matmul, which broadcasts batches",
        )
    return call(BMM, (input, mat2), NO_PARAMS, out)


@front()
def matmul(input: Any, other: Any, *, out: Any = None) -> Any:
    """Return the matrix product with torch's rules for every rank.

    Two vectors give their dot product; a vector is a row on the left and a column on the right;
    leading dimensions are batches and broadcast.
    """
    require_tensor("matmul", input)
    require_tensor("matmul", other, "other")
    left, right = input.meta.ndim, other.meta.ndim
    if left == 2 and right == 2:
        return call(MM, (input, other), NO_PARAMS, out)
    if left == 0 or right == 0:
        raise ShapeError(
            "matmul", what="both arguments to matmul need to be at least 1D",
            expected="at least one dimension", got=f"{left}D and {right}D", remedy="use mul",
        )  # fmt: skip
    result = _matmul_any(input, other, left, right)
    return result if out is None else _copied(out, result)


def _matmul_any(input: Any, other: Any, left: int, right: int) -> Any:
    if left == 1:
        input = ops.unsqueeze(input, 0)
    if right == 1:
        other = ops.unsqueeze(other, 1)
    if left >= 3 and right <= 2:
        # The batch of the left operand is only more rows: one product does them all.
        rows = ops.reshape(input, (-1, input.meta.shape[-1])) if input.meta.numel else None
        if rows is not None:
            product = call(MM, (rows, other))
            shape = (*input.meta.shape[:-1], other.meta.shape[-1])
            result = ops.view(product, shape)
            return ops.squeeze(result, -1) if right == 1 else result
    batched = max(input.meta.ndim, other.meta.ndim) > 2
    result = call(BMM if batched else MM, (input, other))
    if left == 1:
        result = ops.squeeze(result, -2)
    return ops.squeeze(result, -1) if right == 1 else result


def _copied(out: Any, result: Any) -> Any:
    if out.meta.shape != result.meta.shape:
        raise ShapeError(
            "matmul", expected=f"out of shape {tuple(result.meta.shape)}",
            got=str(tuple(out.meta.shape)), remedy="drop out=",
        )  # fmt: skip
    return ops.copy_(out, result)


@front()
def dot(input: Any, tensor: Any, *, out: Any = None) -> Any:
    """Return the dot product of two vectors of the same length."""
    for which, value in (("self", input), ("tensor", tensor)):
        require_tensor("dot", value, which)
        if value.meta.ndim != 1:
            raise ShapeError(
                "dot", what=f"1D tensors expected, but got {value.meta.ndim}D",
                expected="two vectors", got=str(tuple(value.meta.shape)), remedy="use matmul",
            )  # fmt: skip
    if input.meta.shape != tensor.meta.shape:
        raise ShapeError(
            "dot", what="inconsistent tensor size, expected tensor of the same number of elements",
            expected=str(input.meta.numel), got=str(tensor.meta.numel), remedy="check the lengths",
        )  # fmt: skip
    return matmul(input, tensor, out=out)


@front(aliases=("inner",))
def vdot(input: Any, other: Any) -> Any:
    """Return the dot product of two real vectors."""
    if input.meta.ndim == 1 and other.meta.ndim == 1:
        return dot(input, other)
    return tensordot(input, other, ([-1], [-1]))


@front()
def mv(input: Any, vec: Any, *, out: Any = None) -> Any:
    """Return the product of a matrix (n, k) and a vector (k,)."""
    require_tensor("mv", vec, "vec")
    _check_rank("mv", input.meta, 2, "self")
    if vec.meta.ndim != 1:
        raise ShapeError(
            "mv", what="vector + matrix @ vector expected", expected="a vector",
            got=f"{vec.meta.ndim} dimensions", remedy="use matmul",
        )  # fmt: skip
    return matmul(input, vec, out=out)


@front(aliases=("ger",))
def outer(input: Any, vec2: Any, *, out: Any = None) -> Any:
    """Return the outer product of two vectors, (n,) and (m,) to (n, m)."""
    return ops.mul(ops.unsqueeze(input, 1), ops.unsqueeze(vec2, 0), out=out)


# ---------------------------------------------------------------------------------------------
# Products with something added


def _addmm_infer(
    input: TensorMeta, mat1: TensorMeta, mat2: TensorMeta, *, beta: float, alpha: float
) -> TensorMeta:
    _check_rank("addmm", mat1, 2, "mat1")
    _check_rank("addmm", mat2, 2, "mat2")
    _check_inner("addmm", mat1, mat2)
    dtype = _same_dtype("addmm", input, mat1, mat2)
    shape = (mat1.shape[0], mat2.shape[1])
    if tuple(broadcast_shapes(input.shape, shape, op="addmm")) != shape:
        raise ShapeError(
            "addmm", what="the added tensor does not broadcast to the product",
            expected=str(shape), got=str(tuple(input.shape)), remedy="reshape it",
        )  # fmt: skip
    return meta_of(shape, dtype, mat1.device)


def _scaled(value: Any, factor: float) -> Any:
    return value if factor == 1 else ops.mul(value, factor)


def _addmm_vjp(g: Any, n: Any) -> Any:
    added = _scaled(g, n.beta) if n.needs[0] else None
    first = _scaled(mm(g, _mT(n.mat2)), n.alpha) if n.needs[1] else None
    second = _scaled(mm(_mT(n.mat1), g), n.alpha) if n.needs[2] else None
    return added, first, second


def _addmm_reference(
    input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1
) -> Any:
    return beta * input + alpha * (mat1 @ mat2)


def _addmm_samples() -> Any:
    yield Sample((T((5,)), T((3, 4)), T((4, 5))))
    yield Sample((T((3, 5)), T((3, 4)), T((4, 5))), {"beta": 0.5, "alpha": 2.0})
    yield Sample((T((3, 1)), T((3, 4), layout="transposed"), T((4, 5))), {"beta": 0})


ADDMM = register(
    OpDef(
        "addmm", ("input", "mat1", "mat2"), infer=_addmm_infer, cpu=kernels.addmm_cpu,
        cuda=kernels.addmm_cuda, vjp=_addmm_vjp, saves=("mat1", "mat2"), inplace=True,
        autocast="lower", samples=_addmm_samples, reference=_addmm_reference,
    )
)  # fmt: skip


@front(ADDMM, inplace=True)
def addmm(
    input: Any, mat1: Any, mat2: Any, *, beta: float = 1, alpha: float = 1, out: Any = None
) -> Any:
    """Return ``beta * input + alpha * (mat1 @ mat2)``."""
    return call(ADDMM, (input, mat1, mat2), {"beta": beta, "alpha": alpha}, out)


@front()
def addmv(input: Any, mat: Any, vec: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """Return ``beta * input + alpha * (mat @ vec)``."""
    return ops.add(_scaled(input, beta), _scaled(mv(mat, vec), alpha))


@front()
def addr(input: Any, vec1: Any, vec2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """Return ``beta * input + alpha * outer(vec1, vec2)``."""
    return ops.add(_scaled(input, beta), _scaled(outer(vec1, vec2), alpha))


@front()
def baddbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """Return ``beta * input + alpha * bmm(batch1, batch2)``."""
    return ops.add(_scaled(input, beta), _scaled(bmm(batch1, batch2), alpha))


@front()
def addbmm(input: Any, batch1: Any, batch2: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """Return ``beta * input + alpha`` times the sum of the products of the batch."""
    return ops.add(_scaled(input, beta), _scaled(ops.sum(bmm(batch1, batch2), 0), alpha))


def _linear_infer(input: TensorMeta, weight: TensorMeta, bias: TensorMeta | None) -> TensorMeta:
    dtype = _same_dtype("linear", input, weight, bias)
    _check_rank("linear", weight, 2, "weight")
    if input.ndim == 0 or input.shape[-1] != weight.shape[1]:
        rows = input.numel // max(input.shape[-1], 1) if input.ndim else 1
        columns = input.shape[-1] if input.ndim else 1
        raise ShapeError(
            "linear",
            what=f"mat1 and mat2 shapes cannot be multiplied ({rows}x{columns} and "
            f"{weight.shape[1]}x{weight.shape[0]})",
            expected=f"inputs with {weight.shape[1]} features",
            got=f"shape {tuple(input.shape)}",
            remedy="check in_features of the layer, or flatten the input",
        )
    if bias is not None and tuple(bias.shape) not in ((weight.shape[0],), (1,)):
        raise ShapeError(
            "linear", expected=f"a bias of shape ({weight.shape[0]},)",
            got=str(tuple(bias.shape)), remedy="one bias for each output feature",
        )  # fmt: skip
    return meta_of((*input.shape[:-1], weight.shape[0]), dtype, input.device)


def _linear_vjp(g: Any, n: Any) -> Any:
    inputs = matmul(g, n.weight) if n.needs[0] else None
    weights = bias = None
    if n.needs[1] or n.needs[2]:
        rows = ops.reshape(g, (-1, g.meta.shape[-1]))
        if n.needs[1]:
            weights = mm(_mT(rows), ops.reshape(n.input, (-1, n.input.meta.shape[-1])))
        if n.needs[2]:
            bias = ops.sum(rows, 0)
    return inputs, weights, bias


def _linear_reference(input: Any, weight: Any, bias: Any = None) -> Any:
    return input @ weight.T + (0 if bias is None else bias)


def _linear_samples() -> Any:
    yield Sample((T((4, 3)), T((5, 3)), T((5,))))
    yield Sample((T((2, 4, 3)), T((5, 3)), T((5,))))
    yield Sample((T((3,)), T((5, 3))), name="vector")
    yield Sample((T((4, 3), layout="transposed"), T((5, 3), layout="transposed")), name="layouts")


def _linear_errors() -> Any:
    yield ErrorSample((T((4, 2)), T((5, 3))), RuntimeError, r"cannot be multiplied \(4x2 and 3x5\)")


LINEAR = register(
    OpDef(
        "linear", ("input", "weight", "bias"), infer=_linear_infer, cpu=kernels.linear_cpu,
        cuda=kernels.linear_cuda, vjp=_linear_vjp, saves=("input", "weight"), autocast="lower",
        backward_name="AddmmBackward0", samples=_linear_samples, error_samples=_linear_errors,
        reference=_linear_reference,
    )
)  # fmt: skip


@front(LINEAR, method=False)
def linear(input: Any, weight: Any, bias: Any = None) -> Any:
    """Return ``input @ weight.T + bias``; `weight` is (out features, in features)."""
    require_tensor("linear", weight, "weight")
    return call(LINEAR, (input, weight, bias))


# ---------------------------------------------------------------------------------------------
# Contractions


@front(method=False)
def tensordot(a: Any, b: Any, dims: Any = 2, out: Any = None) -> Any:
    """Contract dimensions of two tensors: a number of trailing and leading ones, or two lists."""
    if isinstance(dims, int):
        left, right = list(range(-dims, 0)), list(range(dims))
    else:
        left, right = ([d] if isinstance(d, int) else list(d) for d in dims)
    left = [d % a.meta.ndim for d in left]
    right = [d % b.meta.ndim for d in right]
    kept_a = [d for d in range(a.meta.ndim) if d not in left]
    kept_b = [d for d in range(b.meta.ndim) if d not in right]
    shape_a = [a.meta.shape[d] for d in kept_a]
    shape_b = [b.meta.shape[d] for d in kept_b]
    inner = int(np.prod([a.meta.shape[d] for d in left], dtype=np.int64))
    rows = ops.reshape(ops.permute(a, (*kept_a, *left)), (int(np.prod(shape_a)), inner))
    columns = ops.reshape(ops.permute(b, (*right, *kept_b)), (inner, int(np.prod(shape_b))))
    return ops.reshape(mm(rows, columns), (*shape_a, *shape_b))


@front(method=False)
def chain_matmul(*matrices: Any) -> Any:
    """Multiply matrices from left to right."""
    operands = matrices[0] if len(matrices) == 1 else matrices
    result = operands[0]
    for matrix in operands[1:]:
        result = matmul(result, matrix)
    return result


@front(method=False)
def einsum(equation: Any, *operands: Any) -> Any:
    """Sum products over repeated letters, for example ``einsum("bij,bjk->bik", a, b)``.

    Operands are contracted from left to right, each pair by one batched matrix product.
    """
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    terms, output = _parse_equation(equation.replace(" ", ""), operands)
    result, letters = _diagonalised(operands[0], terms[0])
    for position in range(1, len(operands)):
        other, more = _diagonalised(operands[position], terms[position])
        later = set(output).union(*terms[position + 1 :])
        result, letters = _contract(result, letters, other, more, later)
    return _arranged(result, letters, output)


def _parse_equation(equation: str, operands: tuple[Any, ...]) -> tuple[list[str], str]:
    left, arrow, right = equation.partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        raise ShapeError(
            "einsum", what="the number of subscripts differs from the number of operands",
            expected=str(len(terms)), got=str(len(operands)), remedy="one term for each operand",
        )  # fmt: skip
    terms, dots = _without_ellipsis(terms, operands)
    for term, operand in zip(terms, operands, strict=True):
        if len(term) != operand.meta.ndim:
            raise ShapeError(
                "einsum", what=f"the subscript {term!r} does not match the operand",
                expected=f"{len(term)} dimensions", got=str(operand.meta.ndim),
                remedy="one letter for each dimension",
            )  # fmt: skip
    if arrow:
        return terms, right.replace("...", dots)
    joined = "".join(terms)
    single = sorted(c for c in set(joined) if joined.count(c) == 1 and c not in dots)
    return terms, dots + "".join(single)


def _without_ellipsis(terms: list[str], operands: tuple[Any, ...]) -> tuple[list[str], str]:
    """Replace each ellipsis by letters that no user writes, aligned to the right."""
    widths = [
        operand.meta.ndim - len(term.replace("...", "")) if "..." in term else 0
        for term, operand in zip(terms, operands, strict=True)
    ]
    letters = "".join(chr(0x3B1 + i) for i in range(max(widths, default=0)))
    replaced = [
        term.replace("...", letters[len(letters) - width :])
        for term, width in zip(terms, widths, strict=True)
    ]
    return replaced, letters


def _diagonalised(operand: Any, term: str) -> tuple[Any, str]:
    """Take the diagonal of dimensions that carry the same letter."""
    for letter in dict.fromkeys(term):
        while term.count(letter) > 1:
            first = term.index(letter)
            second = term.index(letter, first + 1)
            operand = ops.diagonal(operand, 0, first, second)
            term = term[:second] + term[second + 1 :]
            term = term[:first] + term[first + 1 :] + letter
    return operand, term


def _contract(
    a: Any, letters_a: str, b: Any, letters_b: str, later: set[str]
) -> tuple[Any, str]:
    """Multiply two operands, summing over the letters that nothing later needs."""
    a, letters_a = _summed(a, letters_a, set(letters_b) | later)
    b, letters_b = _summed(b, letters_b, set(letters_a) | later)
    shared = [c for c in letters_a if c in letters_b]
    batch = [c for c in shared if c in later]
    inner = [c for c in shared if c not in later]
    only_a = [c for c in letters_a if c not in shared]
    only_b = [c for c in letters_b if c not in shared]
    size = {c: a.meta.shape[i] for i, c in enumerate(letters_a)}
    for i, c in enumerate(letters_b):
        size[c] = max(size.get(c, 1), b.meta.shape[i])
    left = _grouped(a, letters_a, (batch, only_a, inner), size)
    right = _grouped(b, letters_b, (batch, inner, only_b), size)
    product = call(BMM, (left, right))
    shape = tuple(size[c] for c in (*batch, *only_a, *only_b))
    return ops.reshape(product, shape), "".join((*batch, *only_a, *only_b))


def _summed(operand: Any, letters: str, needed: set[str]) -> tuple[Any, str]:
    gone = [i for i, c in enumerate(letters) if c not in needed]
    if not gone:
        return operand, letters
    return ops.sum(operand, gone), "".join(c for c in letters if c in needed)


def _grouped(operand: Any, letters: str, groups: Any, size: dict[str, int]) -> Any:
    order = [letters.index(c) for group in groups for c in group]
    arranged = ops.permute(operand, order)
    full = tuple(size[c] for group in groups for c in group)
    if tuple(arranged.meta.shape) != full:
        arranged = ops.expand(arranged, full)
    shape = [int(np.prod([size[c] for c in group], dtype=np.int64)) for group in groups]
    return ops.reshape(arranged, shape)


def _arranged(result: Any, letters: str, output: str) -> Any:
    result, letters = _summed(result, letters, set(output))
    return ops.permute(result, [letters.index(c) for c in output]) if letters else result
