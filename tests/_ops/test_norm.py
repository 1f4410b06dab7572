from __future__ import annotations

import numpy as np
import pytest

import refruntime as torch


def test_running_statistics_move_towards_those_of_the_batch():
    x = torch.randn(8, 3, 4) * 2 + 1
    mean, var = torch.zeros(3), torch.ones(3)
    torch.nn.functional.batch_norm(x, mean, var, training=True, momentum=0.25)
    rows = np.moveaxis(x.numpy(), 1, 0).reshape(3, -1)
    np.testing.assert_allclose(mean.numpy(), 0.25 * rows.mean(1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(var.numpy(), 0.75 + 0.25 * rows.var(1, ddof=1), rtol=1e-4)


def test_evaluation_leaves_the_running_statistics_alone():
    mean, var = torch.zeros(3), torch.ones(3)
    y = torch.nn.functional.batch_norm(torch.full((2, 3), 5.0), mean, var, eps=0.0)
    assert y.tolist() == [[5, 5, 5], [5, 5, 5]]
    assert mean.tolist() == [0, 0, 0] and var.tolist() == [1, 1, 1]


def test_writing_running_statistics_counts_as_a_write():
    mean, var = torch.zeros(2), torch.ones(2)
    before = mean._version
    torch.nn.functional.batch_norm(torch.randn(4, 2), mean, var, training=True)
    assert mean._version > before


def test_instance_statistics_are_tracked_as_means_over_the_batch():
    x = torch.randn(5, 2, 30)
    mean, var = torch.zeros(2), torch.zeros(2)
    torch.nn.functional.instance_norm(x, mean, var, momentum=1.0)
    np.testing.assert_allclose(mean.numpy(), x.numpy().mean(2).mean(0), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(var.numpy(), x.numpy().var(2, ddof=1).mean(0), rtol=1e-3)


def test_evaluation_without_statistics_is_refused():
    with pytest.raises(RuntimeError, match="running_mean and running_var to be defined"):
        torch.batch_norm(torch.ones(2, 3))


def test_statistics_carry_no_gradient_and_the_graph_names_the_op():
    x = torch.randn(4, 3, requires_grad=True)
    y = torch.layer_norm(x, (3,))
    assert y.grad_fn.name() == "NativeLayerNormBackward0"
    assert len(y.grad_fn.next_functions) == 3


def test_rms_norm_takes_the_resolution_of_the_dtype_as_epsilon():
    x = torch.tensor([[3.0, 4.0]])
    rms = np.sqrt(12.5 + np.finfo(np.float32).eps)
    np.testing.assert_allclose(torch.rms_norm(x, (2,)).numpy(), x.numpy() / rms, rtol=1e-6)
