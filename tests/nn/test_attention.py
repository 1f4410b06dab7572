"""Choosing implementations of attention."""

from __future__ import annotations

import pytest

from refruntime.nn.attention import SDPBackend, allowed_backends, sdpa_kernel


def test_the_innermost_block_decides_what_is_allowed():
    before = allowed_backends()
    with sdpa_kernel(SDPBackend.MATH):
        assert allowed_backends() == (SDPBackend.MATH,)
        with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]):
            assert allowed_backends() == (SDPBackend.FLASH_ATTENTION, SDPBackend.MATH)
        assert allowed_backends() == (SDPBackend.MATH,)
    assert allowed_backends() == before
    assert SDPBackend.ERROR not in before


def test_other_values_are_refused():
    with pytest.raises(TypeError, match="SDPBackend"), sdpa_kernel(["math"]):
        pass
