"""Pooling: maxima and means over windows, with fixed windows or fixed output sizes."""

from __future__ import annotations

from typing import Any

from refruntime.nn import functional
from refruntime.nn.modules.module import Module

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "LPPool1d",
    "LPPool2d",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
]


class _MaxPool(Module):
    """Maximum over each window.

    Parameters
    ----------
    kernel_size : int or tuple of int
        The window.
    stride : int or tuple of int, optional
        By default the kernel size.
    padding : int or tuple of int
        Minus infinity on both sides.
    dilation : int or tuple of int
        Distance of the elements of a window.
    return_indices : bool
        Also return where the maxima stand.
    ceil_mode : bool
        Round the output size up.
    """

    n_dims: int

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        return_indices: bool = False, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride if stride is not None else kernel_size
        self.padding = padding
        self.dilation = dilation
        self.return_indices = return_indices
        self.ceil_mode = ceil_mode

    def forward(self, input: Any) -> Any:
        """Pool the last dimensions."""
        pool = getattr(functional, f"max_pool{self.n_dims}d")
        return pool(
            input, self.kernel_size, self.stride, self.padding, self.dilation,
            ceil_mode=self.ceil_mode, return_indices=self.return_indices,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class MaxPool1d(_MaxPool):
    """Maximum over windows of one dimension; see `MaxPool2d` for the parameters."""

    n_dims = 1


class MaxPool2d(_MaxPool):  # noqa: D101 - the base's
    __doc__ = _MaxPool.__doc__

    n_dims = 2


class MaxPool3d(_MaxPool):
    """Maximum over windows of three dimensions; see `MaxPool2d` for the parameters."""

    n_dims = 3


class AvgPool1d(Module):
    """Mean over windows of one dimension; see `AvgPool2d` for the parameters."""

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = (kernel_size,) if isinstance(kernel_size, int) else tuple(kernel_size)
        step = stride if stride is not None else self.kernel_size
        self.stride = (step,) if isinstance(step, int) else tuple(step)
        self.padding = (padding,) if isinstance(padding, int) else tuple(padding)
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad

    def forward(self, input: Any) -> Any:
        """Pool the last dimension."""
        return functional.avg_pool1d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class _AvgPool(Module):
    """Mean over each window.

    Parameters
    ----------
    kernel_size : int or tuple of int
        The window.
    stride : int or tuple of int, optional
        By default the kernel size.
    padding : int or tuple of int
        Zeros on both sides.
    ceil_mode : bool
        Round the output size up.
    count_include_pad : bool
        Whether the padding counts in the mean.
    divisor_override : int, optional
        What the sum is divided by.
    """

    n_dims: int

    def __init__(
        self, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = stride if stride is not None else kernel_size
        self.padding = padding
        self.ceil_mode = ceil_mode
        self.count_include_pad = count_include_pad
        self.divisor_override = divisor_override

    def forward(self, input: Any) -> Any:
        """Pool the last dimensions."""
        return getattr(functional, f"avg_pool{self.n_dims}d")(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AvgPool2d(_AvgPool):  # noqa: D101 - the base's
    __doc__ = _AvgPool.__doc__

    n_dims = 2


class AvgPool3d(_AvgPool):
    """Mean over windows of three dimensions; see `AvgPool2d` for the parameters."""

    n_dims = 3


class _LPPool(Module):
    """The p-norm of each window: the p-th root of the sum of p-th powers.

    Parameters
    ----------
    norm_type : float
        p.
    kernel_size, stride : int or tuple of int
        The window and its step (by default the window).
    ceil_mode : bool
        Round the output size up.
    """

    n_dims: int

    def __init__(
        self, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False
    ) -> None:
        super().__init__()
        self.norm_type = norm_type
        self.kernel_size = kernel_size
        self.stride = stride
        self.ceil_mode = ceil_mode

    def forward(self, input: Any) -> Any:
        """Pool the last dimensions."""
        pool = getattr(functional, f"lp_pool{self.n_dims}d")
        return pool(input, float(self.norm_type), self.kernel_size, self.stride, self.ceil_mode)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return (
            f"norm_type={self.norm_type}, kernel_size={self.kernel_size}, stride={self.stride}, "
            f"ceil_mode={self.ceil_mode}"
        )


class LPPool1d(_LPPool):
    """The p-norm of windows of one dimension; see `LPPool2d` for the parameters."""

    n_dims = 1


class LPPool2d(_LPPool):  # noqa: D101 - the base's
    __doc__ = _LPPool.__doc__

    n_dims = 2


class _Adaptive(Module):
    """Pooling to a given output size, with windows as even as they can be.

    Parameters
    ----------
    output_size : int, None or tuple of them
        None keeps the size of the input.
    """

    function: str

    def __init__(self, output_size: Any) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, input: Any) -> Any:
        """Pool the last dimensions."""
        return getattr(functional, self.function)(input, self.output_size)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        return f"output_size={self.output_size}"


class AdaptiveAvgPool1d(_Adaptive):
    """Means over as many windows as the output size says; see `AdaptiveAvgPool2d`."""

    function = "adaptive_avg_pool1d"


class AdaptiveAvgPool2d(_Adaptive):  # noqa: D101 - the base's
    __doc__ = _Adaptive.__doc__

    function = "adaptive_avg_pool2d"


class AdaptiveAvgPool3d(_Adaptive):
    """Means over as many windows as the output size says; see `AdaptiveAvgPool2d`."""

    function = "adaptive_avg_pool3d"


class _AdaptiveMax(_Adaptive):
    """Maxima over as many windows as the output size says.

    Parameters
    ----------
    output_size : int, None or tuple of them
        None keeps the size of the input.
    return_indices : bool
        Also return where the maxima stand.
    """

    def __init__(self, output_size: Any, return_indices: bool = False) -> None:
        super().__init__(output_size)
        self.return_indices = return_indices

    def forward(self, input: Any) -> Any:
        """Pool the last dimensions."""
        return getattr(functional, self.function)(input, self.output_size, self.return_indices)


class AdaptiveMaxPool1d(_AdaptiveMax):
    """Maxima over as many windows as the output size says; see `AdaptiveMaxPool2d`."""

    function = "adaptive_max_pool1d"


class AdaptiveMaxPool2d(_AdaptiveMax):  # noqa: D101 - the base's
    __doc__ = _AdaptiveMax.__doc__

    function = "adaptive_max_pool2d"


class AdaptiveMaxPool3d(_AdaptiveMax):
    """Maxima over as many windows as the output size says; see `AdaptiveMaxPool2d`."""

    function = "adaptive_max_pool3d"
