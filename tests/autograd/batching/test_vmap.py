"""`vmap`: where batches go in and come out, what is refused, randomness, writes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import refruntime as torch
from refruntime.func import vmap

A = torch.tensor(np.random.default_rng(0).standard_normal((3, 5)))
B = torch.tensor(np.random.default_rng(1).standard_normal((4, 5)))


def test_dimensions_of_inputs_and_outputs():
    found = vmap(lambda a, b: a * b, in_dims=(1, 0), out_dims=1)(A, B[0])
    np.testing.assert_array_equal(found.numpy(), (A * B[0]).numpy())
    shared = vmap(lambda a, b: a @ b, in_dims=(0, None))(A, B[0])
    np.testing.assert_allclose(shared.numpy(), (A @ B[0]).numpy())
    found = vmap(
        lambda d: {"s": d["x"].sum(), "y": d["y"]}, in_dims=({"x": 0, "y": None},),
        out_dims={"s": 0, "y": None},
    )({"x": A, "y": B})  # fmt: skip
    np.testing.assert_allclose(found["s"].numpy(), A.numpy().sum(1))
    assert found["y"].shape == (4, 5)
    assert vmap(lambda a, *, w: a * w)(A, w=A).tolist() == (A * A).tolist()


@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 2), st.integers(0, 2))
@settings(max_examples=30, deadline=None)
def test_any_dimension_can_be_the_batch(rows, columns, where_in, where_out):
    x = torch.arange(float(rows * columns * 2)).reshape(rows, columns, 2)
    found = vmap(lambda s: s * 2 + s.sum(), in_dims=where_in, out_dims=where_out)(x)
    moved = np.moveaxis(x.numpy(), where_in, 0)
    want = np.stack([s * 2 + s.sum() for s in moved], axis=where_out)
    np.testing.assert_allclose(found.numpy(), want)


def test_calls_nest():
    found = vmap(vmap(torch.dot, in_dims=(None, 0)), in_dims=(0, None))(A, B)
    np.testing.assert_allclose(found.numpy(), A.numpy() @ B.numpy().T)
    inner = vmap(lambda a: vmap(lambda b: (a - b).abs().sum())(B))(A)
    want = np.abs(A.numpy()[:, None] - B.numpy()).sum(-1)
    np.testing.assert_allclose(inner.numpy(), want)


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_chunks_give_the_same(size):
    found = vmap(lambda a: (a.sum(), a * 2), chunk_size=size)(A)
    np.testing.assert_allclose(found[0].numpy(), A.numpy().sum(1))
    np.testing.assert_allclose(found[1].numpy(), 2 * A.numpy())


def test_writes_go_to_the_sample():
    def shifted(a):
        b = a.clone()
        b[0] = a[1] * 2
        b.mul_(3)
        return b

    want = A.numpy().copy()
    want[:, 0] = 2 * want[:, 1]
    np.testing.assert_allclose(vmap(shifted)(A).numpy(), 3 * want)
    x = A.clone()
    vmap(lambda a: a.add_(1))(x)
    np.testing.assert_allclose(x.numpy(), A.numpy() + 1)
    with pytest.raises(RuntimeError, match="inplace arithmetic"):
        vmap(lambda a: torch.zeros(5, dtype=torch.float64).add_(a))(A)


def test_a_sample_takes_on_what_a_view_shows():
    def turned(a):
        b = a * 1
        return b.unsqueeze_(0).t_().squeeze_(-1).unsqueeze_(1)

    assert vmap(turned)(A).tolist() == A.unsqueeze(2).tolist()


def test_a_zero_dim_sample_counts_in_promotion_as_a_zero_dim_tensor():
    found = vmap(lambda a: a * torch.ones(2))(torch.ones(3, dtype=torch.float64))
    assert found.dtype is torch.float32


def test_samples_index_with_their_own_numbers():
    places = torch.tensor([4, 0, 2])
    np.testing.assert_array_equal(
        vmap(lambda a, i: a[i])(A, places).numpy(), A.numpy()[[0, 1, 2], [4, 0, 2]]
    )


def test_gradients_flow_through_a_batch():
    x = A.clone().requires_grad_()
    vmap(lambda a: (a**2).sum())(x).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 2 * A.numpy())


def test_randomness_is_refused_shared_or_fresh():
    x = torch.ones(64, 3)
    for draw in (
        lambda s: s + torch.rand(3), lambda s: torch.nn.functional.dropout(s, 0.5),
        lambda s: torch.rand_like(s), lambda s: s.clone().uniform_(),
        lambda s: torch.bernoulli(s * 0.5), lambda s: torch.randperm(3),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match="randomness error mode"):
            vmap(draw)(x)
        same = vmap(draw, randomness="same")(x).numpy()
        assert (same == same[0]).all()
        fresh = vmap(draw, randomness="different")(x).numpy()
        assert not (fresh == fresh[0]).all()
        torch.manual_seed(1)
        first = vmap(draw, randomness="different")(x).numpy()
        torch.manual_seed(1)
        np.testing.assert_array_equal(first, vmap(draw, randomness="different")(x).numpy())


def test_fresh_draws_are_uniform_over_the_batch_and_differ_between_calls():
    x = torch.zeros(400, 100)
    torch.manual_seed(0)
    first = vmap(lambda s: s + torch.rand(100), randomness="different")(x).numpy()
    second = vmap(lambda s: s + torch.rand(100), randomness="different")(x).numpy()
    assert abs(first.mean() - 0.5) < 0.01
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.02


def test_random_operators_work_again_after_a_failure():
    with pytest.raises(ZeroDivisionError):
        vmap(lambda s: 1 / 0)(A)
    assert torch.rand(3).shape == (3,)


def test_what_leaves_the_function_is_refused_later():
    kept = []
    vmap(lambda a: kept.append(a) or a * 1)(A)
    with pytest.raises(RuntimeError, match="after the transform has ended"):
        kept[0] + 1


def test_mistakes_are_named():
    values = [
        (lambda: vmap(lambda x: x)(3), "non-Tensor"),
        (lambda: vmap(lambda x: x, in_dims=(0, 0))(A), "not compatible"),
        (lambda: vmap(lambda x: 3.0)(A), "must only return Tensors"),
        (lambda: vmap(lambda x: x, in_dims=2)(A), "dimensionality 2"),
        (lambda: vmap(lambda x, y: x)(A, B), "same size"),
        (lambda: vmap(lambda x: x, out_dims=(0, 0))(A), "out_dims"),
        (lambda: vmap(lambda x: x, out_dims=None)(A), "out_dims=None"),
        (lambda: vmap(lambda x: x, in_dims=None)(A), "at least one|expected `in_dims`"),
        (lambda: vmap(lambda x: x, randomness="maybe"), "randomness"),
        (lambda: vmap(lambda x: x, chunk_size=0), "chunk_size"),
    ]
    for call, text in values:
        with pytest.raises(ValueError, match=text):
            call()
    for use in (lambda x: x.sum().item(), lambda x: x if x.sum() > 0 else -x, lambda x: x.numpy()):
        with pytest.raises(RuntimeError, match=r"item|direct access"):
            vmap(use)(A)
