"""Philox blocks against the published known answers, and the maps from words to numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest

from refruntime._native import native, ptr_f32, ptr_u32
from refruntime.kernels import philox

# Counter, key and block of the known-answer test of the Random123 paper's authors.
ALL_ONES = 0xFFFFFFFF
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ALL_ONES,) * 4, (ALL_ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

block_of = philox.philox
log_of = philox.minus_log_f32
direction_of = philox.cos_sin_f32
product_of = philox.multiply_high
fill = philox.fill_words


@native("void(int64, int64)", fastmath=philox.EXACT)
def one_block(out, inputs):
    p = ptr_u32(out)
    q = ptr_u32(inputs)
    p[0], p[1], p[2], p[3] = block_of(q[0], q[1], q[2], q[3], q[4], q[5])


@native("void(int64, int64, int64)", fastmath=philox.EXACT)
def map_words(out, words, n):
    p = ptr_f32(out)
    q = ptr_u32(words)
    for i in range(n):
        x, y = direction_of(q[i])
        p[3 * i] = log_of(q[i])
        p[3 * i + 1] = x
        p[3 * i + 2] = y


@native("uint64(uint64, uint64)", fastmath=philox.EXACT)
def high(a, b):
    return product_of(a, b)


@native("void(int64, uint64, uint64, int64)", fastmath=philox.EXACT)
def stream(out, seed, first, blocks):
    p = ptr_u32(out)
    words = np.empty(philox.SCRATCH, np.uint32)
    fill(words, seed, first, blocks)
    for i in range(4 * blocks):
        p[i] = words[i]


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN)
def test_a_block_equals_the_known_answer(counter, key, block):
    inputs = np.array([*counter, *key], np.uint32)
    out = np.zeros(4, np.uint32)
    one_block(out.ctypes.data, inputs.ctypes.data)
    assert tuple(out.tolist()) == block


@pytest.mark.parametrize(("counter", "key", "block"), KNOWN)
def test_the_body_as_plain_python_equals_the_known_answer(counter, key, block):
    words = map(np.uint32, (*counter, *key))
    assert tuple(map(int, philox.philox(*words))) == block


def test_a_tile_holds_the_blocks_of_consecutive_counters():
    seed, first = (7 << 32) | 5, (3 << 32) | 0xFFFFFFFE
    out = np.zeros(16, np.uint32)
    stream(out.ctypes.data, seed, first, 4)
    for b in range(4):
        counter = first + b
        inputs = np.array([counter & ALL_ONES, counter >> 32, 0, 0, 5, 7], np.uint32)
        block = np.zeros(4, np.uint32)
        one_block(block.ctypes.data, inputs.ctypes.data)
        np.testing.assert_array_equal(out[4 * b : 4 * b + 4], block)


def test_logarithm_and_direction_are_exact_to_float32():
    edges = [0, 1, 2, 3, 2**31 - 1, 2**31, 2**30, 3 * 2**30, 2**32 - 1, 2**32 - 129, 3037000499]
    words = np.concatenate(
        [np.array(edges, np.uint32), np.random.default_rng(0).integers(0, 2**32, 20000, np.uint32)]
    )
    out = np.zeros((len(words), 3), np.float32)
    map_words(out.ctypes.data, words.ctypes.data, len(words))
    # The word is rounded to float32 before the logarithm is taken; so is the reference's.
    rounded = (words.astype(np.float32) + np.float32(1)).astype(np.float64)
    expected = 32 * math.log(2.0) - np.log(rounded)
    np.testing.assert_allclose(out[:, 0], expected, rtol=3e-7, atol=3e-7)
    angle = 2 * math.pi * _centred(words)
    np.testing.assert_allclose(out[:, 1], np.cos(angle), atol=2e-7)
    np.testing.assert_allclose(out[:, 2], np.sin(angle), atol=2e-7)
    assert (out[:, 0] >= 0).all()


def _centred(words: np.ndarray) -> np.ndarray:
    """The angle in turns: a quarter chosen by the upper bits, and an eighth each way around it."""
    quarter = (words >> 30).astype(np.float64)
    rest = (words << np.uint32(2)).astype(np.int32).astype(np.float64) / 2.0**34
    return quarter / 4 + rest


def test_multiply_high_equals_the_product_of_python_ints():
    rng = np.random.default_rng(1)
    pairs = rng.integers(0, 2**64, (200, 2), np.uint64).tolist()
    for a, b in [(2**64 - 1, 2**64 - 1), (0, 5), (2**63, 2), *pairs]:
        assert high(a, b) == a * b >> 64
