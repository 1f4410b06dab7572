"""Combinations, coordinates of flat numbers, places of non-zeros."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import refruntime as torch
from refruntime.errors import ShapeError


@pytest.mark.parametrize("r", [0, 1, 2, 3, 5])
def test_combinations_of_elements(r):
    values = [10, 20, 30, 40]
    x = torch.tensor(values)
    rows = [list(row) for row in itertools.combinations(values, r)] if r else []
    assert torch.combinations(x, r).tolist() == rows
    if r:
        again = itertools.combinations_with_replacement(values, r)
        got = torch.combinations(x, r, with_replacement=True)
        assert got.tolist() == [list(row) for row in again]
    with pytest.raises(ShapeError):
        torch.combinations(torch.ones(2, 2))


def test_coordinates_of_flat_numbers():
    numbers = np.array([[0, 5], [11, 23]])
    got = torch.unravel_index(torch.tensor(numbers), (2, 3, 4))
    for one, want in zip(got, np.unravel_index(numbers, (2, 3, 4)), strict=True):
        np.testing.assert_array_equal(one.numpy(), want)


def test_fixed_number_of_places():
    x = torch.tensor([[1, 0], [0, 1]])
    assert torch.nonzero_static(x, size=3).tolist() == [[0, 0], [1, 1], [-1, -1]]
    assert torch.nonzero_static(x, size=1, fill_value=9).tolist() == [[0, 0]]
