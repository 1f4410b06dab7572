"""Random tensors: creation, ``*_like``, and the in-place fills.

Invariants
----------
* A front function reserves the blocks of its draw from the generator and passes seed and offset on
  as parameters: the op itself is a pure function of them, so it can be repeated, captured and
  checked, and every device gives the same numbers.
* The in-place fills are ops of their target, whose gradient they cut to zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refruntime import _dtypes, random
from refruntime._device import Device
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta, meta_of, without_overlap
from refruntime._layout import dense_strides
from refruntime._ops.arguments import int_of, ints_of, spread_ints
from refruntime._ops.creation import checked_sizes, device_of, finish
from refruntime._ops.opdef import Inplace, OpDef, front, ops, register, require_tensor
from refruntime.errors import DTypeError, KernelMissingError, ShapeError
from refruntime.kernels import random as kernels
from refruntime.kernels import random_cuda as gpu

Kernel = Callable[..., None]
_TWO_TO_64 = 1 << 64


def draw(
    op: str, generator: random.Generator | None, device: Device, numel: int, words: int
) -> dict[str, int]:
    """Reserve the blocks of a draw of `numel` elements; return them as kernel parameters."""
    chosen = random.choose(op, generator, device)
    seed, offset = chosen.reserve(kernels.blocks_for(numel, words))
    return {"seed": seed, "offset": offset}


def draw_continuous(op: str, generator: Any, meta: TensorMeta) -> dict[str, int]:
    """Reserve the blocks of a continuous draw into a tensor of `meta`."""
    words = kernels.words_of(meta.dtype) * (2 if meta.dtype.is_complex else 1)
    return draw(op, generator, meta.device, meta.numel, words)


_TORCH_NAMES = {
    "bool": "Bool", "uint8": "Byte", "int8": "Char", "int16": "Short", "int32": "Int",
    "int64": "Long", "float16": "Half", "bfloat16": "BFloat16", "float32": "Float",
    "float64": "Double", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip


def require_floating(op: str, dtype: DType, kernel: str, complex_too: bool = False) -> None:
    """Raise NotImplementedError unless the dtype is one that the distribution has values in."""
    if dtype.is_floating_point or (complex_too and dtype.is_complex):
        return
    name = _TORCH_NAMES.get(dtype.name, dtype.name)
    raise KernelMissingError(
        op,
        what=f"\"{kernel}\" not implemented for '{name}'",
        expected="a floating dtype",
        got=str(dtype),
        remedy="draw in a floating dtype and convert",
    )


def out_of_range(op: str, what: str, got: Any) -> ShapeError:
    """Return the error for a parameter that the distribution does not have."""
    return ShapeError(op, what=what, got=str(got), remedy="check the distribution's parameters")


# ---------------------------------------------------------------------------------------------
# Creation


def _meta_param(*, meta: TensorMeta, **_: Any) -> TensorMeta:
    return meta


def _fresh(fill: Kernel) -> Kernel:
    """Return the creation kernel of a fill: the meta has done its part when memory is there."""

    def kernel(out: TensorImpl, *, meta: TensorMeta, **params: Any) -> None:
        fill(out, **params)

    return kernel


def _creation(name: str, cpu: Kernel, cuda: Kernel) -> OpDef:
    """Register an op that makes a tensor of a given meta with a fill kernel."""
    return register(
        OpDef(
            name,
            (),
            batch="random",
            infer=_meta_param,
            cpu=_fresh(cpu),
            cuda=_fresh(cuda),
            random=True,
        )
    )


RAND = _creation("rand", kernels.uniform_cpu, gpu.uniform_cuda)
RANDN = _creation("randn", kernels.normal_cpu, gpu.normal_cuda)
RANDINT = _creation("randint", kernels.integers_cpu, gpu.integers_cuda)
RANDPERM = _creation("randperm", kernels.permutation_cpu, gpu.permutation_cuda)


def _wanted(
    op: str, size: tuple[int, ...], dtype: DType | None, device: Any, out: Any
) -> TensorMeta:
    """Return the meta that a creation call asks for."""
    checked_sizes(op, size)
    if isinstance(out, TensorImpl):
        dtype = dtype or out.meta.dtype
        device = device or out.meta.device
    return meta_of(size, dtype or _dtypes.get_default_dtype(), device_of(device))


def _like(input: Any, op: str, dtype: DType | None, device: Any) -> TensorMeta:
    """Return the meta of a ``*_like`` call: the operand's, with its dense strides kept."""
    require_tensor(op, input)
    meta = input.meta
    strides = None if meta.contiguous else dense_strides(meta.shape, meta.strides)
    place = meta.device if device is None else Device(device)
    return meta_of(meta.shape, dtype or meta.dtype, place, strides)


