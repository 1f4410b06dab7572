"""The cells of recurrent networks: what happens to the gates after the products.

Invariants
----------
* A cell takes the input's share of the gates and the recurrent share apart, and adds them itself:
  the two have one gradient.
* Forward and backward are one fused loop each. The backward computes the gates again, so nothing
  is saved but the operands.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from refruntime._dispatch import call
from refruntime._impl import TensorMeta, meta_of
from refruntime._ops.backward import decompose
from refruntime._ops.opdef import OpDef, front, ops, register
from refruntime._ops.samples import ErrorSample, Sample, T
from refruntime.errors import ShapeError
from refruntime.kernels.mathtable import sigmoid, tanh
from refruntime.kernels.windows import WindowKernel


def _check(op: str, gates: TensorMeta, recurrent: TensorMeta, state: TensorMeta, n: int) -> None:
    wanted = (*state.shape[:-1], n * state.shape[-1])
    if tuple(gates.shape) != wanted or tuple(recurrent.shape) != wanted:
        raise ShapeError(
            op, what="the gates do not fit the state", expected=str(wanted),
            got=f"{tuple(gates.shape)} and {tuple(recurrent.shape)}",
        )  # fmt: skip


def _like(meta: TensorMeta) -> TensorMeta:
    return meta_of(tuple(meta.shape), meta.dtype, meta.device)


def _share(gates: Any, parts: int) -> list[Any]:
    return list(ops.chunk(gates, parts, -1))


# ---------------------------------------------------------------------------------------------
# LSTM


def lstm_forward(xi, xf, xg, xo, hi, hf, hg, ho, cell):  # type: ignore[no-untyped-def]
    """New hidden and cell state."""
    new = sigmoid(xf + hf) * cell + sigmoid(xi + hi) * tanh(xg + hg)
    return sigmoid(xo + ho) * tanh(new), new


def lstm_gradient(gh, gc, xi, xf, xg, xo, hi, hf, hg, ho, cell):  # type: ignore[no-untyped-def]
    """Gradients of the four gates and of the cell."""
    i = sigmoid(xi + hi)
    f = sigmoid(xf + hf)
    g = tanh(xg + hg)
    o = sigmoid(xo + ho)
    bent = tanh(f * cell + i * g)
    inner = gc + gh * o * (1 - bent * bent)
    return (
        inner * g * i * (1 - i),
        inner * cell * f * (1 - f),
        inner * i * (1 - g * g),
        gh * bent * o * (1 - o),
        inner * f,
    )


_LSTM = WindowKernel(lstm_forward, (1, 1), (4, 4, 1))
_LSTM_GRADIENT = WindowKernel(lstm_gradient, (4, 1), (1, 1, 4, 4, 1))


def _lstm_infer(gates: TensorMeta, recurrent: TensorMeta, cell: TensorMeta) -> Any:
    _check("lstm_cell", gates, recurrent, cell, 4)
    return _like(cell), _like(cell)


def _lstm_kernel(out: Any, gates: Any, recurrent: Any, cell: Any) -> None:
    _LSTM.run(*out, gates, recurrent, cell)


def _lstm_backward_kernel(out: Any, *operands: Any) -> None:
    _LSTM_GRADIENT.run(*out, *operands)


def _lstm_parts(gh: Any, gc: Any, gates: Any, recurrent: Any, cell: Any) -> tuple[Any, Any]:
    run = decompose(_LSTM_GRADIENT.body)
    *four, gcell = run(gh, gc, *_share(gates, 4), *_share(recurrent, 4), cell)
    return ops.cat(four, -1), gcell


LSTM_BACKWARD = register(
    OpDef(
        "lstm_gates_backward",
        ("grad_hidden", "grad_cell", "gates", "recurrent", "cell"),
        infer=lambda gh, gc, gates, recurrent, cell: (_like(gates), _like(cell)),
        cpu=_lstm_backward_kernel,
        cuda=_lstm_backward_kernel,
        decomposition=_lstm_parts,
    )
)


def _lstm_vjp(g: Any, n: Any) -> tuple[Any, Any, Any]:
    gh, gc = (ops.zeros_like(n.cell) if one is None else one for one in g)
    ggates, gcell = call(LSTM_BACKWARD, (gh, gc, n.gates, n.recurrent, n.cell))
    return ggates, ggates, gcell


def _lstm_reference(gates: Any, recurrent: Any, cell: Any) -> list[Any]:
    i, f, g, o = np.split(gates + recurrent, 4, -1)
    bound = [1 / (1 + np.exp(-x)) for x in (i, f, o)]
    new = bound[1] * cell + bound[0] * np.tanh(g)
    return [bound[2] * np.tanh(new), new]


LSTM = register(
    OpDef(
        "lstm_gates",
        ("gates", "recurrent", "cell"),
        batch="leading",
        infer=_lstm_infer,
        cpu=_lstm_kernel,
        cuda=_lstm_kernel,
        vjp=_lstm_vjp,
        saves=("gates", "recurrent", "cell"),
        samples=lambda: [
            Sample((T((2, 12)), T((2, 12)), T((2, 3)))),
            Sample((T((3, 8), layout="transposed"), T((3, 8)), T((3, 2), layout="strided"))),
        ],
        error_samples=lambda: [
            ErrorSample((T((2, 9)), T((2, 9)), T((2, 3))), RuntimeError, "do not fit")
        ],
        reference=_lstm_reference,
        backward_name="ThnnFusedLstmCellBackward0",
    )
)


@front(LSTM, method=False)
def lstm_gates(gates: Any, recurrent: Any, cell: Any) -> Any:
    """Return the next hidden and cell state from the two shares of the gates."""
    return call(LSTM, (gates, recurrent, cell))


# ---------------------------------------------------------------------------------------------
# GRU


def gru_forward(xr, xz, xn, hr, hz, hn, hidden):  # type: ignore[no-untyped-def]
    """New hidden state."""
    new = tanh(xn + sigmoid(xr + hr) * hn)
    return new + sigmoid(xz + hz) * (hidden - new)


def gru_gradient(grad, xr, xz, xn, hr, hz, hn, hidden):  # type: ignore[no-untyped-def]
    """Gradients of the input's gates, of the recurrent gates, and of the hidden state."""
    r = sigmoid(xr + hr)
    z = sigmoid(xz + hz)
    new = tanh(xn + r * hn)
    gnew = grad * (1 - z) * (1 - new * new)
    greset = gnew * hn * r * (1 - r)
    gupdate = grad * (hidden - new) * z * (1 - z)
    return greset, gupdate, gnew, greset, gupdate, gnew * r, grad * z


