"""Products composed of others: einsum, tensordot, kron, multi_dot, bilinear, trace, cross.

Invariants
----------
* A contraction of two operands is one product of stacks: their dimensions are sorted into those
  kept by both, kept by one, and summed; so einsum runs on BLAS whatever the letters.
* Operands of an einsum are contracted from left to right.
"""

from __future__ import annotations

from typing import Any

from refruntime._layout import wrap_dim
from refruntime._ops.linalg import _require_ndim
from refruntime._ops.opdef import front, ops, require_tensor
from refruntime.errors import ArgumentValueError, ShapeError

# ---------------------------------------------------------------------------------------------
# einsum

_ELLIPSIS_LABELS = tuple(f".{place}" for place in range(32))


def _labels_of(term: str, ndim: int, index: int) -> list[str]:
    """Return one label a dimension; those under an ellipsis count from the right."""
    head, dots, tail = term.partition("...")
    letters = [*head, *tail]
    if any(not letter.isalpha() for letter in letters):
        raise _bad_equation(f"unexpected character in operand {index}: {term!r}")
    hidden = ndim - len(letters)
    if hidden < 0 or (hidden > 0 and not dots):
        raise ShapeError(
            "einsum",
            what=f"the number of subscripts in the equation ({len(letters)}) does not match the "
            f"number of dimensions ({ndim}) for operand {index}",
            expected=f"{ndim} subscripts",
            got=repr(term),
            remedy="name each dimension, or use an ellipsis",
        )
    return [*head, *reversed(_ELLIPSIS_LABELS[:hidden]), *tail]


def _bad_equation(what: str) -> ArgumentValueError:
    return ArgumentValueError("einsum", what=what, expected="an equation such as 'ij,jk->ik'")


def _default_output(inputs: list[list[str]]) -> list[str]:
    """Return what an equation without an arrow gives: ellipsis, then letters that occur once."""
    every = [label for labels in inputs for label in labels]
    dots = sorted({label for label in every if label[0] == "."}, reverse=True)
    once = {label for label in every if label[0] != "." and every.count(label) == 1}
    return dots + sorted(once)


def _read_equation(equation: str, operands: tuple[Any, ...]) -> tuple[list[list[str]], list[str]]:
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(operands):
        counts = f"{len(terms)} operands in {equation!r}, but {len(operands)} were given"
        raise _bad_equation(counts)
    inputs = [
        _labels_of(term, operand.meta.ndim, index)
        for index, (term, operand) in enumerate(zip(terms, operands, strict=True))
    ]
    if not arrow:
        return inputs, _default_output(inputs)
    dots = {label for labels in inputs for label in labels if label[0] == "."}
    head, marker, tail = right.partition("...")
    hidden = sorted(dots, key=lambda label: -int(label[1:])) if marker else []
    output = [*head, *hidden, *tail]
    known = {label for labels in inputs for label in labels}
    for label in output:
        if label not in known or output.count(label) > 1:
            what = f"output subscript {label!r} of {equation!r} is unknown or repeated"
            raise _bad_equation(what)
    return inputs, output


def _from_sublists(args: tuple[Any, ...]) -> tuple[str, tuple[Any, ...]]:
    """Turn ``einsum(a, [0, 1], b, [1, 2], [0, 2])`` into an equation and its operands."""

    def spell(sublist: Any) -> str:
        return "".join("..." if item is Ellipsis else _letter(item) for item in sublist)

    pairs = len(args) // 2
    operands = tuple(args[2 * k] for k in range(pairs))
    equation = ",".join(spell(args[2 * k + 1]) for k in range(pairs))
    if len(args) % 2:
        equation += "->" + spell(args[-1])
    return equation, operands


def _letter(number: int) -> str:
    return chr(ord("A") + number) if number < 26 else chr(ord("a") + number - 26)