def _uniform(op: str, meta: TensorMeta, generator: Any, out: Any = None) -> Any:
    require_floating(op, meta.dtype, "check_uniform_bounds", complex_too=True)
    stream = draw_continuous(op, generator, meta)
    return call(RAND, (), {"meta": meta, "low": 0.0, "high": 1.0, **stream}, out)


def _normal(op: str, meta: TensorMeta, generator: Any, out: Any = None) -> Any:
    require_floating(op, meta.dtype, "normal_kernel_cpu", complex_too=True)
    stream = draw_continuous(op, generator, meta)
    return call(RANDN, (), {"meta": meta, "mean": 0.0, "std": 1.0, **stream}, out)


@front(RAND, method=False)
def rand(
    *args: Any, size: Any = None, generator: Any = None, out: Any = None,
    dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return a tensor of numbers spread evenly over [0, 1).

    Parameters
    ----------
    *args : int
        The shape; also as one sequence, or as ``size=``.
    generator : Generator, optional
        The stream to draw from; default: the device's own.
    """
    meta = _wanted("rand", spread_ints("rand", "size", args, size), dtype, device, out)
    return finish(_uniform("rand", meta, generator, out), requires_grad)


@front(RANDN, method=False)
def randn(
    *args: Any, size: Any = None, generator: Any = None, out: Any = None,
    dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return a tensor of numbers from the normal distribution of mean 0 and variance 1.

    A complex number has variance 1 in all, half in each part.
    """
    meta = _wanted("randn", spread_ints("randn", "size", args, size), dtype, device, out)
    return finish(_normal("randn", meta, generator, out), requires_grad)


@front(RAND, method=False)
def rand_like(
    input: Any, *, generator: Any = None, dtype: DType | None = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
    memory_format: Any = None,
) -> Any:  # fmt: skip
    """Return numbers in [0, 1) in the shape, dtype and memory order of `input`."""
    meta = _like(input, "rand_like", dtype, device)
    return finish(_uniform("rand_like", meta, generator), requires_grad)


@front(RANDN, method=False)
def randn_like(
    input: Any, *, generator: Any = None, dtype: DType | None = None, layout: Any = None,
    device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
    memory_format: Any = None,
) -> Any:  # fmt: skip
    """Return standard normal numbers in the shape, dtype and memory order of `input`."""
    meta = _like(input, "randn_like", dtype, device)
    return finish(_normal("randn_like", meta, generator), requires_grad)


# ---------------------------------------------------------------------------------------------
# Integers


def _check_bounds(dtype: DType, low: int, high: int) -> None:
    """Raise unless [low, high) is not empty and both ends have values in the dtype."""
    if low >= high:
        raise out_of_range(
            "random_",
            f"random_ expects 'from' to be less than 'to', but got from={low} >= to={high}",
            f"[{low}, {high})",
        )
    if dtype is _dtypes.bool_:
        least, most = 0, 1
    elif dtype.is_floating_point:
        most = int(_dtypes.finfo(dtype).max)
        least = -most
    else:
        info = _dtypes.iinfo(dtype)
        least, most = info.min, info.max
    for name, value in (("from", low), ("to - 1", high - 1)):
        if not least <= value <= most:
            raise DTypeError(
                "random_",
                what=f"{name} is out of bounds for {dtype.name}",
                expected=f"{least} to {most}",
                got=value,
                remedy="pass a wider dtype",
            )


def _integers(
    op: str, meta: TensorMeta, low: int, high: int, generator: Any, out: Any = None
) -> Any:
    _check_bounds(meta.dtype, low, high)
    stream = draw(op, generator, meta.device, meta.numel, 2)
    params = {"meta": meta, "low": low, "span": (high - low) % _TWO_TO_64, **stream}
    return call(RANDINT, (), params, out)


def _bounds(op: str, values: tuple[Any, ...], low: Any, high: Any) -> tuple[int, int]:
    """Return both ends from ``(high)`` or ``(low, high)``, in any mix with keywords."""
    given = list(values)
    if high is None:
        high = given.pop()
    if low is None:
        low = given.pop() if given else 0
    return int_of(op, "low", low), int_of(op, "high", high)


@front(RANDINT, method=False)
def randint(
    *args: Any, low: Any = None, high: Any = None, size: Any = None, generator: Any = None,
    out: Any = None, dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return integers from [low, high): ``randint(high, size)`` or ``randint(low, high, size)``.

    Parameters
    ----------
    low, high : int
        The ends; `low` is 0 if left out.
    size : sequence of int
        The shape.
    dtype : DType, optional
        int64 if left out.
    """
    values = list(args)
    shape = ints_of("randint", "size", values.pop() if size is None else size)
    least, end = _bounds("randint", tuple(values), low, high)
    if dtype is None and out is None:
        dtype = _dtypes.int64
    meta = _wanted("randint", shape, dtype, device, out)
    return finish(_integers("randint", meta, least, end, generator, out), requires_grad)


@front(RANDINT, method=False)
def randint_like(
    input: Any, *args: Any, low: Any = None, high: Any = None, generator: Any = None,
    dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False, memory_format: Any = None,
) -> Any:  # fmt: skip
    """Return integers from [low, high) in the shape, dtype and memory order of `input`."""
    meta = _like(input, "randint_like", dtype, device)
    least, end = _bounds("randint_like", args, low, high)
    return finish(_integers("randint_like", meta, least, end, generator), requires_grad)


@front(RANDPERM, method=False)
def randperm(
    n: int, *, generator: Any = None, out: Any = None, dtype: DType | None = None,
    layout: Any = None, device: Any = None, requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return the integers 0 to ``n - 1`` in random order, int64 unless `dtype` says otherwise."""
    if dtype is None and out is None:
        dtype = _dtypes.int64
    meta = _wanted("randperm", (int_of("randperm", "n", n),), dtype, device, out)
    if n and not meta.dtype.is_floating_point and n - 1 > _dtypes.iinfo(meta.dtype).max:
        raise DTypeError(
            "randperm",
            what=f"value cannot be converted to type {meta.dtype.name} without overflow",
            expected=f"n up to {_dtypes.iinfo(meta.dtype).max + 1}",
            got=n,
            remedy="pass a wider dtype",
        )
    stream = draw("randperm", generator, meta.device, meta.numel, 2)
    return finish(call(RANDPERM, (), {"meta": meta, **stream}, out), requires_grad)


# ---------------------------------------------------------------------------------------------
# In-place fills


def _filling(name: str, node: str, cpu: Kernel, cuda: Kernel) -> OpDef:
    """Register an op that draws anew into the place of its operand."""

    def infer(input: TensorMeta, **_: Any) -> TensorMeta:
        return without_overlap(input)

    return register(
        OpDef(
            name, ("input",), jvp="zero", batch="random",
            infer=infer, cpu=cpu, cuda=cuda, random=True, inplace=True,
            vjp=lambda g, n: ops.zeros_like(g), backward_name=node,
        )
    )  # fmt: skip


UNIFORM = _filling("uniform", "UniformBackward0", kernels.uniform_cpu, gpu.uniform_cuda)
NORMAL_FILL = _filling("normal_fill", "NormalBackward0", kernels.normal_cpu, gpu.normal_cuda)
RANDOM = _filling("random", "RandomBackward0", kernels.integers_cpu, gpu.integers_cuda)
EXPONENTIAL = _filling(
    "exponential", "ExponentialBackward0", kernels.exponential_cpu, gpu.exponential_cuda
)
LOG_NORMAL = _filling(
    "log_normal", "LogNormalBackward0", kernels.log_normal_cpu, gpu.log_normal_cuda
)
CAUCHY = _filling("cauchy", "CauchyBackward0", kernels.cauchy_cpu, gpu.cauchy_cuda)
GEOMETRIC = _filling("geometric", "GeometricBackward0", kernels.geometric_cpu, gpu.geometric_cuda)


def _fill(op: OpDef, self: Any, generator: Any, words: int | None = None, **params: Any) -> Any:
    meta = self.meta
    if words is None:
        stream = draw_continuous(op.name, generator, meta)
    else:
        stream = draw(op.name, generator, meta.device, meta.numel, words)
    return call(op, (self,), {**params, **stream}, Inplace(self))


@front(UNIFORM, name="uniform_")
def uniform_(self: Any, from_: float = 0.0, to: float = 1.0, *, generator: Any = None) -> Any:
    """Fill with numbers spread evenly over [from, to)."""
    require_tensor("uniform_", self, "self")
    require_floating("uniform_", self.meta.dtype, "check_uniform_bounds", complex_too=True)
    low, high = float(from_), float(to)
    limit = _dtypes.finfo(self.meta.dtype).max
    for name, value in (("from", low), ("to", high)):
        if not -limit <= value <= limit:
            what = f"{name} is out of bounds for {self.meta.dtype.name}"
            raise out_of_range("uniform_", what, value)
    if low > high:
        raise out_of_range(
            "uniform_",
            f"uniform_ expects to return a [from, to) range, but found from={low:g} > to={high:g}",
            f"[{low:g}, {high:g})",
        )
    return _fill(UNIFORM, self, generator, low=low, high=high)


@front(NORMAL_FILL, name="normal_")
def normal_(self: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    """Fill with normal numbers of the given mean and standard deviation."""
    require_tensor("normal_", self, "self")
    require_floating("normal_", self.meta.dtype, "normal_kernel_cpu", complex_too=True)
    check_std("normal_", std)
    return _fill(NORMAL_FILL, self, generator, mean=float(mean), std=float(std))


def check_std(op: str, std: float) -> None:
    """Raise RuntimeError for a negative standard deviation."""
    if not std >= 0.0:
        raise out_of_range(op, f"normal expects std >= 0.0, but found std {std:g}", std)


@front(RANDOM, name="random_")
def random_(self: Any, *args: Any, to: Any = None, generator: Any = None) -> Any:
    """Fill with integers: ``random_()`` over the dtype, ``random_(to)``, ``random_(from, to)``.

    Without bounds a floating tensor gets integers that it can hold exactly.
    """
    require_tensor("random_", self, "self")
    if not args and to is None:
        low, high = 0, _natural_end(self.meta.dtype)
    else:
        low, high = _bounds("random_", args, None, to)
    _check_bounds(self.meta.dtype, low, high)
    return _fill(RANDOM, self, generator, 2, low=low, span=(high - low) % _TWO_TO_64)


_MANTISSA = {
    _dtypes.float64: 53, _dtypes.float32: 24, _dtypes.float16: 11, _dtypes.bfloat16: 8,
}  # fmt: skip


def _natural_end(dtype: DType) -> int:
    if dtype is _dtypes.bool_:
        return 2
    if dtype in _MANTISSA:
        return int(2 ** _MANTISSA[dtype]) + 1
    return int(_dtypes.iinfo(dtype).max) + 1


@front(EXPONENTIAL, name="exponential_")
def exponential_(self: Any, lambd: float = 1.0, *, generator: Any = None) -> Any:
    """Fill with exponential numbers of rate `lambd`."""
    require_tensor("exponential_", self, "self")
    if not self.meta.dtype.is_floating_point:
        raise DTypeError(
            "exponential_",
            what="Exponential distribution is a continuous probability distribution. dtype must be "
            "a floating point",
            got=str(self.meta.dtype),
        )
    if not lambd > 0.0:
        what = f"exponential_ expects lambda > 0.0, but found lambda={lambd:g}"
        raise out_of_range("exponential_", what, lambd)
    return _fill(EXPONENTIAL, self, generator, rate=float(lambd))


@front(LOG_NORMAL, name="log_normal_")
def log_normal_(self: Any, mean: float = 1.0, std: float = 2.0, *, generator: Any = None) -> Any:
    """Fill with numbers whose logarithm is normal of the given mean and standard deviation."""
    require_tensor("log_normal_", self, "self")
    require_floating("log_normal_", self.meta.dtype, "log_normal_cpu")
    if not std > 0.0:
        what = f"log_normal_ expects std > 0.0, but found std={std:g}"
        raise out_of_range("log_normal_", what, std)
    return _fill(LOG_NORMAL, self, generator, mean=float(mean), std=float(std))


@front(CAUCHY, name="cauchy_")
def cauchy_(self: Any, median: float = 0.0, sigma: float = 1.0, *, generator: Any = None) -> Any:
    """Fill with Cauchy numbers of the given median and width."""
    require_tensor("cauchy_", self, "self")
    require_floating("cauchy_", self.meta.dtype, "cauchy_cpu")
    if not sigma > 0.0:
        what = f"cauchy_ expects sigma > 0.0, but found sigma={sigma:g}"
        raise out_of_range("cauchy_", what, sigma)
    return _fill(CAUCHY, self, generator, median=float(median), sigma=float(sigma))


@front(GEOMETRIC, name="geometric_")
def geometric_(self: Any, p: float, *, generator: Any = None) -> Any:
    """Fill with the number of trials up to the first success of chance `p`."""
    require_tensor("geometric_", self, "self")
    if not 0.0 < p < 1.0:
        what = f"geometric_ expects p to be in (0, 1), but got p={p:g}"
        raise out_of_range("geometric_", what, p)
    words = kernels.words_of(self.meta.dtype) if self.meta.dtype.is_floating_point else 2
    return _fill(GEOMETRIC, self, generator, words, p=float(p))
