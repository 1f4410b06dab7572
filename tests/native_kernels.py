"""Kernel bodies for the tests of `_native`; numba caches functions of files, so they need one."""

from __future__ import annotations

from refruntime._native import (
    device_function,
    f32_bits,
    load_bf16,
    load_f16,
    native,
    ptr_f32,
    ptr_u16,
    ptr_u32,
    store_bf16,
    store_f16,
)


@device_function
def double(x):
    return x + x


@native("void(int64, int64, int64, int64)")
def add(out, a, b, n):
    o, p, q = ptr_f32(out), ptr_f32(a), ptr_f32(b)
    for i in range(n):
        o[i] = p[i] + q[i]


@native("void(int64, int64, int64)")
def doubled(out, a, n):
    o, p = ptr_f32(out), ptr_f32(a)
    for i in range(n):
        o[i] = double(p[i])


@native("void(int64, int64, int64)")
def widen_f16(out, a, n):
    o, p = ptr_f32(out), ptr_u16(a)
    for i in range(n):
        o[i] = load_f16(p, i)


@native("void(int64, int64, int64)")
def round_f16(out, a, n):
    o, p = ptr_u16(out), ptr_f32(a)
    for i in range(n):
        store_f16(o, i, p[i])


@native("void(int64, int64, int64)")
def widen_bf16(out, a, n):
    o, p = ptr_f32(out), ptr_u16(a)
    for i in range(n):
        o[i] = load_bf16(p, i)


@native("void(int64, int64, int64)")
def round_bf16(out, a, n):
    o, p = ptr_u16(out), ptr_f32(a)
    for i in range(n):
        store_bf16(o, i, p[i])


@native("void(int64, int64, int64)")
def bits(out, a, n):
    o, p = ptr_u32(out), ptr_f32(a)
    for i in range(n):
        o[i] = f32_bits(p[i])


@device_function
def plus(x, y):
    return x + y


@native("int64(int64)")
def plus_three_constants(x):
    return plus(plus(plus(x, 1), 2), 3)
