"""One step of a recurrent network, and the cells that are one step as a module.

Invariants
----------
* A step takes the input's share of the gates, ``W_ih x + b_ih``, and the state ``(h,)`` or
  ``(h, c)``, and returns the next state.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from refruntime._ops.opdef import ops
from refruntime.errors import ArgumentValueError
from refruntime.nn import functional, init
from refruntime.nn.modules.linear import unset
from refruntime.nn.modules.module import Module

Weights = dict[str, Any]
State = tuple[Any, ...]
Step = Callable[[Any, State], State]


def _recurrent_share(weights: Weights, hidden: Any) -> Any:
    return functional.linear(hidden, weights["weight_hh"], weights.get("bias_hh"))


def lstm_step(weights: Weights) -> Step:
    """Return the step of an LSTM; a weight ``weight_hr`` projects the hidden state."""
    projection = weights.get("weight_hr")

    def step(gates: Any, state: State) -> State:
        hidden, cell = state
        hidden, cell = ops.lstm_gates(gates, _recurrent_share(weights, hidden), cell)
        if projection is not None:
            hidden = functional.linear(hidden, projection)
        return hidden, cell

    return step


def gru_step(weights: Weights) -> Step:
    """Return the step of a GRU."""

    def step(gates: Any, state: State) -> State:
        (hidden,) = state
        return (ops.gru_gates(gates, _recurrent_share(weights, hidden), hidden),)

    return step


def tanh_step(weights: Weights) -> Step:
    """Return the step of an RNN with tanh."""
    return lambda gates, state: ((gates + _recurrent_share(weights, state[0])).tanh(),)


def relu_step(weights: Weights) -> Step:
    """Return the step of an RNN with relu."""
    return lambda gates, state: ((gates + _recurrent_share(weights, state[0])).relu(),)


STEPS: dict[str, Callable[[Weights], Step]] = {
    "LSTM": lstm_step,
    "GRU": gru_step,
    "RNN_TANH": tanh_step,
    "RNN_RELU": relu_step,
}


def draw_weights(module: Module, hidden_size: int) -> None:
    """Draw a recurrent module's parameters: all uniform on ±1 / sqrt(hidden_size)."""
    bound = 1.0 / math.sqrt(hidden_size) if hidden_size > 0 else 0
    for weight in module.parameters():
        init.uniform_(weight, -bound, bound)


class RNNCellBase(Module):
    """One step of a recurrent network as a module.

    Parameters
    ----------
    input_size, hidden_size : int
        Widths of the input and of the hidden state.
    bias : bool
        Whether the gates have biases.
    num_chunks : int
        The number of gates.
    device, dtype : optional
        Of the parameters.
    """

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool, num_chunks: int, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.input_size = input_size
        self.hidden_size = hidden_size
        self.bias = bias
        where = {"device": device, "dtype": dtype}
        gates = num_chunks * hidden_size
        self.weight_ih = unset(gates, input_size, **where)
        self.weight_hh = unset(gates, hidden_size, **where)
        if bias:
            self.bias_ih = unset(gates, **where)
            self.bias_hh = unset(gates, **where)
        else:
            self.register_parameter("bias_ih", None)
            self.register_parameter("bias_hh", None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new first values: all uniform on ±1 / sqrt(hidden_size)."""
        draw_weights(self, self.hidden_size)

    def extra_repr(self) -> str:
        """Return the settings that the printed form shows."""
        text = f"{self.input_size}, {self.hidden_size}"
        if self.bias is not True:
            text += f", bias={self.bias}"
        nonlinearity = self.__dict__.get("nonlinearity", "tanh")
        return text if nonlinearity == "tanh" else f"{text}, nonlinearity={nonlinearity}"

    def _step(self, mode: str, input: Any, state: State | None, parts: int) -> State:
        if input.dim() not in (1, 2):
            raise ArgumentValueError(
                type(self).__name__, what="Expected input to be 1D or 2D",
                got=f"{input.dim()}D instead",
            )  # fmt: skip
        bare = input.dim() == 1
        rows = input.unsqueeze(0) if bare else input
        if state is None:
            zero = ops.zeros(
                (rows.shape[0], self.hidden_size), dtype=input.dtype, device=input.device
            )
            state = (zero,) * parts
        elif bare:
            state = tuple(s.unsqueeze(0) for s in state)
        weights = dict(self._parameters)
        gates = functional.linear(rows, self.weight_ih, self.bias_ih)
        result = STEPS[mode](weights)(gates, state)
        return tuple(s.squeeze(0) for s in result) if bare else result


class RNNCell(RNNCellBase):
    """One step of an RNN; `nonlinearity` is ``tanh`` or ``relu``."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, nonlinearity: str = "tanh",
        device: Any = None, dtype: Any = None,
    ) -> None:  # fmt: skip
        if nonlinearity not in ("tanh", "relu"):
            raise ArgumentValueError(
                "RNNCell", what=f"Unknown nonlinearity: {nonlinearity}", expected="'tanh' or 'relu'"
            )
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the next hidden state."""
        mode = f"RNN_{self.nonlinearity.upper()}"
        return self._step(mode, input, None if hx is None else (hx,), 1)[0]


class LSTMCell(RNNCellBase):
    """One step of an LSTM."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, 4, device, dtype)

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the next hidden state and cell state."""
        return self._step("LSTM", input, hx, 2)


class GRUCell(RNNCellBase):
    """One step of a GRU."""

    def __init__(
        self, input_size: int, hidden_size: int, bias: bool = True, device: Any = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(input_size, hidden_size, bias, 3, device, dtype)

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the next hidden state."""
        return self._step("GRU", input, None if hx is None else (hx,), 1)[0]
