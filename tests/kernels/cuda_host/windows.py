"""Convolution and pooling in plain NumPy, and their shapes as the kernels take them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np

from tests.kernels.cuda_host.harness import Struct

Pair = tuple[int, int]


def struct(*values: int) -> Struct:
    return Struct(np.array(values, np.int64))


@dataclass(frozen=True)
class Conv:
    """A convolution in as many dimensions as `size` has."""

    batch: int
    in_channels: int
    size: tuple[int, ...]
    out_channels: int
    kernel: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1

    @property
    def steps(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Stride, padding and dilation, defaults filled in."""
        n = len(self.size)
        return self.stride or (1,) * n, self.padding or (0,) * n, self.dilation or (1,) * n

    @property
    def out_size(self) -> tuple[int, ...]:
        spans = zip(self.size, self.kernel, *self.steps, strict=True)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in spans)

    @property
    def shape(self) -> Struct:
        def three(sizes: tuple[int, ...], missing: int) -> tuple[int, ...]:
            return (missing,) * (3 - len(sizes)) + sizes

        stride, padding, dilation = self.steps
        return struct(
            self.batch, self.in_channels, self.out_channels, self.groups, *three(self.size, 1),
            *three(self.kernel, 1), *three(stride, 1), *three(padding, 0), *three(dilation, 1),
            *three(self.out_size, 1),
        )  # fmt: skip

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.batch, self.in_channels, *self.size)

    @property
    def w_shape(self) -> tuple[int, ...]:
        return (self.out_channels, self.in_channels // self.groups, *self.kernel)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (self.batch, self.out_channels, *self.out_size)

    def forward(self, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        """Tap by tap: shifted inputs times weights."""
        stride, padding, dilation = self.steps
        padded = np.pad(x, ((0, 0), (0, 0), *((p, p) for p in padding)))
        grouped = padded.reshape(self.batch, self.groups, -1, *padded.shape[2:])
        weight = w.reshape(self.groups, -1, *w.shape[1:])
        out = np.zeros((self.batch, self.groups, weight.shape[1], *self.out_size), x.dtype)
        for tap in np.ndindex(self.kernel):
            starts = [t * d for t, d in zip(tap, dilation, strict=True)]
            spans = zip(starts, stride, self.out_size, strict=True)
            window = tuple(slice(a, a + s * (n - 1) + 1, s) for a, s, n in spans)
            seen = grouped[(slice(None), slice(None), slice(None), *window)]
            out += np.einsum("bgc...,goc->bgo...", seen, weight[(..., *tap)])
        return out.reshape(self.y_shape)

    def gradients(
        self, x: np.ndarray, w: np.ndarray, g: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """It is linear in x and in w, so each gradient is a dot with the responses to a basis."""
        gx, gw = np.zeros_like(x), np.zeros_like(w)
        for out, operand in ((gx, "x"), (gw, "w")):
            for at in np.ndindex(out.shape):
                basis = np.zeros_like(out)
                basis[at] = 1.0
                response = self.forward(basis, w) if operand == "x" else self.forward(x, basis)
                out[at] = (response * g).sum()
        return gx, gw


@dataclass(frozen=True)
class Pool:
    size: Pair
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    planes: int = 3
    ceil: bool = False

    @property
    def out_size(self) -> Pair:
        spans = zip(self.size, self.kernel, self.stride, self.padding, self.dilation, strict=True)
        found = []
        for n, k, s, p, d in spans:
            room = n + 2 * p - d * (k - 1) - 1
            o = (-(-room // s) if self.ceil else room // s) + 1
            found.append(o - 1 if self.ceil and (o - 1) * s >= n + p else o)
        return found[0], found[1]

    @property
    def shape(self) -> Struct:
        return struct(
            *self.size, *self.out_size, *self.kernel, *self.stride, *self.padding, *self.dilation
        )

    @property
    def x_shape(self) -> tuple[int, ...]:
        return (self.planes, *self.size)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (self.planes, *self.out_size)

    def window(self, row: int, column: int) -> list[Pair]:
        """Positions under a window that lie inside the plane, in order."""
        (ph, pw), (sh, sw), (dh, dw) = self.padding, self.stride, self.dilation
        rows = [row * sh - ph + i * dh for i in range(self.kernel[0])]
        columns = [column * sw - pw + j * dw for j in range(self.kernel[1])]
        height, width = self.size
        return [(r, c) for r, c in product(rows, columns) if 0 <= r < height and 0 <= c < width]

    def bounds(self) -> list[list[Pair]]:
        """First and end position of each window along height and width, inside the plane."""
        found = []
        spans = zip(
            self.size, self.out_size, self.kernel, self.stride, self.padding, self.dilation,
            strict=True,
        )  # fmt: skip
        for size, count, k, s, p, d in spans:
            inside = [
                [at for at in range(o * s - p, o * s - p + d * k, d) if 0 <= at < size]
                for o in range(count)
            ]
            found.append([(places[0], places[-1] + 1) for places in inside])
        return found
