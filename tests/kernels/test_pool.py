from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import refruntime as torch
from refruntime.kernels.pool import adaptive_windows, pool_windows


@pytest.mark.parametrize(("size", "count"), [(7, 3), (3, 7), (8, 8), (5, 1)])
def test_adaptive_windows_cover_the_source_in_order(size, count):
    windows = adaptive_windows(size, count)
    assert len(windows) == count
    assert windows[0][0] == 0 and windows[-1][1] == size
    assert all(a < b for a, b in windows)
    assert all(one[1] >= other[0] for one, other in pairwise(windows))


def test_windows_that_start_in_the_padding_keep_their_phase():
    assert pool_windows(5, 3, 2, 2, 1, 3) == ((2, 3), (1, 5), (3, 5))


def test_of_equal_elements_the_first_place_in_the_window_is_returned():
    _, places = torch.max_pool2d(torch.ones(1, 1, 4, 4), 2, return_indices=True)
    assert places.tolist() == [[[[0, 2], [8, 10]]]]


def test_nan_wins_a_window():
    x = torch.zeros(1, 1, 2, 4)
    x[0, 0, 1, 2] = float("nan")
    y = torch.max_pool2d(x, 2)
    assert np.isnan(y.numpy()).tolist() == [[[[False, True]]]]


def test_minus_infinity_alone_in_a_window_is_its_maximum():
    x = torch.full((1, 1, 2, 2), float("-inf"))
    values, places = torch.max_pool2d(x, 2, return_indices=True)
    assert values.item() == float("-inf") and places.item() == 0


def test_overlapping_windows_add_their_gradients_at_one_place():
    x = torch.zeros(1, 1, 3, 3)
    x[0, 0, 1, 1] = 1.0
    x.requires_grad_()
    torch.max_pool2d(x, 2, 1).sum().backward()
    assert x.grad[0, 0].tolist() == [[0, 0, 0], [0, 4, 0], [0, 0, 0]]


def test_three_dimensions_equal_the_largest_of_stacked_planes():
    x = torch.randn(2, 3, 4, 6, 5)
    wide = x.numpy().reshape(2, 3, 2, 2, 3, 2, 5)[..., :4].reshape(2, 3, 2, 2, 3, 2, 2, 2)
    np.testing.assert_array_equal(torch.max_pool3d(x, 2).numpy(), wide.max((3, 5, 7)))


def test_columns_of_a_plane_and_back_count_each_element_as_often_as_it_is_seen():
    x = torch.ones(1, 1, 4, 5)
    seen = torch.col2im(torch.im2col(x, (2, 3)), (4, 5), (2, 3))
    rows, columns = np.minimum([1, 2, 2, 1], 2), np.array([1, 2, 3, 2, 1])
    np.testing.assert_array_equal(seen[0, 0].numpy(), np.outer(rows, columns))
