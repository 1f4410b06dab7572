"""Batched tensors: one tensor that stands for all samples of a `vmap`.

State
-----
A `VmapLevel` is one running `vmap`: the size of the batch and what random operators do. A
`Batched` tensor holds all samples in one tensor whose first dimension is the batch.

Invariants
----------
* A batched tensor shows the shape, dtype and strides of one sample.
* An op runs once for all samples by the rule that its record names (`generic` and its
  neighbours); one without a rule runs once a sample, with a warning, and its results are stacked.
* Autograd sees the tensors inside: differentiating the whole batch is one backward.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from refruntime._dispatch import call
from refruntime._impl import TensorImpl, TensorMeta, meta_of
from refruntime._ops.opdef import Inplace, OpDef, ops
from refruntime.autograd.levels import Level, Shown, Wrapper, is_wrapper_of, kept, wrapper
from refruntime.autograd.promotion import become, copy_of, promote
from refruntime.errors import AutogradError

RANDOMNESS = ("error", "same", "different")


class VmapLevel(Level):
    """One running `vmap`.

    Parameters
    ----------
    size : int
        The number of samples.
    randomness : {"error", "same", "different"}
        What a random operator does.
    """

    __slots__ = ("randomness", "size", "spreads")

    def __init__(self, size: int, randomness: str = "error") -> None:
        super().__init__()
        self.size = size
        self.randomness = randomness
        # Whether a derivative inside has made batched tensors of such as are none to the program.
        self.spreads = False

    def twin(self) -> VmapLevel:
        """Return another level of the same batch, inside of all that are open."""
        return VmapLevel(self.size, self.randomness)

    def batched(self, value: Any) -> Any:
        """Make the batched tensor of a tensor whose first dimension is the batch."""
        made = wrapper(_Batched, self, sample_meta(value.meta), value)
        made.value = value
        return made

    def lower(self, value: Any) -> Any:
        """Return a tensor with this level's dimension shown in front (expanded if it has none)."""
        if is_wrapper_of(value, self):
            return value.value
        if isinstance(value, Wrapper) and value.level.number > self.number:
            return value.lowered(self)
        return ops.expand(value, (self.size, *value.meta.shape))

    def raise_(self, value: Any) -> Any:
        """Undo `lower`."""
        if isinstance(value, Wrapper) and value.level.number > self.number:
            return value.raised(self)
        return self.batched(value)

    def spread(self, value: Any) -> Any:
        """Return a tensor as one that is batched at this level."""
        self.spreads = self.spreads or not self._is_whole(value)
        return self.raise_(self.lower(value))

    def take_root(self, tensor: Any) -> None:
        """Make a tensor that is no view a batched one, in place."""
        meta, old = tensor.meta, copy_of(tensor)
        span = 1 + sum((n - 1) * s for n, s in zip(meta.shape, meta.strides, strict=True) if n)
        fresh = ops.empty_strided(
            (self.size, *meta.shape), (span, *meta.strides), dtype=meta.dtype, device=meta.device
        )
        become(tensor, self.batched(ops.copy_(fresh, self.lower(old))))

    def take_view(self, tensor: Any, source: Any, show: Callable[[Any], Any]) -> None:
        """Make a tensor a batched one in place: a view of another batched tensor."""
        become(tensor, show(source))

    def _is_whole(self, value: Any) -> bool:
        """Whether all that a tensor stands for is batched at this level."""
        if not isinstance(value, Wrapper) or value.level.number < self.number:
            return False
        return value.level is self or all(map(self._is_whole, value.parts()))

    def is_batched(self, value: Any) -> bool:
        """Whether a tensor differs between samples of this level."""
        if not isinstance(value, Wrapper) or value.level.number < self.number:
            return False
        return value.level is self or any(map(self.is_batched, value.parts()))


def sample_meta(meta: TensorMeta) -> TensorMeta:
    """Return the meta of one sample of a batch."""
    return meta_of(tuple(meta.shape[1:]), meta.dtype, meta.device, tuple(meta.strides[1:]))


