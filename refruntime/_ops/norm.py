"""Normalisation ops: layer_norm, rms_norm, group_norm, batch_norm, instance_norm.

Invariants
----------
* A forward op also returns its statistics, which carry no gradient; its backward is one fused op.
  When the backward must be differentiated itself, autograd runs its parts, which compute the
  statistics anew from the operand so that their dependence on it is seen.
* `batch_norm` and `instance_norm` write the running statistics in place after the forward.
"""

from __future__ import annotations

from typing import Any

from refruntime._dispatch import call
from refruntime._dtypes import finfo
from refruntime._impl import TensorMeta, meta_of
from refruntime._ops import samples_nn as samples
from refruntime._ops.arguments import ints_of
from refruntime._ops.opdef import OpDef, front, ops, register, require_tensor
from refruntime.errors import ArgumentValueError, DTypeError, ShapeError
from refruntime.kernels import batch_norm as batch_kernels
from refruntime.kernels import norm as kernels
from refruntime.kernels import norm_cuda as gpu

Metas = tuple[TensorMeta, ...]


def _check_float(op: str, meta: TensorMeta) -> None:
    if not meta.dtype.is_floating_point:
        raise DTypeError(
            op, expected="a floating-point tensor", got=str(meta.dtype),
            remedy="convert it with .float()",
        )  # fmt: skip


def _shaped(meta: TensorMeta, *shape: int) -> TensorMeta:
    return meta_of(shape, meta.dtype.compute, meta.device)


def _mean_rstd(x: Any, dims: Any, eps: float) -> tuple[Any, Any]:
    mean = ops.mean(x, dims, keepdim=True)
    variance = ops.mean(ops.square(ops.sub(x, mean)), dims, keepdim=True)
    return mean, ops.rsqrt(ops.add(variance, eps))


def _normalised_gradient(h: Any, xhat: Any, rstd: Any, dims: Any) -> Any:
    """Return ``rstd (h - mean(h) - xhat mean(h xhat))``."""
    along = ops.mean(ops.mul(h, xhat), dims, keepdim=True)
    rest = ops.sub(ops.sub(h, ops.mean(h, dims, keepdim=True)), ops.mul(xhat, along))
    return ops.mul(rest, rstd)


# ---------------------------------------------------------------------------------------------
# layer_norm and rms_norm


