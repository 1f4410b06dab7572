"""Recurrent networks: RNN, LSTM, GRU, and their cells.

State
-----
Parameters by torch's names: ``weight_ih_l0``, ``weight_hh_l0``, ``bias_ih_l0``, ``bias_hh_l0``, the
same with ``_reverse`` for the second direction, and ``weight_hr_l0`` with projections.

Invariants
----------
* A sequence is run as packed steps: the input's share of the gates for all steps is one matrix
  product, then each step adds the hidden state's share. A padded batch is the case in which all
  steps have the same number of rows.
"""

from __future__ import annotations

from typing import Any

from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError, ShapeError
from refruntime.nn import functional
from refruntime.nn.modules._cells import STEPS, GRUCell, LSTMCell, RNNCell, draw_weights
from refruntime.nn.modules.module import Module
from refruntime.nn.parameter import Parameter
from refruntime.nn.utils.rnn import PackedSequence

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNBase", "RNNCell"]

_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}


class RNNBase(Module):
    """A stack of recurrent layers.

    Parameters
    ----------
    mode : str
        ``LSTM``, ``GRU``, ``RNN_TANH`` or ``RNN_RELU``.
    input_size, hidden_size : int
        Widths of the input and of the hidden state.
    num_layers : int
        Layers on top of each other.
    bias : bool
        Whether the gates have biases.
    batch_first : bool
        Whether sequences are (batch, length, width) instead of (length, batch, width).
    dropout : float
        Between the layers.
    bidirectional : bool
        Whether each layer also runs backwards; both outputs are then side by side.
    proj_size : int
        Width of the projected hidden state (LSTM only); 0 for none.
    device, dtype : optional
        Of the parameters.
    """

    def __init__(
        self, mode: str, input_size: int, hidden_size: int, num_layers: int = 1,
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
        bidirectional: bool = False, proj_size: int = 0, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.mode = mode
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.num_layers = num_layers
        self.bias = bias
        self.batch_first = batch_first
        self.dropout = float(dropout)
        self.bidirectional = bidirectional
        self.proj_size = proj_size
        self._check_settings()
        self._make_parameters({"device": device, "dtype": dtype})
        self.reset_parameters()

    def _check_settings(self) -> None:
        name = type(self).__name__
        if not 0 <= self.dropout <= 1:
            raise ArgumentValueError(
                name, what="dropout should be a number in range [0, 1] representing the "
                "probability of an element being zeroed", got=str(self.dropout),
            )  # fmt: skip
        for setting in ("hidden_size", "num_layers"):
            if getattr(self, setting) <= 0:
                raise ArgumentValueError(name, what=f"{setting} must be greater than zero")
        if self.proj_size < 0 or self.proj_size >= self.hidden_size:
            raise ArgumentValueError(
                name, what="proj_size has to be at least 0 and smaller than hidden_size",
                got=f"proj_size={self.proj_size}, hidden_size={self.hidden_size}",
            )  # fmt: skip
        if self.proj_size and self.mode != "LSTM":
            raise ArgumentValueError(
                name, what="proj_size argument is only supported for LSTM, not RNN or GRU"
            )

    def _directions(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    def _make_parameters(self, where: dict[str, Any]) -> None:
        gates = _GATES[self.mode] * self.hidden_size
        carried = self.proj_size or self.hidden_size
        names: list[list[str]] = []
        for layer in range(self.num_layers):
            width = self.input_size if layer == 0 else carried * len(self._directions())
            for direction in self._directions():
                end = f"_l{layer}{direction}"
                shapes: dict[str, tuple[int, ...]] = {
                    f"weight_ih{end}": (gates, width), f"weight_hh{end}": (gates, carried)
                }  # fmt: skip
                if self.bias:
                    shapes |= {f"bias_ih{end}": (gates,), f"bias_hh{end}": (gates,)}
                if self.proj_size:
                    shapes[f"weight_hr{end}"] = (self.proj_size, self.hidden_size)
                for name, shape in shapes.items():
                    setattr(self, name, Parameter(ops.empty(shape, **where)))
                names.append(list(shapes))
        self._all_weights = names

    @property
    def _flat_weights(self) -> list[Any]:
        return [getattr(self, name) for names in self._all_weights for name in names]

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters, one list a layer and direction."""
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    def flatten_parameters(self) -> None:
        """Do nothing: the parameters need not lie side by side here."""

    def reset_parameters(self) -> None:
        """Draw new first values: all uniform on ±1 / sqrt(hidden_size)."""
        draw_weights(self, self.hidden_size)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        text = f"{self.input_size}, {self.hidden_size}"
        shown = {
            "proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False, "dropout": 0,
            "bidirectional": False,
        }  # fmt: skip
        for name, default in shown.items():
            if getattr(self, name) != default:
                text += f", {name}={getattr(self, name)}"
        return text

    # ------------------------------------------------------------------ running

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        """Run the sequences.

        Parameters
        ----------
        input : Tensor or PackedSequence
            (length, batch, width), the other way round with `batch_first`, or without a batch.
        hx : Tensor or (Tensor, Tensor), optional
            The first hidden state (and cell state): (layers * directions, batch, width); zeros
            by default.

        Returns
        -------
        (Tensor or PackedSequence, Tensor or (Tensor, Tensor))
            The last layer's output at each step, and the last state of each layer.
        """
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        if input.dim() not in (2, 3):
            raise ArgumentValueError(
                type(self).__name__, what="Expected input to be 2D or 3D",
                got=f"{input.dim()}D instead",
            )  # fmt: skip
        bare = input.dim() == 2
        sequence = input.unsqueeze(1) if bare else input
        if self.batch_first and not bare:
            sequence = sequence.transpose(0, 1)
        self._check_width(sequence)
        length, batch = sequence.shape[0], sequence.shape[1]
        state = self._first_state(hx, batch, sequence, bare)
        rows, state = self._run(sequence.reshape(length * batch, -1), [batch] * length, state)
        output = rows.reshape(length, batch, -1)
        if bare:
            return output.squeeze(1), self._packed_state([s.squeeze(1) for s in state])
        if self.batch_first:
            output = output.transpose(0, 1)
        return output, self._packed_state(state)

    def _forward_packed(self, packed: PackedSequence, hx: Any) -> tuple[Any, Any]:
        sizes = packed.batch_sizes.tolist()
        self._check_width(packed.data)
        state = self._first_state(hx, sizes[0], packed.data, False)
        if packed.sorted_indices is not None and hx is not None:
            state = [s.index_select(1, packed.sorted_indices) for s in state]
        rows, state = self._run(packed.data, sizes, state)
        if packed.unsorted_indices is not None:
            state = [s.index_select(1, packed.unsorted_indices) for s in state]
        return packed._replace(data=rows), self._packed_state(state)

    def _check_width(self, sequence: Any) -> None:
        if sequence.shape[-1] != self.input_size:
            raise ShapeError(
                type(self).__name__, what="input.size(-1) must be equal to input_size",
                expected=str(self.input_size), got=str(sequence.shape[-1]),
                remedy="check batch_first and the width of the input",
            )  # fmt: skip

    def _first_state(self, hx: Any, batch: int, like: Any, bare: bool) -> list[Any]:
        """Return [h] (or [h, c]), each (layers * directions, batch, width)."""
        widths = [self.proj_size or self.hidden_size]
        if self.mode == "LSTM":
            widths.append(self.hidden_size)
        count = self.num_layers * len(self._directions())
        if hx is None:
            return [
                ops.zeros((count, batch, width), dtype=like.dtype, device=like.device)
                for width in widths
            ]
        given = list(hx) if self.mode == "LSTM" else [hx]
        state = [s.unsqueeze(1) if bare and s.dim() == 2 else s for s in given]
        for tensor, width in zip(state, widths, strict=True):
            if tuple(tensor.shape) != (count, batch, width):
                raise ShapeError(
                    type(self).__name__, expected=f"hidden size {(count, batch, width)}",
                    got=str(list(tensor.shape)),
                )  # fmt: skip
        return state

    def _packed_state(self, state: list[Any]) -> Any:
        return tuple(state) if self.mode == "LSTM" else state[0]

    def _run(self, rows: Any, sizes: list[int], state: list[Any]) -> tuple[Any, list[Any]]:
        """Run all layers over packed rows; return the last layer's rows and the last states."""
        last: list[list[Any]] = [[] for _ in state]
        place = 0
        for layer in range(self.num_layers):
            outputs = []
            for _ in self._directions():
                first = tuple(s[place] for s in state)
                out, final = self._run_direction(rows, sizes, first, self._all_weights[place])
                outputs.append(out)
                for held, tensor in zip(last, final, strict=True):
                    held.append(tensor)
                place += 1
            rows = outputs[0] if len(outputs) == 1 else ops.cat(outputs, -1)
            if self.dropout and layer < self.num_layers - 1:
                rows = functional.dropout(rows, self.dropout, self.training)
        return rows, [ops.stack(held, 0) for held in last]

    def _run_direction(
        self, rows: Any, sizes: list[int], first: tuple[Any, ...], names: list[str]
    ) -> tuple[Any, tuple[Any, ...]]:
        weights = {name.split("_l")[0]: getattr(self, name) for name in names}
        step = STEPS[self.mode](weights)
        gates = functional.linear(rows, weights["weight_ih"], weights.get("bias_ih"))
        parts = ops.split(gates, sizes, 0)
        if names[0].endswith("_reverse"):
            return _backward_steps(step, parts, sizes, first)
        return _forward_steps(step, parts, sizes, first)


def _forward_steps(
    step: Any, parts: Any, sizes: list[int], state: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """Go forward; sequences that end early leave their state behind."""
    outputs, ended = [], []
    for gates, size in zip(parts, sizes, strict=True):
        if size < state[0].shape[0]:
            ended.append(tuple(s[size:] for s in state))
            state = tuple(s[:size] for s in state)
        state = step(gates, state)
        outputs.append(state[0])
    if ended:
        ended.append(state)
        state = tuple(ops.cat(list(column), 0) for column in zip(*reversed(ended), strict=True))
    return ops.cat(outputs, 0), state


def _backward_steps(
    step: Any, parts: Any, sizes: list[int], first: tuple[Any, ...]
) -> tuple[Any, tuple[Any, ...]]:
    """Go backward; sequences that end early join in with their first state."""
    outputs = []
    state = tuple(s[: sizes[-1]] for s in first)
    for gates, size in zip(reversed(parts), reversed(sizes), strict=True):
        have = state[0].shape[0]
        if size > have:
            state = tuple(
                ops.cat([s, f[have:size]], 0) for s, f in zip(state, first, strict=True)
            )
        state = step(gates, state)
        outputs.append(state[0])
    return ops.cat(outputs[::-1], 0), state


class RNN(RNNBase):
    """``h = tanh(W_ih x + b_ih + W_hh h + b_hh)``; see `RNNBase` for the parameters.

    `nonlinearity` is ``tanh`` or ``relu``.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, nonlinearity: str = "tanh",
        bias: bool = True, batch_first: bool = False, dropout: float = 0.0,
        bidirectional: bool = False, device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentValueError(
                "RNN", what=f"Unknown nonlinearity '{nonlinearity}'", expected="'tanh' or 'relu'"
            )
        self.__dict__["nonlinearity"] = nonlinearity
        super().__init__(
            f"RNN_{nonlinearity.upper()}", input_size, hidden_size, num_layers, bias, batch_first,
            dropout, bidirectional, 0, device, dtype,
        )  # fmt: skip


class LSTM(RNNBase):
    """Long short-term memory; see `RNNBase` for the parameters.

    Notes
    -----
    Gates in the order input, forget, cell, output: ``c = f * c + i * g``; ``h = o * tanh(c)``.
    Hochreiter and Schmidhuber, 1997; Gers et al., 2000 (forget gate).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)


class GRU(RNNBase):
    """Gated recurrent unit; see `RNNBase` for the parameters.

    Notes
    -----
    Gates in the order reset, update, new: ``n = tanh(W_in x + b_in + r * (W_hn h + b_hn))``;
    ``h = (1 - z) * n + z * h``. Cho et al., 2014.
    """

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(
            "GRU", input_size, hidden_size, num_layers, bias, batch_first, dropout, bidirectional,
            0, device, dtype,
        )  # fmt: skip
