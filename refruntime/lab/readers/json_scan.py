"""A compiled reader of JSON that builds the same cells as that of pickles.

State
-----
In the arena: what may come next (`STATE`) and the innermost open bracket (`OPEN`); each bracket's
mark remembers the one around it, and its payload says which it is.

Invariants
----------
* A token is read wholly or not at all, so that a file comes in pieces of any size.
* Integers are exact up to 63 bits; other numbers are within two units of the last place.
* A list does not wait on the stack for its end: every thousand items are moved into it.
"""
# Compiled by Numba, which infers the types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

import numpy as np

from refruntime._native import device_function, f64_bits, native, ptr_i64, ptr_u8
from refruntime.lab.readers.cells import (
    BAD,
    BOOL,
    BUFFER,
    BYTES,
    CELLS,
    DONE,
    EMPTY_DICT,
    EMPTY_LIST,
    END,
    ENTRIES,
    FINAL,
    FLOAT,
    GROW,
    INT,
    MARK,
    MORE,
    NONE,
    OPEN,
    POSITION,
    STATE,
    STRING,
    TOO_DEEP,
    append_items,
    cell,
    intern_bytes,
    lacks,
    make_tuple,
    no_room,
    push,
    push_int,
    push_word,
    set_items,
)

# What may come next.
VALUE: Final = 0
AFTER: Final = 1  # a comma or the end of the container
FIRST_KEY: Final = 2  # a key or the end of the object
KEY: Final = 3
COLON: Final = 4
FIRST_VALUE: Final = 5  # a value or the end of the list

MAX_DEPTH: Final = 1 << 20
_BATCH: Final = 1000
_MOST_TENTHS: Final = 922_337_203_685_477_579  # ten times this and nine more is below 2**63
_LIST: Final = MARK
_OBJECT: Final = (1 << 8) | MARK


@native("int64(int64)")
def scan_json(header):
    """Read tokens until the value ends (DONE) or something is needed; returns a code."""
    h = ptr_i64(header)
    b = ptr_u8(h[BUFFER])
    end = h[END]
    while True:
        p = h[POSITION]
        while p < end and (b[p] == 0x20 or b[p] == 0x0A or b[p] == 0x0D or b[p] == 0x09):
            p += 1
        h[POSITION] = p
        if h[STATE] == AFTER and h[OPEN] == 0:
            # Only white space may follow, up to the end of the file.
            return BAD if p < end else DONE if h[FINAL] != 0 else MORE
        if p >= end:
            return MORE
        if lacks(h, CELLS, 4):
            return TOO_DEEP if h[CELLS + 1] >= MAX_DEPTH else GROW - CELLS
        code = token(h, b, p, end)
        if code < 0:
            return code
        h[POSITION] = code


@device_function
def token(h, b, p, end):
    """Read the token at `p`; returns the place behind it, or a code."""
    c, state = b[p] + 0, h[STATE]
    if state == COLON:
        h[STATE] = VALUE if c == 0x3A else state
        return p + 1 if c == 0x3A else BAD
    if state == AFTER and c == 0x2C:
        return comma(h, p)
    if c == 0x7D:  # }
        return close_object(h, p) if state in (AFTER, FIRST_KEY) else BAD
    if c == 0x5D:  # ]
        return close_list(h, p) if state in (AFTER, FIRST_VALUE) else BAD
    if state in (KEY, FIRST_KEY):
        return text(h, b, p, end, COLON) if c == 0x22 else BAD
    if state == AFTER:
        return BAD
    if c == 0x7B:
        return open_bracket(h, p, EMPTY_DICT, _OBJECT, FIRST_KEY)
    if c == 0x5B:
        return open_bracket(h, p, EMPTY_LIST, _LIST, FIRST_VALUE)
    if c == 0x22:
        return text(h, b, p, end, AFTER)
    if c == 0x2D or 0x30 <= c <= 0x39:
        return figure(h, b, p, end)
    return word(h, b, p, end)


@device_function
def open_bracket(h, p, container, mark, state):
    """Begin a container."""
    push(h, container, 0)
    push(h, mark, h[OPEN])
    h[OPEN] = h[CELLS + 2]
    h[STATE] = state
    return p + 1