_GRU = WindowKernel(gru_forward, (1,), (3, 3, 1))
_GRU_GRADIENT = WindowKernel(gru_gradient, (3, 3, 1), (1, 3, 3, 1))


def _gru_infer(gates: TensorMeta, recurrent: TensorMeta, hidden: TensorMeta) -> TensorMeta:
    _check("gru_cell", gates, recurrent, hidden, 3)
    return _like(hidden)


def _gru_kernel(out: Any, gates: Any, recurrent: Any, hidden: Any) -> None:
    _GRU.run(out, gates, recurrent, hidden)


def _gru_backward_kernel(out: Any, *operands: Any) -> None:
    _GRU_GRADIENT.run(*out, *operands)


def _gru_parts(grad: Any, gates: Any, recurrent: Any, hidden: Any) -> tuple[Any, Any, Any]:
    run = decompose(_GRU_GRADIENT.body)
    parts = run(grad, *_share(gates, 3), *_share(recurrent, 3), hidden)
    return ops.cat(list(parts[:3]), -1), ops.cat(list(parts[3:6]), -1), parts[6]


GRU_BACKWARD = register(
    OpDef(
        "gru_gates_backward",
        ("grad", "gates", "recurrent", "hidden"),
        infer=lambda grad, gates, recurrent, hidden: (
            _like(gates), _like(recurrent), _like(hidden)
        ),
        cpu=_gru_backward_kernel,
        cuda=_gru_backward_kernel,
        decomposition=_gru_parts,
    )
)  # fmt: skip


def _gru_reference(gates: Any, recurrent: Any, hidden: Any) -> Any:
    (xr, xz, xn), (hr, hz, hn) = np.split(gates, 3, -1), np.split(recurrent, 3, -1)
    r, z = (1 / (1 + np.exp(-x)) for x in (xr + hr, xz + hz))
    new = np.tanh(xn + r * hn)
    return (1 - z) * new + z * hidden


GRU = register(
    OpDef(
        "gru_gates",
        ("gates", "recurrent", "hidden"),
        batch="leading",
        infer=_gru_infer,
        cpu=_gru_kernel,
        cuda=_gru_kernel,
        vjp=lambda g, n: call(GRU_BACKWARD, (g, n.gates, n.recurrent, n.hidden)),
        saves=("gates", "recurrent", "hidden"),
        samples=lambda: [
            Sample((T((2, 9)), T((2, 9)), T((2, 3)))),
            Sample((T((3, 6), layout="transposed"), T((3, 6)), T((3, 2), layout="strided"))),
        ],
        error_samples=lambda: [
            ErrorSample((T((2, 12)), T((2, 12)), T((2, 3))), RuntimeError, "do not fit")
        ],
        reference=_gru_reference,
        backward_name="ThnnFusedGruCellBackward0",
    )
)


@front(GRU, method=False)
def gru_gates(gates: Any, recurrent: Any, hidden: Any) -> Any:
    """Return the next hidden state from the two shares of the gates."""
    return call(GRU, (gates, recurrent, hidden))
