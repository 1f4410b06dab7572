"""The same bytes as another dtype."""

import numpy as np
import pytest

import refruntime as torch


def test_view_of_another_size_regroups_the_last_dimension():
    x = torch.arange(8, dtype=torch.int32).reshape(2, 4)
    assert x.view(torch.int64).shape == (2, 2)
    assert x.view(torch.uint8).shape == (2, 16)
    np.testing.assert_array_equal(x.view(torch.int16).numpy(), x.numpy().view(np.int16))
    assert x.view(torch.float32).data_ptr() == x.data_ptr()


def test_view_dtype_writes_the_same_memory():
    x = torch.zeros(2)
    x.view(torch.int32)[0] = 0x3F800000
    assert x.tolist() == [1.0, 0.0]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: torch.zeros(3, dtype=torch.int16).view(torch.int32), "divisible by 2"),
        (lambda: torch.zeros(4, dtype=torch.int16)[1:3].view(torch.int32), "storage_offset"),
        (lambda: torch.zeros(2, 2).t().view(torch.int8), r"stride\(-1\) must be 1"),
        (lambda: torch.tensor(1.0).view(torch.int8), "cannot be 0"),
        (lambda: torch.imag(torch.zeros(2)), "non-complex"),
        (lambda: torch.view_as_real(torch.zeros(2)), "complex tensors"),
        (lambda: torch.view_as_complex(torch.zeros(3)), "last dimension of size 2"),
        (lambda: torch.view_as_complex(torch.zeros(2, dtype=torch.int64)), "float and double"),
    ],
)
def test_bytes_that_do_not_regroup_are_explained(make, text):
    with pytest.raises(RuntimeError, match=text):
        make()


def test_complex_numbers_are_pairs():
    z = torch.tensor([1 + 2j, 3 - 4j])
    assert torch.view_as_real(z).tolist() == [[1.0, 2.0], [3.0, -4.0]]
    assert z.real.tolist() == [1.0, 3.0]
    assert z.imag.tolist() == [2.0, -4.0]
    assert torch.view_as_complex(torch.view_as_real(z)).tolist() == z.tolist()
    z.imag.zero_()
    assert z.tolist() == [1 + 0j, 3 + 0j]
    x = torch.ones(2)
    assert x.real is x


def test_complex_numbers_are_made_of_parts_or_of_angles():
    z = torch.complex(torch.tensor([1.0, 0.0]), torch.tensor(2.0))
    assert z.dtype is torch.complex64
    assert z.tolist() == [1 + 2j, 2j]
    assert torch.conj(z).tolist() == [1 - 2j, -2j]
    turned = torch.polar(torch.tensor([2.0]), torch.tensor([np.pi / 2]))
    np.testing.assert_allclose(turned.numpy(), [2j], atol=1e-6)
    x = torch.ones(2)
    assert x.conj() is x


def test_gradient_flows_through_the_parts():
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    z = torch.complex(x, x * 2)
    (torch.view_as_real(z) * torch.tensor([1.0, 10.0])).sum().backward()
    assert x.grad.tolist() == [21.0, 21.0]
