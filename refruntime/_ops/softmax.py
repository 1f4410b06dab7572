"""softmax, log_softmax, softmin, and their backwards as ops.

Invariants
----------
* Both save their result, not their operand; the backward is one fused op of the gradient and the
  result, which autograd takes apart when it must be differentiated in turn.
* `dtype` converts while the operand is read: no converted copy is made.
"""

from __future__ import annotations

from typing import Any

from refruntime._dispatch import call
from refruntime._dtypes import DType
from refruntime._impl import TensorMeta, meta_of
from refruntime._layout import wrap_dim
from refruntime._ops import samples_reduce as samples
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime._ops.reductions import torch_name
from refruntime.errors import KernelMissingError
from refruntime.kernels import softmax as kernels


def _rule(name: str) -> Any:
    def infer(input: TensorMeta, *, dim: int, dtype: DType | None) -> TensorMeta:
        result = dtype or input.dtype
        if not result.is_floating_point:
            raise KernelMissingError(
                name,
                what=f"\"{name}_lastdim_kernel_impl\" not implemented for '{torch_name(result)}'",
                expected="a floating-point dtype",
                got=str(result),
                remedy="pass dtype=torch.float32, or convert with .float()",
            )
        return meta_of(input.shape, result, input.device)

    return infer


def _backward_infer(input: TensorMeta, result: TensorMeta, *, dim: int) -> TensorMeta:
    return meta_of(result.shape, result.dtype, result.device)


def _softmax_parts(g: Any, y: Any, *, dim: int) -> Any:
    return ops.mul(y, ops.sub(g, ops.sum(ops.mul(g, y), dim, keepdim=True)))


def _log_softmax_parts(g: Any, y: Any, *, dim: int) -> Any:
    return ops.sub(g, ops.mul(ops.exp(y), ops.sum(g, dim, keepdim=True)))


def _softmax_jvp(op: OpDef, primals: Any, tangents: Any, out: Any, params: dict[str, Any]) -> Any:
    # The Jacobian is symmetric.
    return call(SOFTMAX_BACKWARD, (ops.to(tangents[0], out.dtype), out), {"dim": params["dim"]})


def _log_softmax_jvp(
    op: OpDef, primals: Any, tangents: Any, out: Any, params: dict[str, Any]
) -> Any:
    moved = ops.to(tangents[0], out.dtype)
    return ops.sub(moved, ops.sum(ops.mul(moved, ops.exp(out)), params["dim"], keepdim=True))


SOFTMAX_BACKWARD = register(
    OpDef("softmax_backward", ("grad", "result"), batch="along", infer=_backward_infer,
          cpu=kernels.softmax_backward_cpu, cuda=kernels.softmax_backward_cuda,
          decomposition=_softmax_parts)
)  # fmt: skip
LOG_SOFTMAX_BACKWARD = register(
    OpDef("log_softmax_backward", ("grad", "result"), batch="along", infer=_backward_infer,
          cpu=kernels.log_softmax_backward_cpu, cuda=kernels.log_softmax_backward_cuda,
          decomposition=_log_softmax_parts)
)  # fmt: skip

SOFTMAX = register(
    OpDef("softmax", ("input",), jvp=_softmax_jvp, batch="along", **samples.SOFTMAX,
          infer=_rule("softmax"), cpu=kernels.softmax_cpu,
          cuda=kernels.softmax_cuda, saves=("out",),
          vjp=lambda g, n: call(SOFTMAX_BACKWARD, (g, n.out), {"dim": n.dim}), autocast="float32")
)  # fmt: skip
LOG_SOFTMAX = register(
    OpDef("log_softmax", ("input",), jvp=_log_softmax_jvp, batch="along", **samples.LOG_SOFTMAX,
          infer=_rule("log_softmax"), cpu=kernels.log_softmax_cpu,
          cuda=kernels.log_softmax_cuda,
          saves=("out",), autocast="float32",
          vjp=lambda g, n: call(LOG_SOFTMAX_BACKWARD, (g, n.out), {"dim": n.dim}))
)  # fmt: skip


def _params(op: str, input: Any, dim: Any, dtype: DType | None) -> dict[str, Any]:
    require_tensor(op, input)
    if dim is None:
        # The implicit choice of torch.nn.functional, deprecated there too.
        dim = 0 if input.meta.ndim in (0, 1, 3) else 1
    return {"dim": wrap_dim(dim, input.meta.ndim, op), "dtype": dtype}


@front(SOFTMAX)
def softmax(
    input: Any, dim: int | None = None, dtype: DType | None = None, *, out: Any = None
) -> Any:
    """Return ``exp(input) / sum(exp(input))`` over `dim`, computed in `dtype` if given."""
    return call(SOFTMAX, (input,), _params("softmax", input, dim, dtype), out)


@front(LOG_SOFTMAX)
def log_softmax(
    input: Any, dim: int | None = None, dtype: DType | None = None, *, out: Any = None
) -> Any:
    """Return the logarithm of ``softmax(input, dim)``."""
    return call(LOG_SOFTMAX, (input,), _params("log_softmax", input, dim, dtype), out)


@front(method=False)
def softmin(input: Any, dim: int | None = None, dtype: DType | None = None) -> Any:
    """Return ``softmax(-input, dim)``."""
    return softmax(ops.neg(input), dim, dtype)