class _Batched(Wrapper):
    """All samples of a tensor."""

    kind = "vmap"

    level: VmapLevel
    value: Any

    def run_op(self, op: OpDef, inputs: tuple[Any, ...], params: dict[str, Any], out: Any) -> Any:
        """Run an op for all samples."""
        from refruntime.autograd.batching.rules import run_batched

        level = self.level
        if out is None:
            results = _wrapped(level, run_batched(level, op, inputs, params))
            return results if op.view is None else _shown(results, op, inputs[0], params)
        if isinstance(out, Inplace):
            _require_batched(level, op, out.target)
            target: Any = out.target
            write(target.value, run_batched(level, op, kept(op, inputs, out), params))
            return target
        results = _wrapped(level, run_batched(level, op, inputs, params))
        if isinstance(out, (tuple, list)):
            for target, result in zip(out, results, strict=True):
                ops.copy_(target, result)
        else:
            ops.copy_(out, results)
        return out

    def parts(self) -> tuple[Any, ...]:
        """Return the tensor inside."""
        return (self.value,)

    def mapped(self, function: Callable[[Any], Any]) -> Any:
        """Return the batched tensor of ``function`` of the tensor inside."""
        return self.level.batched(function(self.value))

    def lowered(self, batch: Any) -> Any:
        """Return the batched tensor with the dimension of a lower level shown in front."""
        return self.level.batched(_swapped(batch.lower(self.value)))

    def raised(self, batch: Any) -> Any:
        """Undo `lowered`."""
        return self.level.batched(batch.raise_(_swapped(self.value)))

    def split_at(self, level: Level) -> tuple[Any, Any]:
        """Return primal and tangent at a lower level of forward derivatives."""
        from refruntime.autograd.dual import split

        primal, tangent = split(self.value, level)
        return self.level.batched(primal), None if tangent is None else self.level.batched(tangent)

    def join_at(self, level: Level, primal: Any, tangent: Any) -> Any:
        """Undo `split_at`."""
        from refruntime.autograd.dual import join

        return self.level.batched(join(level, self.level.lower(primal), self.level.lower(tangent)))

    def differentiated(
        self, outputs: list[Any], inputs: list[Any], cotangents: list[Any], below: Any
    ) -> list[Any]:
        """Return the gradients of all samples by one backward of the whole batch."""
        level = self.level
        found = below(
            [level.lower(value) for value in outputs],
            [level.lower(value) for value in inputs],
            [None if c is None else level.lower(c) for c in cotangents],
        )
        return [None if one is None else level.raise_(one) for one in found]

    def array(self) -> Any:
        """Refuse: a batch is not one value."""
        raise AutogradError(
            "vmap",
            what="It looks like you're calling .item() on a Tensor. We don't support vmap over "
            "calling .item() on a Tensor, nor over reading its values in Python",
            expected="operators", got="a value asked for",
            remedy="rewrite what you're doing with operators, for example torch.where for `if`",
        )  # fmt: skip

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"BatchedTensor(lvl={self.level.number}, bdim=0, value=\n    {self.value!r}\n)"


def _swapped(value: Any) -> Any:
    return ops.transpose(value, 0, 1)


def _wrapped(level: VmapLevel, results: Any) -> Any:
    if isinstance(results, tuple):
        return tuple([None if one is None else level.batched(one) for one in results])
    return level.batched(results)


def _shown(results: Any, op: OpDef, source: Any, params: dict[str, Any]) -> Any:
    """Note of views what they are views of."""
    if not isinstance(results, tuple):
        results.origin = (source, Shown(op, params, None))
        return results
    for number, one in enumerate(results):
        one.origin = (source, Shown(op, params, number))
    return results


def _require_batched(level: VmapLevel, op: OpDef, target: Any) -> None:
    if is_wrapper_of(target, level):
        return
    if level.spreads:
        promote(target, level)
    else:
        raise AutogradError(
            "vmap",
            what="vmap: inplace arithmetic(self, *extra_args) is not possible because there exists "
            f"a Tensor `other` in extra_args that has more elements than `self` ({op.name}_)",
            expected="a batched target, since an operand is batched", got="one that is not",
            remedy="use the out-of-place form, or make the target from a batched tensor "
            "(for example with new_zeros or zeros_like)",
        )  # fmt: skip


def write(target: Any, result: Any) -> None:
    """Write the samples of a result into the tensor inside a batched target."""
    if result.meta.shape != target.meta.shape and target.meta.ndim > result.meta.ndim:
        missing = target.meta.ndim - result.meta.ndim
        shape = (result.meta.shape[0], *(1,) * missing, *result.meta.shape[1:])
        result = ops.reshape(result, shape)
    ops.copy_(target, result)


def run_each(
    level: VmapLevel, op: OpDef, inputs: tuple[Any, ...], batched: tuple[bool, ...], params: Any
) -> Any:
    """Run an op once a sample and stack the results."""
    warnings.warn(
        f"There is a performance drop because we have not yet implemented the batching rule for "
        f"{op.name}; it runs once for each of {level.size} samples",
        stacklevel=2,
    )
    rows = []
    for k in range(level.size):
        pairs = zip(inputs, batched, strict=True)
        operands = tuple([ops.select(v, 0, k) if flag else v for v, flag in pairs])
        rows.append(call(op, operands, params))
    if not rows:
        raise AutogradError(
            "vmap", what=f"an empty batch, and no batching rule for {op.name}",
            expected="at least one sample", got="none",
        )  # fmt: skip
    if isinstance(rows[0], tuple):
        return tuple([ops.stack(list(column)) for column in zip(*rows, strict=True)])
    return ops.stack(rows)


def is_tensor(value: Any) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, TensorImpl)
