"""Random programs under stacks of transforms: every way to a derivative gives the same numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import refruntime as torch
from refruntime.func import grad, hessian, jacfwd, jacrev, jvp, vmap
from refruntime.nn import functional as F

SIZE = 4
M = torch.tensor(np.random.default_rng(9).standard_normal((SIZE, SIZE))) + 3 * torch.eye(
    SIZE, dtype=torch.float64
)


def written(x, y):
    z = x * 1
    z[0] = y[1]
    z[1:3] *= y[:2]
    return z


STEPS = [
    lambda x, y: x * y,
    lambda x, y: (x - y).tanh(),
    lambda x, y: M @ x * 0.3 + y,
    lambda x, y: torch.softmax(x, 0) * y,
    lambda x, y: torch.where(x > y, x, y * 2),
    lambda x, y: x[[2, 0, 3, 1]].cumsum(0) * 0.3 + y,
    lambda x, y: torch.cat([x[:2], y[2:]]),
    lambda x, y: x.view(2, 2).t().reshape(SIZE) + y,
    lambda x, y: x / (1 + y * y),
    lambda x, y: F.layer_norm(x, (SIZE,)) + y,
    lambda x, y: F.gelu(x) * y.flip(0),
    lambda x, y: x.sort()[0] + y.max(),
    lambda x, y: x.var() * y + x.logsumexp(0),
    lambda x, y: torch.linalg.solve(M, x) + x.unsqueeze(0).expand(3, SIZE).sum(0) * y,
    written,
]

programs = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=5
)


def function(program):
    """Return the function of two vectors that a program is; both are used by its last line."""

    def run(a, b):
        values = [a * 1, b * 1]
        for step, i, j in program:
            values.append(step(values[i % len(values)], values[j % len(values)]))
        return values[-1] * a.sum() + values[-2]

    return run


def vectors(seed):
    rng = np.random.default_rng(seed)
    return [torch.tensor(rng.standard_normal(SIZE)) for _ in range(2)], [
        torch.tensor(rng.standard_normal((3, SIZE))) for _ in range(2)
    ]


def close(one, two):
    np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=1e-7, atol=1e-9)


@given(programs, st.integers(0, 1000))
@settings(max_examples=12, deadline=None)
def test_forward_and_reverse_mode_and_batches_agree(program, seed):
    (a, b), (rows, directions) = vectors(seed)

    def f(a):
        # All of it from the argument: a batch may not be written into what all samples share.
        return function(program)(a, a * b)

    jacobian = jacrev(f)(a)
    close(jacfwd(f)(a), jacobian)
    close(jvp(f, (a,), (b,))[1], jacobian @ b)
    batch = vmap(lambda a, t: jvp(f, (a,), (t,))[1])(rows, directions)
    close(batch, torch.stack([jacrev(f)(a) @ t for a, t in zip(rows, directions, strict=True)]))
    gradients = vmap(grad(lambda a: f(a).sum()))(rows)
    close(gradients, torch.stack([jacrev(f)(a).sum(0) for a in rows]))


@given(programs, st.integers(0, 1000))
@settings(max_examples=8, deadline=None)
def test_second_derivatives_agree_in_every_order_and_are_symmetric(program, seed):
    f = function(program)
    (a, b), (rows, _) = vectors(seed)

    def total(a):
        return f(a, a * b).sum()

    found = hessian(total)(a)
    close(found, found.T)
    for order in (jacrev(jacrev(total)), jacfwd(jacfwd(total)), jacrev(jacfwd(total))):
        close(order(a), found)
    close(vmap(hessian(total))(rows), torch.stack([hessian(total)(row) for row in rows]))


def test_tensors_that_the_function_makes_may_be_written_to_through_any_view():
    def total(x):
        out = torch.zeros(6, dtype=torch.float64)
        tail, head = out[2:], out[:3]
        out[1] = x[0] * x[1]
        tail[1:3] = x[:2] ** 3
        head.mul_(2)
        turned = torch.ones(2, 3, dtype=torch.float64).t()
        turned[1] = x[2:] ** 2
        return (out * out).sum() + tail.sum() * x[3] + (turned**3).sum()

    (a, _), (rows, _) = vectors(0)
    found = hessian(total)(a)
    eps = 1e-5
    steps = eps * torch.eye(SIZE, dtype=torch.float64)
    want = [(grad(total)(a + e) - grad(total)(a - e)) / (2 * eps) for e in steps]
    np.testing.assert_allclose(found.numpy(), torch.stack(want).numpy(), atol=1e-7)
    for order in (jacrev(jacrev(total)), jacfwd(jacfwd(total)), jacrev(jacfwd(total))):
        close(order(a), found)
    close(vmap(hessian(total))(rows), torch.stack([hessian(total)(row) for row in rows]))
