"""Recurrent layers against a plain NumPy loop, and packed sequences."""

from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime import nn
from refruntime.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(mode, w, x, h, c):
    """One step in NumPy: next (h, c)."""
    a, b = x @ w["weight_ih"].T + w["bias_ih"], h @ w["weight_hh"].T + w["bias_hh"]
    if mode == "RNN":
        return np.tanh(a + b), c
    if mode == "GRU":
        (ra, za, na), (rb, zb, nb) = np.split(a, 3, -1), np.split(b, 3, -1)
        z = sigmoid(za + zb)
        return (1 - z) * np.tanh(na + sigmoid(ra + rb) * nb) + z * h, c
    i, f, g, o = np.split(a + b, 4, -1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def run(net, x):
    """The whole stack in NumPy: output, last h, last c (length first)."""
    mode, finals_h, finals_c = type(net).__name__, [], []
    params = {name: p.detach().numpy() for name, p in net.named_parameters()}
    for layer in range(net.num_layers):
        outputs = []
        for end in ("", "_reverse") if net.bidirectional else ("",):
            tail = f"_l{layer}{end}"
            w = {n[: -len(tail)]: p for n, p in params.items() if n.endswith(tail)}
            h = c = np.zeros((x.shape[1], net.hidden_size))
            rows = []
            for t in reversed(range(len(x))) if end else range(len(x)):
                h, c = step(mode, w, x[t], h, c)
                rows.append(h)
            outputs.append(np.stack(rows[::-1] if end else rows))
            finals_h.append(h)
            finals_c.append(c)
        x = np.concatenate(outputs, -1)
    return x, np.stack(finals_h), np.stack(finals_c)


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_a_stack_equals_the_loop_written_out(kind, layers, bidirectional):
    net = kind(3, 4, layers, bidirectional=bidirectional, dtype=torch.float64)
    x = np.random.default_rng(0).standard_normal((5, 2, 3))
    out, state = net(torch.from_numpy(x))
    expected, h, c = run(net, x)
    np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-10)
    ours = state if kind is nn.LSTM else (state,)
    for tensor, reference in zip(ours, (h, c), strict=False):
        np.testing.assert_allclose(tensor.detach().numpy(), reference, rtol=1e-10)


def test_batch_first_and_unbatched_are_the_same_numbers():
    net = nn.GRU(3, 4)
    x = torch.randn(5, 2, 3)
    out, h = net(x)
    net.batch_first = True
    turned, h2 = net(x.transpose(0, 1))
    np.testing.assert_allclose(turned.detach().numpy(), out.detach().numpy().swapaxes(0, 1))
    np.testing.assert_allclose(h2.detach().numpy(), h.detach().numpy())
    single, h3 = net(x[:, 1])
    np.testing.assert_allclose(single.detach().numpy(), out.detach().numpy()[:, 1], rtol=1e-5)
    assert tuple(h3.shape) == (1, 4)


def test_cells_are_one_step():
    for cell, net in (
        (nn.RNNCell(3, 4), nn.RNN(3, 4)), (nn.GRUCell(3, 4), nn.GRU(3, 4)),
        (nn.LSTMCell(3, 4), nn.LSTM(3, 4)),
    ):  # fmt: skip
        net.load_state_dict({name + "_l0": p for name, p in cell.state_dict().items()})
        x = torch.randn(2, 3)
        answer = cell(x)
        first = answer[0] if isinstance(answer, tuple) else answer
        out, _ = net(x.unsqueeze(0))
        np.testing.assert_allclose(first.detach().numpy(), out.detach().numpy()[0], rtol=1e-6)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("lengths", [[5, 3, 1], [2, 5, 4]])
def test_packed_sequences_give_what_each_sequence_gives_alone(kind, lengths):
    net = kind(3, 4, 2, bidirectional=True)
    x = torch.randn(5, 3, 3)
    packed = pack_padded_sequence(x, lengths, enforce_sorted=False)
    out, state = net(packed)
    padded, sizes = pad_packed_sequence(out)
    assert sizes.tolist() == lengths
    h = state[0] if kind is nn.LSTM else state
    for i, length in enumerate(lengths):
        alone, last = net(x[:length, i : i + 1])
        np.testing.assert_allclose(
            padded.detach().numpy()[:length, i], alone.detach().numpy()[:, 0], rtol=1e-4, atol=1e-6
        )
        last_h = last[0] if kind is nn.LSTM else last
        np.testing.assert_allclose(
            h.detach().numpy()[:, i], last_h.detach().numpy()[:, 0], rtol=1e-4, atol=1e-6
        )
        assert (padded.detach().numpy()[length:, i] == 0).all()


def test_gradients_reach_all_weights_and_the_first_state():
    net = nn.LSTM(3, 4, 2)
    h, c = torch.zeros(2, 1, 4, requires_grad=True), torch.zeros(2, 1, 4, requires_grad=True)
    out, _ = net(torch.randn(3, 1, 3), (h, c))
    out.sum().backward()
    assert all(float(p.grad.abs().sum()) > 0 for p in (*net.parameters(), h, c))


def test_dropout_between_layers_works_in_training_only():
    torch.manual_seed(0)
    net = nn.GRU(3, 8, 2, dropout=0.9)
    x = torch.randn(4, 2, 3)
    first, second = net(x)[0].detach().numpy(), net(x)[0].detach().numpy()
    assert not np.array_equal(first, second)
    net.eval()
    np.testing.assert_array_equal(net(x)[0].detach().numpy(), net(x)[0].detach().numpy())


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: nn.RNN(3, 4, nonlinearity="odd"), ValueError, "nonlinearity"),
        (lambda: nn.LSTM(3, 4, dropout=2.0), ValueError, "range"),
        (lambda: nn.LSTM(3, 0), ValueError, "hidden_size"),
        (lambda: nn.LSTM(3, 4, proj_size=4), ValueError, "proj_size"),
        (lambda: nn.LSTM(3, 4)(torch.ones(2, 3, 4, 5)), ValueError, "2D or 3D"),
        (lambda: nn.LSTM(3, 4)(torch.ones(2, 1, 5)), RuntimeError, "input_size"),
        (lambda: nn.GRU(3, 4)(torch.ones(2, 1, 3), torch.ones(1, 2, 4)), RuntimeError, "hidden"),
        (lambda: nn.GRUCell(3, 4)(torch.ones(1, 2, 3)), ValueError, "1D or 2D"),
    ],
)
def test_what_recurrent_layers_refuse(call, error, text):
    with pytest.raises(error, match=text):
        call()