def _single(x: Any, labels: list[str]) -> tuple[Any, list[str]]:
    """Take diagonals of repeated labels."""
    while len(set(labels)) < len(labels):
        label = next(label for label in labels if labels.count(label) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        x = ops.diagonal(x, 0, first, second)
        labels = [*labels[:first], *labels[first + 1 : second], *labels[second + 1 :], label]
    return x, labels


def _sum_out(x: Any, labels: list[str], keep: set[str]) -> tuple[Any, list[str]]:
    gone = [place for place, label in enumerate(labels) if label not in keep]
    if not gone:
        return x, labels
    return ops.sum(x, tuple(gone)), [label for label in labels if label in keep]


def _arranged(x: Any, labels: list[str], order: list[str]) -> Any:
    """Permute to `order`, with size one for labels that `x` does not have."""
    present = [label for label in order if label in labels]
    places = [labels.index(label) for label in present]
    if places != sorted(places):
        x = ops.permute(x, tuple(places))
    for place, label in enumerate(order):
        if label not in labels:
            x = ops.unsqueeze(x, place)
    return x


def _contract(
    a: Any, a_labels: list[str], b: Any, b_labels: list[str], keep: set[str]
) -> tuple[Any, list[str]]:
    """Multiply two operands, summing the labels that nothing else needs."""
    a, a_labels = _sum_out(a, a_labels, keep | set(b_labels))
    b, b_labels = _sum_out(b, b_labels, keep | set(a_labels))
    both = [label for label in a_labels if label in b_labels]
    summed = [
        label for label in both if label not in keep and _wide(a, a_labels, b, b_labels, label)
    ]
    if not summed:
        order = [*a_labels, *(label for label in b_labels if label not in a_labels)]
        product = ops.mul(_arranged(a, a_labels, order), _arranged(b, b_labels, order))
        return _sum_out(product, order, keep)
    stack = [label for label in both if label not in summed]
    left = [label for label in a_labels if label not in both]
    right = [label for label in b_labels if label not in both]
    a = _arranged(a, a_labels, [*stack, *left, *summed])
    b = _arranged(b, b_labels, [*stack, *summed, *right])
    lead, middle = len(stack), len(summed)
    kept_left = a.shape[lead : len(a.shape) - middle]
    kept_right = b.shape[lead + middle :]
    a = ops.reshape(a, (*a.shape[:lead], _size(kept_left), _size(a.shape[len(a.shape) - middle :])))
    b = ops.reshape(b, (*b.shape[:lead], _size(b.shape[lead : lead + middle]), _size(kept_right)))
    product = ops.matmul(a, b)
    result = ops.reshape(product, (*product.shape[:lead], *kept_left, *kept_right))
    return _sum_out(result, [*stack, *left, *right], keep)


def _size(shape: Any) -> int:
    size = 1
    for extent in shape:
        size *= extent
    return size


def _wide(a: Any, a_labels: list[str], b: Any, b_labels: list[str], label: str) -> bool:
    """Whether a label has the same size on both sides, so that no broadcast is in the way."""
    first, second = a.shape[a_labels.index(label)], b.shape[b_labels.index(label)]
    return bool(first == second)


def _check_sizes(operands: tuple[Any, ...], inputs: list[list[str]]) -> None:
    sizes: dict[str, int] = {}
    for index, (x, labels) in enumerate(zip(operands, inputs, strict=True)):
        for label, size in zip(labels, x.meta.shape, strict=True):
            known = sizes.setdefault(label, size)
            if known != size and 1 not in (known, size):
                raise ShapeError(
                    "einsum",
                    what=f"operand {index} has size {size} for subscript {label}, which does not "
                    f"broadcast with previously seen size {known}",
                    expected=f"size {known}",
                    got=str(size),
                    remedy="check the equation against the shapes",
                )
            sizes[label] = max(known, size)


@front(method=False)
def einsum(*args: Any) -> Any:
    """Return the sum of products that an equation in Einstein's notation names.

    ``einsum("bij,bjk->bik", a, b)``, or with sublists ``einsum(a, [0, 1], b, [1, 2], [0, 2])``;
    an ellipsis stands for dimensions that broadcast.
    """
    if isinstance(args[0], str):
        equation, operands = args[0], args[1:]
        if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
            operands = tuple(operands[0])
    else:
        equation, operands = _from_sublists(args)
    for operand in operands:
        require_tensor("einsum", operand, "operands")
    inputs, output = _read_equation(equation, operands)
    _check_sizes(operands, inputs)
    terms = [_single(x, labels) for x, labels in zip(operands, inputs, strict=True)]
    x, labels = terms[0]
    for place, (other, other_labels) in enumerate(terms[1:], 2):
        keep = set(output).union(*(later for _, later in terms[place:]))
        x, labels = _contract(x, labels, other, other_labels, keep)
    x, labels = _sum_out(x, labels, set(output))
    return _arranged(x, labels, output)


# ---------------------------------------------------------------------------------------------
# Other contractions


def _matched(a: Any, i: int, b: Any, j: int) -> tuple[Any, Any]:
    """Give two dimensions one size: where one of them is 1, the other is summed."""
    first, second = a.shape[i], b.shape[j]
    if first == second:
        return a, b
    if first == 1:
        return a, ops.sum(b, j, keepdim=True)
    if second == 1:
        return ops.sum(a, i, keepdim=True), b
    raise ShapeError(
        "tensordot",
        what=f"contracted dimensions need to match, but first has size {first} in dim {i} and "
        f"second has size {second} in dim {j}",
        expected="equal sizes", got=f"{tuple(a.shape)} and {tuple(b.shape)}", remedy="check dims",
    )  # fmt: skip


@front(method=False)
def tensordot(a: Any, b: Any, dims: Any = 2, out: Any = None) -> Any:
    """Return the sum of products over `dims`: a count, or a pair of lists of dimensions."""
    require_tensor("tensordot", a)
    require_tensor("tensordot", b, "b")
    if isinstance(dims, int):
        first = list(range(a.meta.ndim - dims, a.meta.ndim))
        second = list(range(dims))
    else:
        pair = [dims.tolist()] if hasattr(dims, "tolist") else [dims]
        first, second = ([d] if isinstance(d, int) else list(d) for d in pair[0])
    first = [wrap_dim(d, a.meta.ndim, "tensordot") for d in first]
    second = [wrap_dim(d, b.meta.ndim, "tensordot") for d in second]
    for i, j in zip(first, second, strict=True):
        a, b = _matched(a, i, b, j)
    kept_a = [d for d in range(a.meta.ndim) if d not in first]
    kept_b = [d for d in range(b.meta.ndim) if d not in second]
    shape = [a.meta.shape[d] for d in kept_a] + [b.meta.shape[d] for d in kept_b]
    inner = _size(a.meta.shape[d] for d in first)
    rows, columns = (_size(t.meta.shape[d] for d in kept) for t, kept in ((a, kept_a), (b, kept_b)))
    left = ops.reshape(ops.permute(a, tuple(kept_a + first)), (rows, inner))
    right = ops.reshape(ops.permute(b, tuple(second + kept_b)), (inner, columns))
    result = ops.reshape(ops.mm(left, right), tuple(shape))
    return result if out is None else ops.copy_(out, result)


@front()
def kron(input: Any, other: Any, *, out: Any = None) -> Any:
    """Return the Kronecker product."""
    require_tensor("kron", input)
    ndim = max(input.meta.ndim, other.meta.ndim)
    a_shape = (1,) * (ndim - input.meta.ndim) + tuple(input.meta.shape)
    b_shape = (1,) * (ndim - other.meta.ndim) + tuple(other.meta.shape)
    spread_a = tuple(size for extent in a_shape for size in (extent, 1))
    spread_b = tuple(size for extent in b_shape for size in (1, extent))
    product = ops.mul(ops.reshape(input, spread_a), ops.reshape(other, spread_b))
    shape = tuple(x * y for x, y in zip(a_shape, b_shape, strict=True))
    result = ops.reshape(product, shape)
    return result if out is None else ops.copy_(out, result)


def _best_order(sizes: list[int]) -> dict[tuple[int, int], int]:
    """Return where to split each product of matrices (dynamic programming over sub-chains)."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    split = {}
    for length in range(2, count + 1):
        for i in range(count - length + 1):
            j = i + length - 1
            choices = {
                k: cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1]
                for k in range(i, j)
            }
            split[i, j] = min(choices, key=choices.__getitem__)
            cost[i, j] = choices[split[i, j]]
    return split


@front(method=False)
def linalg_multi_dot(tensors: Any, *, out: Any = None) -> Any:
    """Return the product of several matrices (the first and last may be vectors)."""
    chain = list(tensors)
    if len(chain) < 2:
        raise ShapeError("linalg.multi_dot", what="expected at least 2 tensors", got=len(chain))
    first_vector, last_vector = chain[0].meta.ndim == 1, chain[-1].meta.ndim == 1
    if first_vector:
        chain[0] = ops.unsqueeze(chain[0], 0)
    if last_vector:
        chain[-1] = ops.unsqueeze(chain[-1], 1)
    split = _best_order([chain[0].shape[0], *(m.shape[1] for m in chain)])

    def multiply(i: int, j: int) -> Any:
        if i == j:
            return chain[i]
        k = split[i, j]
        return ops.mm(multiply(i, k), multiply(k + 1, j))

    result = multiply(0, len(chain) - 1)
    if first_vector:
        result = ops.squeeze(result, 0)
    if last_vector:
        result = ops.squeeze(result, -1)
    return result if out is None else ops.copy_(out, result)


@front(method=False)
def bilinear(input1: Any, input2: Any, weight: Any, bias: Any = None) -> Any:
    """Return ``input1 @ weight[k] @ input2`` for each `k`, plus the bias."""
    require_tensor("bilinear", input1)
    outputs, first, second = weight.shape
    lead = input1.shape[:-1]
    rows1 = ops.reshape(input1, (-1, first))
    rows2 = ops.reshape(input2, (-1, second))
    half = ops.matmul(rows1, ops.reshape(ops.transpose(weight, 0, 1), (first, outputs * second)))
    product = ops.mul(ops.reshape(half, (-1, outputs, second)), ops.unsqueeze(rows2, 1))
    result = ops.reshape(ops.sum(product, 2), (*lead, outputs))
    return result if bias is None else ops.add(result, bias)


@front()
def trace(input: Any) -> Any:
    """Return the sum of a matrix's diagonal."""
    require_tensor("trace", input)
    _require_ndim("trace", "self", input.meta, 2)
    return ops.sum(ops.diagonal(input))


@front(method=False)
def chain_matmul(*matrices: Any) -> Any:
    """Return the product of several matrices, in the cheapest order."""
    return ops.linalg_multi_dot(matrices)


def _cross_dim(input: Any, dim: Any, op: str) -> int:
    if dim is not None:
        return wrap_dim(dim, input.meta.ndim, op)
    for index, size in enumerate(input.meta.shape):
        if size == 3:
            return index
    raise ShapeError(
        op, what="no dimension of size 3 in input", expected="a dimension of size 3",
        got=str(tuple(input.meta.shape)), remedy="pass vectors of three components",
    )  # fmt: skip


@front()
def cross(input: Any, other: Any, dim: int | None = None, *, out: Any = None) -> Any:
    """Return the vector products along a dimension of size 3 (the first one by default)."""
    require_tensor("cross", input)
    return linalg_cross(input, other, dim=_cross_dim(input, dim, "cross"), out=out)


@front(method=False)
def linalg_cross(input: Any, other: Any, *, dim: int = -1, out: Any = None) -> Any:
    """Return the vector products along `dim`."""
    at = wrap_dim(dim, input.meta.ndim, "linalg.cross")
    for value in (input, other):
        if value.meta.shape[dim] != 3:
            raise ShapeError(
                "linalg.cross", what="inputs dimension must have length 3",
                expected="size 3", got=f"{value.meta.shape[dim]}", remedy="check dim",
            )  # fmt: skip
    turn = [ops.roll(input, shift, at) for shift in (-1, -2)]
    other_turn = [ops.roll(other, shift, at) for shift in (-2, -1)]
    first, second = (ops.mul(a, b) for a, b in zip(turn, other_turn, strict=True))
    return ops.sub(first, second, out=out)
