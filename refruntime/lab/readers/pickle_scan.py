"""A compiled reader of pickles that resolves nothing: protocols 2 to 5, plain data only.

State
-----
In the arena (see `cells`); the position in the buffer is kept between calls, so that a file comes
in pieces of any size.

Invariants
----------
* An opcode that names a class, calls something or asks the outside ends the reading with CODE.
* An opcode is carried out wholly or not at all; `POSITION` moves only when it was.
"""
# Compiled by Numba, which infers the types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

from refruntime._native import device_function, native, ptr_i64, ptr_u8
from refruntime.lab.readers.cells import (
    BAD,
    BOOL,
    BUFFER,
    BYTES,
    CELLS,
    CODE,
    CONSUMED,
    DONE,
    EMPTY_DICT,
    EMPTY_LIST,
    END,
    ENTRIES,
    FLOAT,
    FOREIGN,
    GROW,
    MARK,
    MEMO,
    MORE,
    NEED,
    NONE,
    POSITION,
    PROTOCOL,
    STRING,
    TOO_DEEP,
    append_items,
    cell,
    insert_target,
    intern_bytes,
    lacks,
    last_mark,
    make_tuple,
    no_room,
    push,
    push_int,
    push_word,
    put,
    set_items,
)

MAX_DEPTH: Final = 1 << 20


@native("int64(int64)")
def scan_pickle(header):
    """Read opcodes until the pickle ends (DONE) or something is needed; returns a code."""
    h = ptr_i64(header)
    b = ptr_u8(h[BUFFER])
    end = h[END]
    while True:
        p = h[POSITION]
        if p >= end:
            return MORE
        if lacks(h, CELLS, 4):
            return TOO_DEEP if h[CELLS + 1] >= MAX_DEPTH else GROW - CELLS
        op = b[p]
        if op == 0x2E:  # STOP
            h[POSITION] = p + 1
            return DONE if h[CELLS + 2] == 1 else BAD
        size = operand_size(b, p, end, op)
        if size < 0:
            return size
        if p + 1 + size > end:
            return MORE
        code = carry_out(h, b, p + 1, op, size)
        if code < 0:
            return code
        h[POSITION] = p + 1 + size


@device_function
def little(b, p, count):
    """Return an unsigned number of `count` bytes, at most seven of them, or a signed one of 8."""
    value = 0
    for i in range(count):
        value |= b[p + i] << (8 * i)
    return value


@device_function
def signed(b, p, count):
    """Return a two's complement number; what passes 63 bits is cut to the largest."""
    if count > 8:
        return -(1 << 62) - (1 << 62) if b[p + count - 1] >= 128 else (1 << 62) - 1 + (1 << 62)
    value = 0
    for i in range(count - 1):
        value |= b[p + i] << (8 * i)
    if count > 0:
        high = b[p + count - 1] - 256 if b[p + count - 1] >= 128 else b[p + count - 1] + 0
        value += high * (1 << (8 * (count - 1)))
    return value


@device_function
def operand_size(b, p, end, op):
    """Return how many bytes follow an opcode, or a code."""
    if op in (0x68, 0x71, 0x4B, 0x80, 0x82):  # BINGET BINPUT BININT1 PROTO EXT1
        return 1
    if op in (0x6A, 0x72, 0x4A):  # LONG_BINGET LONG_BINPUT BININT
        return 4
    if op == 0x4D:  # BININT2
        return 2
    if op in (0x47, 0x95):  # BINFLOAT FRAME
        return 8
    if op in (0x8C, 0x8A, 0x43, 0x55):  # SHORT_BINUNICODE LONG1 SHORT_BINBYTES SHORT_BINSTRING
        return 1 + b[p + 1] if p + 1 < end else MORE
    if op in (0x58, 0x8B, 0x42, 0x54):  # BINUNICODE LONG4 BINBYTES BINSTRING
        return 4 + little(b, p + 1, 4) if p + 4 < end else MORE
    if op in (0x8D, 0x8E):  # BINUNICODE8 BINBYTES8
        if p + 8 >= end:
            return MORE
        return BAD if b[p + 8] != 0 or b[p + 7] != 0 else 8 + little(b, p + 1, 6)
    return 0


@device_function
def carry_out(h, b, p, op, size):
    """Carry one opcode out; its operand is `size` bytes at `p`. Returns a code below zero, or 0."""
    if op == 0x68:
        return get(h, b[p] + 0)
    if op == 0x6A:
        return get(h, little(b, p, 4))
    if op == 0x94:  # MEMOIZE
        return memoize(h, h[MEMO + 2], p)
    if op == 0x71:
        return memoize(h, b[p] + 0, p)
    if op == 0x72:
        return memoize(h, little(b, p, 4), p)
    if op in (0x4B, 0x4D, 0x4A, 0x8A, 0x8B, 0x47):
        return number(h, b, p, op, size)
    if op in (0x8C, 0x58, 0x8D, 0x43, 0x42, 0x8E, 0x55, 0x54):
        return string(h, b, p, op, size)
    return structure(h, b, p, op)


@device_function
def get(h, place):
    """Push what the memo holds."""
    if place >= h[MEMO + 2]:
        return BAD
    push(h, ptr_i64(h[MEMO])[place], place + 1)
    return 0


