"""Sampling by given parameters: bernoulli, normal with tensors, multinomial, poisson.

Invariants
----------
* As in `_ops.random`: seed and offset are parameters, the ops are pure functions of them.
* Samples have no derivative: gradients of their parameters are zero.
"""

from __future__ import annotations

from typing import Any

from refruntime import _dtypes
from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorImpl, TensorMeta, meta_of, without_overlap
from refruntime._layout import broadcast_shapes
from refruntime._ops.opdef import Inplace, OpDef, front, ops, register, require_tensor
from refruntime._ops.random import (
    check_std,
    draw,
    out_of_range,
    randn,
    require_floating,
)
from refruntime.errors import ArgumentTypeError, DTypeError, ShapeError
from refruntime.kernels import random as kernels
from refruntime.kernels import random_cuda as gpu
from refruntime.kernels import sampling


def _same(input: TensorMeta, *_: Any, **__: Any) -> TensorMeta:
    return meta_of(input.shape, input.dtype, input.device)


def _itself(input: TensorMeta, *_: Any, **__: Any) -> TensorMeta:
    return without_overlap(input)


def _no_gradient(g: Any, n: Any) -> Any:
    return tuple(ops.zeros_like(g) if need else None for need in n.needs)


# ---------------------------------------------------------------------------------------------
# Bernoulli

BERNOULLI = register(
    OpDef("bernoulli", ("input",), jvp="zero", batch="random",
          infer=_same, cpu=kernels.bernoulli_of_cpu,
          cuda=gpu.bernoulli_of_cuda, vjp=lambda g, n: ops.zeros_like(g), random=True)
)  # fmt: skip
BERNOULLI_FILL = register(
    OpDef("bernoulli_fill", ("input",), jvp="zero", batch="random",
          infer=_itself, cpu=kernels.bernoulli_cpu,
          cuda=gpu.bernoulli_cuda, vjp=lambda g, n: ops.zeros_like(g), inplace=True,
          random=True, backward_name="BernoulliBackward0")
)  # fmt: skip
BERNOULLI_FILL_OF = register(
    OpDef("bernoulli_fill_of", ("input", "p"), jvp="zero", batch="random",
          infer=_itself, cpu=kernels.bernoulli_of_cpu,
          cuda=gpu.bernoulli_of_cuda, vjp=_no_gradient, inplace=True, random=True,
          backward_name="BernoulliBackward1")
)  # fmt: skip


def _check_chance(op: str, p: float) -> float:
    if not 0.0 <= p <= 1.0:
        raise out_of_range(op, f"bernoulli_ expects p to be in [0, 1], but got p={p:g}", p)
    return float(p)


@front(BERNOULLI)
def bernoulli(input: Any, p: float | None = None, *, generator: Any = None, out: Any = None) -> Any:
    """Return ones and zeros: one with chance ``input[i]``, or with chance `p` everywhere."""
    require_tensor("bernoulli", input)
    if p is not None:
        return bernoulli_(ops.empty_like(input.detach()), p, generator=generator)
    require_floating("bernoulli", input.meta.dtype, "bernoulli_tensor_cpu_p_")
    stream = draw("bernoulli", generator, input.meta.device, input.meta.numel, 1)
    return call(BERNOULLI, (input,), stream, out)


@front(BERNOULLI_FILL, name="bernoulli_")
def bernoulli_(self: Any, p: Any = 0.5, *, generator: Any = None) -> Any:
    """Fill with ones, of chance `p` (a number, or a tensor of chances), and zeros."""
    require_tensor("bernoulli_", self, "self")
    stream = draw("bernoulli_", generator, self.meta.device, self.meta.numel, 1)
    if isinstance(p, TensorImpl):
        chances: Any = p
        spread = chances.expand(self.meta.shape)
        return call(BERNOULLI_FILL_OF, (self, spread), stream, Inplace(self))
    params = {"p": _check_chance("bernoulli_", float(p)), **stream}
    return call(BERNOULLI_FILL, (self,), params, Inplace(self))


# ---------------------------------------------------------------------------------------------
# Normal with a mean and a deviation for each element


@front(method=False)
def normal(
    mean: Any = 0.0, std: Any = 1.0, size: Any = None, *, generator: Any = None, out: Any = None,
    dtype: DType | None = None, layout: Any = None, device: Any = None,
    requires_grad: bool = False, pin_memory: bool = False,
) -> Any:  # fmt: skip
    """Return normal numbers: ``normal(mean, std)`` with a tensor among them, or with a `size`."""
    tensors = [value for value in (mean, std) if isinstance(value, TensorImpl)]
    if not tensors:
        return _normal_of_size(
            mean, std, size, generator=generator, out=out, dtype=dtype, device=device,
            requires_grad=requires_grad,
        )  # fmt: skip
    for value in tensors:
        require_floating("normal", value.meta.dtype, "normal_kernel_cpu", complex_too=True)
    if isinstance(std, TensorImpl):
        if bool(ops.any(ops.lt(std, 0))):
            what = "normal expects all elements of std >= 0.0"
            raise out_of_range("normal", what, "a negative one")
    else:
        check_std("normal", std)
    return _spread_normal(mean, std, tensors, generator, out)


