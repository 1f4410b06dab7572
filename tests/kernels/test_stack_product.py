from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch
from refruntime._impl import empty_impl
from refruntime.config import config
from refruntime.kernels import stack_product
from refruntime.kernels.stack_product import plan_of

rng = np.random.default_rng(0)

LAYOUTS = {
    "plain": lambda x: x,
    "turned": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "permuted": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "strided": lambda x: torch.stack([x, x], -1)[..., 0],
}


def tensor(*shape, dtype=np.float64):
    return torch.from_numpy(rng.standard_normal(shape).astype(dtype))


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
@pytest.mark.parametrize("size", [(3, 2, 5), (17, 20, 70), (8, 3, 48)])
def test_products_of_any_layout_equal_numpy(left, right, size):
    m, k, n = size
    a, b = LAYOUTS[left](tensor(3, m, k)), LAYOUTS[right](tensor(3, k, n))
    out = empty_impl(torch.empty(3, m, n, dtype=torch.float64).meta)
    plan_of(out.meta, a.meta, b.meta).run(out, a, b)
    np.testing.assert_allclose(out.array(), a.numpy() @ b.numpy(), atol=1e-12)


def test_batches_broadcast():
    a, b = tensor(4, 1, 9, 5), tensor(3, 5, 60)
    np.testing.assert_allclose((a @ b).numpy(), a.numpy() @ b.numpy(), atol=1e-12)
    a, b = tensor(1, 9, 5), tensor(3, 5, 6).expand(2, 3, 5, 6)
    np.testing.assert_allclose((a @ b).numpy(), a.numpy() @ b.numpy(), atol=1e-12)


def test_results_do_not_depend_on_the_number_of_threads():
    a, b = tensor(5, 60, 64, dtype=np.float32), tensor(5, 64, 60, dtype=np.float32)
    results = []
    for threads in (1, 3):
        with config.patch(num_threads=threads):
            results.append((a @ b).numpy())
    np.testing.assert_array_equal(*results)


def planned(a, b):
    return plan_of(torch.matmul(a, b).meta, a.meta, b.meta) is not None


def test_small_products_come_here_and_large_ones_go_to_blas():
    assert planned(torch.ones(4, 3, 5), torch.ones(4, 5, 2))
    assert planned(torch.ones(30, 30), torch.ones(30, 30))
    assert not planned(torch.ones(300, 300), torch.ones(300, 300))
    assert not planned(torch.ones(4, 300, 5), torch.ones(5, 2))
    assert not planned(*(torch.ones(4, 5, 5, dtype=torch.int64) for _ in range(2)))
    large = stack_product.LARGEST_RIGHT // 4
    assert not planned(torch.ones(2, 1, 2), torch.ones(2, 2, large))


def test_a_linear_map_reads_its_weight_turned():
    for rows, inner, outer in ((1, 3, 2), (40, 20, 70), (5, 64, 10)):
        x, weight = tensor(rows, inner), tensor(outer, inner)
        y = torch.nn.functional.linear(x, weight)
        assert plan_of(y.meta, x.meta, weight.meta, True) is not None
        np.testing.assert_allclose(y.numpy(), x.numpy() @ weight.numpy().T, atol=1e-12)
