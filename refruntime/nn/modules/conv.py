"""Convolutions over one, two and three dimensions, and their transposes."""

from __future__ import annotations

import math
from typing import Any

from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError
from refruntime.nn import functional, init
from refruntime.nn.modules.module import Module
from refruntime.nn.parameter import Parameter

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
]

Sizes = int | tuple[int, ...]
_PADDING_MODES = ("zeros", "reflect", "replicate", "circular")


def repeated(value: Any, n: int) -> tuple[int, ...]:
    """Return a tuple of n sizes from one size or a tuple of them."""
    return tuple(value) if isinstance(value, (tuple, list)) else (value,) * n


class _ConvNd(Module):
    """What all convolutions share: settings, parameters, first values, printed form."""

    n_dims: int
    transposed = False
    bias: Any

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes,
        padding: Any, dilation: Sizes, output_padding: Sizes, groups: int, bias: bool,
        padding_mode: str, device: Any, dtype: Any,
    ) -> None:  # fmt: skip
        super().__init__()
        n = self.n_dims
        self.in_channels = in_channels
        self.out_channels = out_channels
        self.kernel_size = repeated(kernel_size, n)
        self.stride = repeated(stride, n)
        self.padding: Any = padding if isinstance(padding, str) else repeated(padding, n)
        self.dilation = repeated(dilation, n)
        self.output_padding = repeated(output_padding, n)
        self.groups = groups
        self.padding_mode = padding_mode
        self._check()
        self._reversed_padding_repeated_twice = self._explicit_padding()
        ends = (in_channels, out_channels // groups)
        if not self.transposed:
            ends = (out_channels, in_channels // groups)
        self.weight = Parameter(ops.empty((*ends, *self.kernel_size), device=device, dtype=dtype))
        if bias:
            self.bias = Parameter(ops.empty((out_channels,), device=device, dtype=dtype))
        else:
            self.register_parameter("bias", None)
        self.reset_parameters()

    def _check(self) -> None:
        name = type(self).__name__
        if self.groups <= 0:
            raise ArgumentValueError(name, what="groups must be a positive integer")
        if self.in_channels % self.groups:
            raise ArgumentValueError(name, what="in_channels must be divisible by groups")
        if self.out_channels % self.groups:
            raise ArgumentValueError(name, what="out_channels must be divisible by groups")
        if isinstance(self.padding, str):
            if self.padding not in ("same", "valid"):
                raise ArgumentValueError(
                    name, what=f"Invalid padding string {self.padding!r}",
                    expected="'same' or 'valid'",
                )  # fmt: skip
            if self.padding == "same" and any(s != 1 for s in self.stride):
                raise ArgumentValueError(
                    name, what="padding='same' is not supported for strided convolutions"
                )
        if self.padding_mode not in _PADDING_MODES:
            raise ArgumentValueError(
                name, what=f"padding_mode must be one of {_PADDING_MODES}",
                got=f"padding_mode='{self.padding_mode}'",
            )  # fmt: skip

    def _explicit_padding(self) -> list[int]:
        """Return the padding as `functional.pad` takes it: last dimension first, both sides."""
        if isinstance(self.padding, str):
            if self.padding == "valid":
                return [0, 0] * self.n_dims
            sides = []
            pairs = list(zip(self.dilation, self.kernel_size, strict=True))
            for dilation, kernel in reversed(pairs):
                total = dilation * (kernel - 1)
                sides += [total // 2, total - total // 2]
            return sides
        return [side for size in reversed(self.padding) for side in (size, size)]

    def reset_parameters(self) -> None:
        """Draw new first values: both parameters uniform on ±1 / sqrt(fan in)."""
        init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            fan_in, _ = init._calculate_fan_in_and_fan_out(self.weight)
            if fan_in != 0:
                init.uniform_(self.bias, -1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in))

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        parts = [
            f"{self.in_channels}, {self.out_channels}",
            f"kernel_size={self.kernel_size}, stride={self.stride}",
        ]
        n = self.n_dims
        plain = self.padding == (0,) * n
        if not plain:
            parts.append(f"padding={self.padding}")
        for name, default in (("dilation", 1), ("output_padding", 0)):
            if getattr(self, name) != (default,) * n:
                parts.append(f"{name}={getattr(self, name)}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        if self.padding_mode != "zeros":
            parts.append(f"padding_mode={self.padding_mode}")
        return ", ".join(parts)


class _Convolution(_ConvNd):
    """A convolution: y[o] = bias[o] + sum over i of weight[o, i] correlated with x[i].

    Parameters
    ----------
    in_channels, out_channels : int
        Channels (dimension 1) of input and output.
    kernel_size, stride, padding, dilation : int or tuple of int
        Of each spatial dimension; `padding` may be ``same`` or ``valid``.
    groups : int
        How many groups of channels are kept apart.
    bias : bool
        Whether a bias is added.
    padding_mode : str
        ``zeros``, ``reflect``, ``replicate`` or ``circular``.
    device, dtype : optional
        Of the parameters.
    """

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
        padding: Any = 0, dilation: Sizes = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, 0, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip

    def _convolve(self, name: str, input: Any, weight: Any, bias: Any) -> Any:
        padding: Any = self.padding
        if self.padding_mode != "zeros":
            input = functional.pad(
                input, self._reversed_padding_repeated_twice, mode=self.padding_mode
            )
            padding = (0,) * self.n_dims
        return getattr(functional, name)(
            input, weight, bias, self.stride, padding, self.dilation, self.groups
        )

    def _conv_forward(self, input: Any, weight: Any, bias: Any) -> Any:
        return self._convolve(f"conv{self.n_dims}d", input, weight, bias)

    def forward(self, input: Any) -> Any:
        """Convolve the input, shaped (batch, channels, ...) or (channels, ...)."""
        return self._conv_forward(input, self.weight, self.bias)


class Conv1d(_Convolution):
    """Convolution over one dimension; see `Conv2d` for the parameters."""

    n_dims = 1


class Conv2d(_Convolution):  # noqa: D101 - the base's
    __doc__ = _Convolution.__doc__

    n_dims = 2


class Conv3d(_Convolution):
    """Convolution over three dimensions; see `Conv2d` for the parameters."""

    n_dims = 3


class _Transposed(_ConvNd):
    """The transpose (gradient) of a convolution, which upsamples by its stride.

    Parameters
    ----------
    in_channels, out_channels : int
        Channels (dimension 1) of input and output.
    kernel_size, stride, padding, dilation : int or tuple of int
        Those of the convolution that this transposes.
    output_padding : int or tuple of int
        Added to one side of the output, which the stride leaves open.
    groups : int
        How many groups of channels are kept apart.
    bias : bool
        Whether a bias is added.
    padding_mode : str
        ``zeros`` only.
    device, dtype : optional
        Of the parameters.
    """

    transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Sizes, stride: Sizes = 1,
        padding: Sizes = 0, output_padding: Sizes = 0, groups: int = 1, bias: bool = True,
        dilation: Sizes = 1, padding_mode: str = "zeros", device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        if padding_mode != "zeros":
            raise ArgumentValueError(
                type(self).__name__, what='Only "zeros" padding mode is supported',
                got=padding_mode,
            )  # fmt: skip
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, output_padding,
            groups, bias, padding_mode, device, dtype,
        )  # fmt: skip

    def forward(self, input: Any, output_size: Any = None) -> Any:
        """Apply the transpose; `output_size` picks one of the sizes that the stride leaves open."""
        extra = self._output_padding(input, output_size)
        return getattr(functional, f"conv_transpose{self.n_dims}d")(
            input, self.weight, self.bias, self.stride, self.padding, extra, self.groups,
            self.dilation,
        )  # fmt: skip

    def _output_padding(self, input: Any, output_size: Any) -> tuple[int, ...]:
        if output_size is None:
            return self.output_padding
        n = self.n_dims
        wanted = tuple(output_size)
        wanted = wanted[len(wanted) - n :] if len(wanted) in (n + 1, n + 2) else wanted
        if len(wanted) != n:
            raise ArgumentValueError(
                type(self).__name__, expected=f"{n} sizes in output_size", got=str(len(wanted))
            )
        extra = []
        for d, size in enumerate(input.shape[input.dim() - n :]):
            reach = self.dilation[d] * (self.kernel_size[d] - 1) + 1
            least = (size - 1) * self.stride[d] - 2 * self.padding[d] + reach
            if not least <= wanted[d] < least + self.stride[d]:
                raise ArgumentValueError(
                    type(self).__name__, what=f"requested an output size of {wanted}",
                    expected=f"{least} to {least + self.stride[d] - 1} in dimension {d}",
                    got=str(wanted[d]),
                )  # fmt: skip
            extra.append(wanted[d] - least)
        return tuple(extra)


class ConvTranspose1d(_Transposed):
    """Transposed convolution over one dimension; see `ConvTranspose2d` for the parameters."""

    n_dims = 1


class ConvTranspose2d(_Transposed):  # noqa: D101 - the base's
    __doc__ = _Transposed.__doc__

    n_dims = 2


class ConvTranspose3d(_Transposed):
    """Transposed convolution over three dimensions; see `ConvTranspose2d` for the parameters."""

    n_dims = 3