def _spread_normal(mean: Any, std: Any, tensors: list[Any], generator: Any, out: Any) -> Any:
    """Scale and shift standard normal numbers; half types are computed in float32."""
    shape = broadcast_shapes(*[value.meta.shape for value in tensors], op="normal")
    dtype = tensors[0].meta.dtype
    numbers = randn(
        tuple(shape), dtype=dtype.compute, device=tensors[0].meta.device, generator=generator
    )
    scale, shift = (ops.detach(v) if isinstance(v, TensorImpl) else v for v in (std, mean))
    result = ops.to(ops.add(ops.mul(numbers, scale), shift), dtype)
    return result if out is None else out.copy_(result)


def _normal_of_size(mean: float, std: float, size: Any, **options: Any) -> Any:
    if size is None:
        raise ArgumentTypeError(
            "normal", what="normal() received an invalid combination of arguments",
            expected="a tensor among mean and std, or a size", got="two numbers",
            remedy="pass size=(...)",
        )  # fmt: skip
    check_std("normal", std)
    requires_grad = options.pop("requires_grad")
    made = randn(size=size, **options)
    made.normal_(mean, std, generator=options["generator"])
    return made.requires_grad_() if requires_grad else made


# ---------------------------------------------------------------------------------------------
# Multinomial


def _categories_infer(cdf: TensorMeta, *, samples: int, **_: Any) -> TensorMeta:
    return meta_of((*cdf.shape[:-1], samples), _dtypes.int64, cdf.device)


SAMPLE_CATEGORIES = register(
    OpDef("sample_categories", ("cdf",), batch="random_each", infer=_categories_infer,
          cpu=sampling.sample_categories_cpu, cuda=gpu.sample_categories_cuda, random=True)
)  # fmt: skip


def _check_weights(input: Any, num_samples: int, replacement: bool) -> None:
    meta = input.meta
    if not meta.dtype.is_floating_point:
        raise DTypeError(
            "multinomial", what="multinomial only supports floating-point dtypes for input",
            expected="a floating dtype", got=str(meta.dtype), remedy="convert with .float()",
        )  # fmt: skip
    problem = ""
    if meta.ndim not in (1, 2):
        problem = "prob_dist must be 1 or 2 dim"
    elif num_samples <= 0:
        problem = "cannot sample n_sample <= 0 samples"
    elif not replacement and num_samples > meta.shape[-1]:
        problem = "cannot sample n_sample > prob_dist.size(-1) samples without replacement"
    if problem:
        raise ShapeError(
            "multinomial", what=problem, expected="weights of one or two dimensions",
            got=f"shape {tuple(meta.shape)} and {num_samples} samples",
            remedy="pass replacement=True to draw a category more than once",
        )  # fmt: skip
    weights: Any = input.detach()
    if not bool(ops.all(ops.isfinite(weights))) or bool(ops.any(ops.lt(weights, 0))):
        raise out_of_range(
            "multinomial", "probability tensor contains either `inf`, `nan` or element < 0", "one"
        )
    if bool(ops.any(ops.le(ops.sum(weights, -1), 0))):
        raise out_of_range(
            "multinomial", "invalid multinomial distribution (sum of probabilities <= 0)", "zero"
        )


@front(SAMPLE_CATEGORIES)
def multinomial(
    input: Any, num_samples: int, replacement: bool = False, *, generator: Any = None,
    out: Any = None,
) -> Any:  # fmt: skip
    """Return category indices, sampled in proportion to the weights of each row.

    Parameters
    ----------
    input : Tensor
        Weights, (categories) or (rows, categories); they need not sum to one.
    num_samples : int
        How many to draw from each row.
    replacement : bool
        Whether a category may come more than once.
    """
    require_tensor("multinomial", input)
    _check_weights(input, num_samples, replacement)
    weights = ops.to(input.detach(), _dtypes.float64)
    if not replacement:
        # The first to ring of independent exponential alarms of these rates is a sample, the second
        # one of the remaining categories, and so on.
        rates = ops.empty_like(weights)
        rates.exponential_(generator=generator)
        order = ops.topk(ops.div(weights, rates), num_samples, -1)[1]
        return order if out is None else out.copy_(order)
    sums = ops.cumsum(weights, -1)
    count = num_samples * (weights.meta.numel // max(weights.meta.shape[-1], 1))
    stream = draw("multinomial", generator, weights.meta.device, count, 2)
    return call(SAMPLE_CATEGORIES, (sums,), {"samples": num_samples, **stream}, out)


# ---------------------------------------------------------------------------------------------
# Poisson


def _poisson_cpu(out: TensorImpl, rate: TensorImpl, *, seed: int, offset: int) -> None:
    if sampling.poisson_cpu(out, rate, seed=seed, offset=offset):
        raise out_of_range(
            "poisson", "invalid Poisson rate, expected rate to be non-negative", "a negative one"
        )


POISSON = register(
    OpDef("poisson", ("input",), jvp="zero", batch="random",
          infer=_same, cpu=_poisson_cpu, cuda=gpu.poisson_cuda,
          vjp=lambda g, n: ops.zeros_like(g), random=True)
)  # fmt: skip


@front(POISSON, method=False)
def poisson(input: Any, generator: Any = None) -> Any:
    """Return Poisson counts with the rates of `input`, in its dtype."""
    require_tensor("poisson", input)
    require_floating("poisson", input.meta.dtype, "poisson_cpu")
    # Four words an element: each has a block of its own in every stream.
    stream = draw("poisson", generator, input.meta.device, input.meta.numel, 4)
    return call(POISSON, (input,), stream)