@device_function
def comma(h, p):
    """Go on in the innermost container."""
    s, mark = ptr_i64(h[CELLS]), h[OPEN] - 1
    if s[2 * mark] == _OBJECT:
        h[STATE] = KEY
        return p + 1
    if h[CELLS + 2] - mark > _BATCH:
        code = append_items(h, mark - 1, mark + 1)
        if code < 0:
            return code
        h[CELLS + 2] = mark + 1
    h[STATE] = VALUE
    return p + 1


@device_function
def close_object(h, p):
    """End the innermost container, which must be an object."""
    s, mark = ptr_i64(h[CELLS]), h[OPEN] - 1
    if mark < 0 or s[2 * mark] != _OBJECT:
        return BAD
    around = s[2 * mark + 1]
    code = set_items(h, mark - 1, mark + 1)
    if code < 0:
        return code
    h[OPEN] = around
    h[STATE] = AFTER
    return p + 1


@device_function
def close_list(h, p):
    """End the innermost container, which must be a list."""
    s, mark = ptr_i64(h[CELLS]), h[OPEN] - 1
    if mark < 0 or s[2 * mark] != _LIST:
        return BAD
    around = s[2 * mark + 1]
    code = pair(h, mark) if is_pair(h, mark) else append_items(h, mark - 1, mark + 1)
    if code < 0:
        return code
    h[OPEN] = around
    h[STATE] = AFTER
    return p + 1


@device_function
def is_pair(h, mark):
    """Return whether the list that ends is two integers, as the names of pools are."""
    s = ptr_i64(h[CELLS])
    if h[CELLS + 2] - mark != 3 or s[2 * mark - 2] != EMPTY_LIST:
        return False
    return s[2 * mark + 2] & 255 == INT and s[2 * mark + 4] & 255 == INT


@device_function
def pair(h, mark):
    """Make a pair of the two integers above the mark; returns 0, or a code."""
    s = ptr_i64(h[CELLS])
    code = make_tuple(h, mark + 1)
    if code == 0:
        s[2 * mark - 2] = s[2 * mark + 2]
        h[CELLS + 2] = mark
    return code


@device_function
def text(h, b, p, end, state):
    """Read a string and push it."""
    q, escaped = p + 1, False
    while q < end and b[q] != 0x22:
        if b[q] == 0x5C:
            escaped = True
            q += 1
        q += 1
    if q >= end:
        return MORE
    if lacks(h, BYTES, 2 * (q - p)):
        return GROW - BYTES
    if lacks(h, ENTRIES, 1):
        return GROW - ENTRIES
    if escaped:
        count = unescape(h, b, p + 1, q)
        if count < 0:
            return BAD
        entry = intern_bytes(h, ptr_u8(h[BYTES]), h[BYTES + 2], count)
    else:
        entry = intern_bytes(h, b, p + 1, q - p - 1)
    push(h, cell(STRING, entry), 0)
    h[STATE] = state
    return q + 1


@device_function
def unescape(h, b, p, q):
    """Write a string with escapes behind the end of BYTES; returns its length, or -1."""
    out, n = ptr_u8(h[BYTES]), h[BYTES + 2]
    start = n
    while p < q:
        c = b[p] + 0
        p += 1
        if c != 0x5C:
            out[n] = c
            n += 1
            continue
        c = b[p] + 0
        p += 1
        if c == 0x75:
            point = hexadecimal(b, p, q)
            p += 4
            if 0xD800 <= point < 0xDC00 and p + 6 <= q and b[p] == 0x5C and b[p + 1] == 0x75:
                low = hexadecimal(b, p + 2, q)
                if 0xDC00 <= low < 0xE000:
                    point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00)
                    p += 6
            if point < 0:
                return -1
            n = encode(out, n, point)
        else:
            out[n] = plain_escape(c)
            n += 1
    return n - start


@device_function
def plain_escape(c):
    """Return what a letter behind a backslash stands for."""
    if c == 0x6E:
        return 0x0A
    if c == 0x74:
        return 0x09
    if c == 0x72:
        return 0x0D
    if c == 0x62:
        return 0x08
    if c == 0x66:
        return 0x0C
    return c


@device_function
def hexadecimal(b, p, q):
    """Return the number of four hexadecimal digits, or -1."""
    value = 0
    if p + 4 > q:
        return -1
    for i in range(4):
        c = b[p + i] + 0
        if 0x30 <= c <= 0x39:
            c -= 0x30
        elif 0x41 <= (c & 0xDF) <= 0x46:
            c = (c & 0xDF) - 0x37
        else:
            return -1
        value = 16 * value + c
    return value