def _layer_norm_infer(input: TensorMeta, weight: Any, bias: Any, *, n: int, eps: float) -> Metas:
    _check_float("layer_norm", input)
    rows = _shaped(input, input.numel // n if n else 0)
    return meta_of(input.shape, input.dtype, input.device), rows, rows


def _layer_norm_vjp(g: Any, n: Any) -> Any:
    affine = n.metas[1] is not None or n.metas[2] is not None
    params = {"n": n.n, "eps": n.eps, "affine": affine}
    gx, gw, gb = call(LAYER_NORM_BACKWARD, (g[0], n.input, n.out1, n.out2, n.weight), params)
    return gx, _like(gw, n.metas[1]), _like(gb, n.metas[2])


def _like(g: Any, meta: TensorMeta | None) -> Any:
    return None if meta is None else ops.reshape(g, meta.shape)


def _affine_metas(input: TensorMeta, width: int, affine: bool) -> Metas:
    parameter = _shaped(input, width if affine else 0)
    return meta_of(input.shape, input.dtype, input.device), parameter, parameter


def _layer_norm_backward_infer(
    grad: TensorMeta, input: TensorMeta, mean: Any, rstd: Any, weight: Any, *, n: int, eps: float,
    affine: bool,
) -> Metas:  # fmt: skip
    return _affine_metas(input, n, affine)


def _layer_norm_parts(
    g: Any, x: Any, mean: Any, rstd: Any, weight: Any, *, n: int, eps: float, affine: bool
) -> Any:
    rows_g, rows_x = ops.reshape(g, (-1, n)), ops.reshape(x, (-1, n))
    mean, rstd = _mean_rstd(rows_x, 1, eps)
    xhat = ops.mul(ops.sub(rows_x, mean), rstd)
    h = rows_g if weight is None else ops.mul(rows_g, ops.reshape(weight, (n,)))
    gx = ops.reshape(_normalised_gradient(h, xhat, rstd, 1), x.shape)
    if not affine:
        return gx, None, None
    return gx, ops.sum(ops.mul(rows_g, xhat), 0), ops.sum(rows_g, 0)


def _kernel_of(kernel: Any) -> Any:
    """Drop `eps`, which only the parts of a backward read."""

    def run(out: Any, *inputs: Any, eps: float, **params: Any) -> None:
        kernel(out, *inputs, **params)

    return run


LAYER_NORM = register(
    OpDef("layer_norm", ("input", "weight", "bias"), batch="layer_norm", **samples.LAYER_NORM,
          backward_name="NativeLayerNormBackward0", infer=_layer_norm_infer,
          cpu=kernels.layer_norm_cpu, cuda=gpu.layer_norm_cuda, vjp=_layer_norm_vjp,
          saves=("input", "weight", "out1", "out2"), nondiff_outputs=(1, 2), autocast="float32")
)  # fmt: skip
LAYER_NORM_BACKWARD = register(
    OpDef("layer_norm_backward", ("grad", "input", "mean", "rstd", "weight"),
          infer=_layer_norm_backward_infer, cpu=_kernel_of(kernels.layer_norm_backward_cpu),
          cuda=_kernel_of(gpu.layer_norm_backward_cuda),
          decomposition=_layer_norm_parts)
)  # fmt: skip


def _normalized_size(op: str, input: Any, normalized_shape: Any, *parameters: Any) -> int:
    require_tensor(op, input)
    shape = ints_of(op, "normalized_shape", normalized_shape)
    if not shape or tuple(input.meta.shape[-len(shape) :]) != shape:
        raise ShapeError(
            op,
            what=f"Given normalized_shape={list(shape)}, expected input with shape "
            f"[*, {', '.join(map(str, shape))}], but got input of size{list(input.meta.shape)}",
            expected=f"an input that ends in {shape}",
            got=str(tuple(input.meta.shape)),
            remedy="check normalized_shape",
        )
    for parameter in parameters:
        if parameter is not None and tuple(parameter.meta.shape) != shape:
            raise ShapeError(
                op,
                what=f"Expected weight to be of same shape as normalized_shape, but got weight of "
                f"shape {list(parameter.meta.shape)} and normalized_shape = {list(shape)}",
                expected=str(shape),
                got=str(tuple(parameter.meta.shape)),
                remedy="make the parameter of the normalized shape",
            )
    size = 1
    for extent in shape:
        size *= extent
    return size


@front(LAYER_NORM, method=False)
def layer_norm(
    input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enable: bool = True,
) -> Any:  # fmt: skip
    """Normalise over the last dimensions, whose sizes are `normalized_shape`."""
    size = _normalized_size("layer_norm", input, normalized_shape, weight, bias)
    return call(LAYER_NORM, (input, weight, bias), {"n": size, "eps": float(eps)})[0]


def _rms_norm_infer(input: TensorMeta, weight: Any, *, n: int, eps: float) -> Metas:
    _check_float("rms_norm", input)
    rows = _shaped(input, input.numel // n if n else 0)
    return meta_of(input.shape, input.dtype, input.device), rows


def _rms_norm_vjp(g: Any, n: Any) -> Any:
    params = {"n": n.n, "eps": n.eps, "affine": n.metas[1] is not None}
    gx, gw = call(RMS_NORM_BACKWARD, (g[0], n.input, n.out1, n.weight), params)
    return gx, _like(gw, n.metas[1])


def _rms_norm_backward_infer(
    grad: TensorMeta, input: TensorMeta, rstd: Any, weight: Any, *, n: int, eps: float, affine: bool
) -> Metas:
    return _affine_metas(input, n, affine)[:2]


def _rms_norm_parts(
    g: Any, x: Any, rstd: Any, weight: Any, *, n: int, eps: float, affine: bool
) -> Any:
    rows_g, rows_x = ops.reshape(g, (-1, n)), ops.reshape(x, (-1, n))
    rstd = ops.rsqrt(ops.add(ops.mean(ops.square(rows_x), 1, keepdim=True), eps))
    xhat = ops.mul(rows_x, rstd)
    h = rows_g if weight is None else ops.mul(rows_g, ops.reshape(weight, (n,)))
    along = ops.mean(ops.mul(h, xhat), 1, keepdim=True)
    gx = ops.reshape(ops.mul(ops.sub(h, ops.mul(xhat, along)), rstd), x.shape)
    return gx, ops.sum(ops.mul(rows_g, xhat), 0) if affine else None


RMS_NORM = register(
    OpDef("rms_norm", ("input", "weight"), batch="layer_norm", **samples.RMS_NORM,
          infer=_rms_norm_infer, cpu=kernels.rms_norm_cpu,
          cuda=gpu.rms_norm_cuda,
          vjp=_rms_norm_vjp, saves=("input", "weight", "out1"), nondiff_outputs=(1,),
          autocast="float32")
)  # fmt: skip
RMS_NORM_BACKWARD = register(
    OpDef("rms_norm_backward", ("grad", "input", "rstd", "weight"), infer=_rms_norm_backward_infer,
          cpu=_kernel_of(kernels.rms_norm_backward_cpu),
          cuda=_kernel_of(gpu.rms_norm_backward_cuda), decomposition=_rms_norm_parts)
)  # fmt: skip


@front(RMS_NORM, method=False)
def rms_norm(
    input: Any, normalized_shape: Any, weight: Any = None, eps: float | None = None
) -> Any:
    """Divide by the root mean square over the last dimensions; `eps` defaults to the dtype's."""
    size = _normalized_size("rms_norm", input, normalized_shape, weight)
    epsilon = finfo(input.meta.dtype.compute).eps if eps is None else eps
    return call(RMS_NORM, (input, weight), {"n": size, "eps": float(epsilon)})[0]


# ---------------------------------------------------------------------------------------------
# group_norm


def _group_norm_infer(
    input: TensorMeta, weight: Any, bias: Any, *, groups: int, eps: float
) -> Metas:
    _check_float("group_norm", input)
    rows = _shaped(input, input.shape[0] * groups)
    return meta_of(input.shape, input.dtype, input.device), rows, rows


def _group_norm_vjp(g: Any, n: Any) -> Any:
    affine = n.metas[1] is not None or n.metas[2] is not None
    params = {"groups": n.groups, "eps": n.eps, "affine": affine}
    gx, gw, gb = call(GROUP_NORM_BACKWARD, (g[0], n.input, n.out1, n.out2, n.weight), params)
    return gx, _like(gw, n.metas[1]), _like(gb, n.metas[2])


def _group_norm_backward_infer(
    grad: TensorMeta, input: TensorMeta, mean: Any, rstd: Any, weight: Any, *, groups: int,
    eps: float, affine: bool,
) -> Metas:  # fmt: skip
    return _affine_metas(input, input.shape[1], affine)


def _group_norm_parts(
    g: Any, x: Any, mean: Any, rstd: Any, weight: Any, *, groups: int, eps: float, affine: bool
) -> Any:
    batch, channels = x.shape[:2]
    planes = (batch, groups, channels // groups, -1)
    g4, x4 = ops.reshape(g, planes), ops.reshape(x, planes)
    mean, rstd = _mean_rstd(x4, (2, 3), eps)
    xhat = ops.mul(ops.sub(x4, mean), rstd)
    h = g4 if weight is None else ops.mul(g4, ops.reshape(weight, (1, *planes[1:3], 1)))
    gx = ops.reshape(_normalised_gradient(h, xhat, rstd, (2, 3)), x.shape)
    if not affine:
        return gx, None, None
    gw = ops.reshape(ops.sum(ops.mul(g4, xhat), (0, 3)), (channels,))
    return gx, gw, ops.reshape(ops.sum(g4, (0, 3)), (channels,))


GROUP_NORM = register(
    OpDef("group_norm", ("input", "weight", "bias"), batch="group_norm", **samples.GROUP_NORM,
          backward_name="NativeGroupNormBackward0", infer=_group_norm_infer,
          cpu=kernels.group_norm_cpu, cuda=gpu.group_norm_cuda, vjp=_group_norm_vjp,
          saves=("input", "weight", "out1", "out2"), nondiff_outputs=(1, 2), autocast="float32")
)  # fmt: skip
GROUP_NORM_BACKWARD = register(
    OpDef("group_norm_backward", ("grad", "input", "mean", "rstd", "weight"),
          infer=_group_norm_backward_infer, cpu=_kernel_of(kernels.group_norm_backward_cpu),
          cuda=_kernel_of(gpu.group_norm_backward_cuda),
          decomposition=_group_norm_parts)
)  # fmt: skip


@front(GROUP_NORM, method=False)
def group_norm(
    input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5,
    cudnn_enabled: bool = True,
) -> Any:  # fmt: skip
    """Normalise each of `num_groups` groups of channels of each sample."""
    require_tensor("group_norm", input)
    if input.meta.ndim < 2 or num_groups < 1 or input.meta.shape[1] % num_groups:
        raise ShapeError(
            "group_norm",
            what="Expected number of channels in input to be divisible by num_groups, but got "
            f"input of shape {list(input.meta.shape)} and num_groups={num_groups}",
            expected="[N, C, ...] with C a multiple of num_groups",
            got=str(tuple(input.meta.shape)),
            remedy="choose num_groups that divides the channels",
        )
    _check_channels("group_norm", input, weight, bias)
    return call(GROUP_NORM, (input, weight, bias), {"groups": num_groups, "eps": float(eps)})[0]


def _check_channels(op: str, input: Any, *parameters: Any) -> None:
    if input.meta.ndim < 2:
        raise ShapeError(
            op, what=f"expected at least 2 dimensions, got {input.meta.ndim}",
            expected="[N, C, ...]", got=str(tuple(input.meta.shape)),
            remedy="add a batch dimension",
        )  # fmt: skip
    channels = input.meta.shape[1]
    for parameter in parameters:
        if parameter is not None and parameter.meta.numel != channels:
            raise ShapeError(
                op,
                what=f"a parameter should contain {channels} elements not {parameter.meta.numel}",
                expected=f"one element for each of the {channels} channels",
                got=str(tuple(parameter.meta.shape)),
                remedy="check the layer's number of channels",
            )


# ---------------------------------------------------------------------------------------------
# batch_norm and instance_norm


def _batch_norm_infer(
    input: TensorMeta, weight: Any, bias: Any, running_mean: Any, running_var: Any, *,
    training: bool, eps: float,
) -> Metas:  # fmt: skip
    _check_float("batch_norm", input)
    row = _shaped(input, input.shape[1])
    return meta_of(input.shape, input.dtype, input.device), row, row, row


def _batch_norm_vjp(g: Any, n: Any) -> Any:
    affine = n.metas[1] is not None or n.metas[2] is not None
    params = {"training": n.training, "eps": n.eps, "affine": affine}
    operands = (g[0], n.input, n.weight, n.out1, n.out2)
    gx, gw, gb = call(BATCH_NORM_BACKWARD, operands, params)
    return gx, _like(gw, n.metas[1]), _like(gb, n.metas[2]), None, None


def _batch_norm_backward_infer(
    grad: TensorMeta, input: TensorMeta, weight: Any, mean: Any, rstd: Any, *, training: bool,
    eps: float, affine: bool,
) -> Metas:  # fmt: skip
    return _affine_metas(input, input.shape[1], affine)


def _batch_norm_parts(
    g: Any, x: Any, weight: Any, mean: Any, rstd: Any, *, training: bool, eps: float, affine: bool
) -> Any:
    dims = (0, *range(2, x.ndim))
    row = (1, x.shape[1], *(1 for _ in x.shape[2:]))
    if training:
        mean, rstd = _mean_rstd(x, dims, eps)
    else:
        mean, rstd = ops.reshape(mean, row), ops.reshape(rstd, row)
    xhat = ops.mul(ops.sub(x, mean), rstd)
    h = g if weight is None else ops.mul(g, ops.reshape(weight, row))
    gx = _normalised_gradient(h, xhat, rstd, dims) if training else ops.mul(h, rstd)
    if not affine:
        return gx, None, None
    return gx, ops.sum(ops.mul(g, xhat), dims), ops.sum(g, dims)


BATCH_NORM = register(
    OpDef("batch_norm", ("input", "weight", "bias", "running_mean", "running_var"),
          batch="batch_norm", **samples.BATCH_NORM, backward_name="NativeBatchNormBackward0",
          infer=_batch_norm_infer, cpu=batch_kernels.batch_norm_cpu,
          cuda=gpu.batch_norm_cuda, vjp=_batch_norm_vjp,
          saves=("input", "weight", "out1", "out2"), nondiff_outputs=(1, 2, 3))
)  # fmt: skip
BATCH_NORM_BACKWARD = register(
    OpDef("batch_norm_backward", ("grad", "input", "weight", "mean", "rstd"),
          infer=_batch_norm_backward_infer, cpu=_kernel_of(batch_kernels.batch_norm_backward_cpu),
          cuda=_kernel_of(gpu.batch_norm_backward_cuda),
          decomposition=_batch_norm_parts)
)  # fmt: skip


@front(BATCH_NORM, method=False)
def batch_norm(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None,
    bias: Any = None, training: bool = False, momentum: float | None = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Normalise each channel over the batch, or by the running statistics.

    In training the running statistics, if given, move towards those of the batch by `momentum`, in
    place.
    """
    require_tensor("batch_norm", input)
    if input.meta.ndim < 2 and not input.meta.numel:
        return ops.clone(input)
    _check_channels("batch_norm", input, running_mean, running_var, weight, bias)
    if training:
        _check_several(input)
    elif running_mean is None or running_var is None:
        raise ShapeError(
            "batch_norm", what="Expected running_mean and running_var to be defined when "
            "training=False", expected="running statistics", got="None",
            remedy="pass training=True, or keep statistics with track_running_stats=True",
        )  # fmt: skip
    operands = (input, weight, bias, running_mean, running_var)
    params = {"training": bool(training), "eps": float(eps)}
    out, mean, _, variance = call(BATCH_NORM, operands, params)
    if training:
        move_towards(running_mean, mean, momentum)
        move_towards(running_var, variance, momentum)
    return out


def move_towards(running: Any, value: Any, momentum: float | None) -> None:
    """Move a running statistic towards a new value, in place and outside the graph."""
    if running is not None and momentum is not None:
        ops.lerp_(ops.detach(running), ops.to(value, running.meta.dtype), float(momentum))


def _check_several(input: Any) -> None:
    channels = input.meta.shape[1]
    if input.meta.numel <= channels:
        raise ArgumentValueError(
            "batch_norm",
            what="Expected more than 1 value per channel when training, got input size "
            f"torch.Size({list(input.meta.shape)})",
            expected="more than one value a channel",
            got=str(tuple(input.meta.shape)),
            remedy="use a larger batch, or eval()",
        )


@front(GROUP_NORM, method=False)
def instance_norm(
    input: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None,
    bias: Any = None, use_input_stats: bool = True, momentum: float | None = 0.1,
    eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Normalise each channel of each sample by itself, or by the running statistics."""
    require_tensor("instance_norm", input)
    _check_channels("instance_norm", input, running_mean, running_var, weight, bias)
    if not use_input_stats:
        return batch_norm(input, running_mean, running_var, weight, bias, False, momentum, eps)
    params = {"groups": input.meta.shape[1], "eps": float(eps)}
    out, mean, rstd = call(GROUP_NORM, (input, weight, bias), params)
    if running_mean is not None or running_var is not None:
        _track_instances(input, running_mean, running_var, mean, rstd, momentum, eps)
    return out


def _track_instances(
    input: Any, running_mean: Any, running_var: Any, mean: Any, rstd: Any, momentum: Any, eps: float
) -> None:
    batch, channels = input.meta.shape[:2]
    count = input.meta.numel // max(1, batch * channels)
    table = (batch, channels)
    move_towards(running_mean, ops.mean(ops.reshape(mean, table), 0), momentum)
    variance = ops.sub(ops.reciprocal(ops.square(ops.reshape(rstd, table))), eps)
    unbiased = ops.mul(variance, count / (count - 1)) if count > 1 else variance
    move_towards(running_var, ops.mean(unbiased, 0), momentum)