@device_function
def memoize(h, place, p):
    """Remember the top of the stack."""
    if h[CELLS + 2] == 0 or place > h[CONSUMED] + p:
        # Each memo entry takes a byte of the file at least: a higher number is a bomb.
        return BAD
    if place >= h[MEMO + 1]:
        h[NEED] = place + 1 - h[MEMO + 2]
        return GROW - MEMO
    memo, s = ptr_i64(h[MEMO]), ptr_i64(h[CELLS])
    for i in range(h[MEMO + 2], place):
        memo[i] = NONE
    memo[place] = s[2 * h[CELLS + 2] - 2]
    s[2 * h[CELLS + 2] - 1] = place + 1
    h[MEMO + 2] = max(h[MEMO + 2], place + 1)
    return 0


@device_function
def number(h, b, p, op, size):
    """Push a number."""
    code = no_room(h, 1)
    if code != 0:
        return code
    if op == 0x47:
        value = b[p] - 256 if b[p] >= 128 else b[p] + 0
        for i in range(1, 8):
            value = value * 256 + b[p + i]
        push_word(h, FLOAT, value)
    elif op in (0x4B, 0x4D):
        push_int(h, little(b, p, size))
    elif op == 0x4A:
        push_int(h, signed(b, p, 4))
    elif op == 0x8A:
        push_int(h, signed(b, p + 1, size - 1))
    else:
        push_int(h, signed(b, p + 4, size - 4))
    return 0


@device_function
def string(h, b, p, op, size):
    """Push a string (bytes are taken for one)."""
    skip = 1 if op in (0x8C, 0x43, 0x55) else 8 if op in (0x8D, 0x8E) else 4
    if lacks(h, BYTES, size - skip):
        return GROW - BYTES
    if lacks(h, ENTRIES, 1):
        return GROW - ENTRIES
    push(h, cell(STRING, intern_bytes(h, b, p + skip, size - skip)), 0)
    return 0


@device_function
def structure(h, b, p, op):
    """Carry out an opcode that builds or closes a container, or is a constant."""
    if op == 0x28:  # MARK
        push(h, MARK, 0)
    elif op == 0x7D:  # EMPTY_DICT
        push(h, EMPTY_DICT, 0)
    elif op in (0x5D, 0x29, 0x8F):  # EMPTY_LIST EMPTY_TUPLE EMPTY_SET
        push(h, EMPTY_LIST, 0)
    elif op == 0x4E:  # NONE
        push(h, NONE, 0)
    elif op in (0x88, 0x89):  # NEWTRUE NEWFALSE
        push(h, cell(BOOL, 0x89 - op), 0)
    elif op in (0x75, 0x73, 0x65, 0x90, 0x61):
        return fill(h, op)
    elif op in (0x85, 0x86, 0x87):  # TUPLE1 TUPLE2 TUPLE3
        return make_tuple(h, h[CELLS + 2] - (op - 0x84))
    elif op in (0x74, 0x6C, 0x91, 0x64):  # TUPLE LIST FROZENSET DICT
        return close_mark(h, op)
    elif op == 0x95:  # FRAME: a hint about lengths
        return 0
    elif op == 0x80:  # PROTO
        h[PROTOCOL] = b[p]
        return 0 if 2 <= b[p] <= 5 else FOREIGN
    elif op in (0x30, 0x31, 0x32):  # POP POP_MARK DUP
        return juggle(h, op)
    else:
        return refuse(op)
    return 0


@device_function
def fill(h, op):
    """Put what stands on top of a container into it."""
    top = h[CELLS + 2]
    if op == 0x73:  # SETITEM
        return set_items(h, top - 3, top - 2)
    if op == 0x61:  # APPEND
        return append_items(h, top - 2, top - 1)
    mark = last_mark(h)
    if op == 0x75:  # SETITEMS
        return set_items(h, mark - 1, mark + 1)
    return append_items(h, mark - 1, mark + 1)  # APPENDS ADDITEMS


@device_function
def close_mark(h, op):
    """Make a tuple, a list or a dict of what stands above the last mark."""
    s = ptr_i64(h[CELLS])
    mark = last_mark(h)
    if mark < 0:
        return BAD
    if op == 0x74 and h[CELLS + 2] - mark == 3:
        first, second = s[2 * mark + 2], s[2 * mark + 4]
        s[2 * mark], s[2 * mark + 2] = first, second
        h[CELLS + 2] -= 1
        code = make_tuple(h, mark)
        if code < 0:
            s[2 * mark], s[2 * mark + 2], s[2 * mark + 4] = MARK, first, second
            h[CELLS + 2] = mark + 3
        return code
    insert_target(h, mark, EMPTY_DICT if op == 0x64 else EMPTY_LIST)
    code = set_items(h, mark, mark + 1) if op == 0x64 else append_items(h, mark, mark + 1)
    if code < 0:
        put(h, mark, MARK)
    return code


@device_function
def juggle(h, op):
    """Drop or repeat the top of the stack."""
    top = h[CELLS + 2]
    if op == 0x31:
        top = last_mark(h) + 1
    if top <= 0:
        return BAD
    if op == 0x32:
        s = ptr_i64(h[CELLS])
        push(h, s[2 * top - 2], s[2 * top - 1])
    else:
        h[CELLS + 2] = top - 1
    return 0


@device_function
def refuse(op):
    """Return why an opcode is not carried out."""
    # GLOBAL STACK_GLOBAL REDUCE BUILD INST OBJ NEWOBJ NEWOBJ_EX PERSID BINPERSID EXT1..4 and
    # the buffers of protocol 5: all of them need something outside the file.
    if op in (0x63, 0x93, 0x52, 0x62, 0x69, 0x6F, 0x81, 0x92, 0x50, 0x51):
        return CODE
    if op in (0x82, 0x83, 0x84, 0x97, 0x98, 0x96):
        return CODE
    return FOREIGN
