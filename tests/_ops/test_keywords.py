"""NumPy's keyword names, for every operator that has the parameter."""

from __future__ import annotations

import pytest

import refruntime as torch
from refruntime._ops.keywords import with_numpy_names


def test_axis_and_keepdims_reach_operators_and_methods():
    x = torch.arange(6.0).reshape(2, 3)
    assert torch.cumprod(x, axis=0).tolist() == torch.cumprod(x, 0).tolist()
    assert x.sum(axis=1, keepdims=True).tolist() == [[3.0], [12.0]]
    assert torch.argmax(x, axis=-1).tolist() == [2, 2]
    assert torch.softmax(x, axis=0).shape == (2, 3)
    assert torch.stack([x, x], axis=2).shape == (2, 3, 2)
    assert x.clone().cumsum_(axis=1).tolist() == x.cumsum(1).tolist()


def test_functions_without_the_parameter_are_published_as_they_are():
    def plain(input, other):
        return input

    assert with_numpy_names(plain) is plain


def test_calls_mean_what_they_meant():
    def function(input, dim, index, *, keepdim=False, out=None):
        return input, dim, index, keepdim, out

    wrapped = with_numpy_names(function)
    assert wrapped(1, 2, 3) == (1, 2, 3, False, None)
    assert wrapped(1, axis=2, index=3, keepdims=True) == (1, 2, 3, True, None)
    assert wrapped(1, dim=2, index=3, out=4) == (1, 2, 3, False, 4)
    assert wrapped.__name__ == "function"
    for arguments in ((), (1,), (1, 2)):
        with pytest.raises(TypeError, match="missing"):
            wrapped(*arguments)