@device_function
def encode(out, n, point):
    """Write a code point as UTF-8; returns the place behind it."""
    if point < 0x80:
        out[n] = point
        return n + 1
    if point < 0x800:
        out[n] = 0xC0 | (point >> 6)
    elif point < 0x10000:
        out[n] = 0xE0 | (point >> 12)
        n += 1
        out[n] = 0x80 | ((point >> 6) & 0x3F)
    else:
        out[n] = 0xF0 | (point >> 18)
        out[n + 1] = 0x80 | ((point >> 12) & 0x3F)
        n += 2
        out[n] = 0x80 | ((point >> 6) & 0x3F)
    out[n + 1] = 0x80 | (point & 0x3F)
    return n + 2


@device_function
def digits_end(b, p, end):
    """Return the place behind the digits at `p`."""
    while p < end and 0x30 <= b[p] <= 0x39:
        p += 1
    return p


@device_function
def figure(h, b, p, end):
    """Read a number and push it."""
    first = p + 1 if b[p] == 0x2D else p
    q = digits_end(b, first, end)
    whole = q
    if q < end and b[q] == 0x2E:
        q = digits_end(b, q + 1, end)
    point = q
    if q < end and (b[q] | 0x20) == 0x65:
        q += 1
        if q < end and (b[q] == 0x2B or b[q] == 0x2D):
            q += 1
        q = digits_end(b, q, end)
    if q >= end and h[FINAL] == 0:
        return MORE
    if whole == first:
        return BAD
    code = no_room(h, 1)
    if code != 0:
        return code
    value = 0
    for i in range(first, min(whole, first + 18)):
        value = 10 * value + (b[i] - 0x30)
    if q == whole and whole - first == 19 and value <= _MOST_TENTHS:
        value = 10 * value + (b[whole - 1] - 0x30)
        push_int(h, -value if first > p else value)
    elif q == whole and whole - first <= 18:
        push_int(h, -value if first > p else value)
    else:
        bits = np.int64(f64_bits(magnitude(b, first, whole, point, q)))
        push_word(h, FLOAT, bits - (1 << 62) - (1 << 62) if first > p else bits)
    h[STATE] = AFTER
    return q


@device_function
def magnitude(b, first, whole, point, end):
    """Return a number without its sign: digits, a fraction up to `point`, an exponent to `end`."""
    value, scale = 0.0, 0
    for i in range(first, point):
        if i != whole:
            value = 10.0 * value + (b[i] - 0x30)
    if point > whole:
        scale = whole + 1 - point
    if end > point:
        exponent, start = 0, point + 1
        negative = b[start] == 0x2D
        if negative or b[start] == 0x2B:
            start += 1
        for i in range(start, end):
            exponent = min(10 * exponent + (b[i] - 0x30), 400)
        scale += -exponent if negative else exponent
    # Dividing is exact to the last bit for the short fractions that settings are.
    return value / 10.0 ** min(-scale, 300) if scale < 0 else value * 10.0**scale


@device_function
def matches(b, p, end, letters, count):
    """Return whether the letters (packed, first in the low byte) stand at `p`; MORE at the end."""
    for i in range(count):
        if p + i >= end:
            return MORE
        if b[p + i] != (letters >> (8 * i)) & 255:
            return 0
    return 1


@device_function
def word(h, b, p, end):
    """Read true, false or null and push it; NaN and infinities count as null."""
    c = b[p] + 0
    value, found, count = NONE, BAD, 4
    if c == 0x74:
        value = (1 << 8) | BOOL
        found = matches(b, p, end, 0x65757274, 4)
    elif c == 0x66:
        value, count = BOOL, 5
        found = matches(b, p, end, 0x65736C6166, 5)
    elif c == 0x6E:
        found = matches(b, p, end, 0x6C6C756E, 4)
    elif c == 0x4E:
        count = 3
        found = matches(b, p, end, 0x4E614E, 3)
    elif c == 0x49:
        count = 8
        found = matches(b, p, end, 0x7974696E69666E49, 8)
    if found != 1:
        return BAD if found == 0 or h[FINAL] != 0 else found
    push(h, value, 0)
    h[STATE] = AFTER
    return p + count
