"""Compiled building of values: a stack, a memo, lists, and dicts stored as rows of like shape.

State
-----
All in tables that `Arena` owns and the header `h` points at. A value is one 64-bit *cell*: a tag in
the low byte, a payload above it. Strings, pairs of integers, frames, stacks of frames and the
shapes of dicts are *entries*: stored once, found by their content. A *shape* is the sequence of a
dict's keys and of its values' tags; the payloads of all dicts of one shape are the rows of one
matrix, which `Arena` takes away page by page.

Invariants
----------
* Every step checks that there is room before it changes anything, so that a code below zero means
  that nothing happened and the step can be repeated.
* A list of frames is a STACK entry, so that equal stacks are one, however the file repeats them.
* Nothing here knows what a snapshot is, and nothing in a file can make it call anything.
"""
# Compiled by Numba, which infers the types: every value is a 64-bit integer.
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Final

from refruntime._native import device_function, ptr_i64, ptr_u8

# --- tags ---------------------------------------------------------------------------------------
NONE: Final = 0
BOOL: Final = 1
INT: Final = 2
WIDE: Final = 3  # an integer beyond 54 bits: an entry of one word
FLOAT: Final = 4  # an entry of one word, the bits
STRING: Final = 5  # an entry of bytes
PAIR: Final = 6  # an entry of two words: a tuple of two integers
FRAME: Final = 7  # an entry of three words: name, file, line
STACK: Final = 8  # an entry of frames
SHAPE: Final = 9  # an entry of two words a key: the key's cell, the value's tag
LIST: Final = 10  # the number of a list
EMPTY_LIST: Final = 11
DICT: Final = 12  # shape << ROW_BITS | row
EMPTY_DICT: Final = 13
MARK: Final = 14
ROW_BITS: Final = 36
MAX_SHAPES: Final = 1 << 14
NARROW: Final = 1 << 54

# --- header: fields, then three words a table (address, capacity, count) --------------------------
BUFFER: Final = 0
END: Final = 1
POSITION: Final = 2
FINAL: Final = 3  # whether the buffer holds the end of the file
NEED: Final = 4  # how much room a table lacks, or which shape needs a page
CONSUMED: Final = 5  # bytes of the file before the buffer
SLOTS: Final = 6  # address of the hash table
SLOT_MASK: Final = 7
KEY_NAME: Final = 8  # cells of the three keys that make a frame
KEY_FILE: Final = 9
KEY_LINE: Final = 10
STATE: Final = 11  # of the JSON reader: what may come next,
OPEN: Final = 12  # and the place of the innermost open bracket, plus one
PROTOCOL: Final = 13
TABLES: Final = 16
CELLS: Final = TABLES  # the stack: two words a value, the cell and its place in the memo plus one
MEMO: Final = TABLES + 3
ITEMS: Final = TABLES + 6
LISTS: Final = TABLES + 9  # two words a list: its first chunk and its last
CHUNKS: Final = TABLES + 12  # three words a chunk: first item, count, next chunk (or -1)
ENTRIES: Final = TABLES + 15  # four words an entry: hash, offset, count << 8 | tag, number of shape
BYTES: Final = TABLES + 18
WORDS: Final = TABLES + 21
SHAPES: Final = TABLES + 24  # five words a shape: page, capacity, rows, rows before, entry
HEADER_WORDS: Final = TABLES + 27

# --- codes, below zero ----------------------------------------------------------------------------
DONE: Final = -1
MORE: Final = -2  # the buffer ends inside a token
PAGE: Final = -3  # shape NEED has no room for another row
TOO_DEEP: Final = -4
BAD: Final = -5  # not what the format allows
CODE: Final = -6  # asks for a class, or to call something
TOO_MANY: Final = -7  # keys or shapes that no snapshot has
FOREIGN: Final = -8  # an opcode of another protocol
GROW: Final = -100  # minus the table

_HASH_MASK: Final = (1 << 54) - 1


@device_function
def cell(tag, payload):
    """Make a cell."""
    return (payload << 8) | tag


@device_function
def lacks(h, table, amount):
    """Return whether a table has no room for `amount` more, and note how much it needs."""
    if h[table + 2] + amount <= h[table + 1]:
        return False
    h[NEED] = amount
    return True


@device_function
def push(h, value, place):
    """Push a cell; the caller has seen to the room."""
    s = ptr_i64(h[CELLS])
    top = h[CELLS + 2]
    s[2 * top] = value
    s[2 * top + 1] = place
    h[CELLS + 2] = top + 1


@device_function
def last_mark(h):
    """Return the place of the topmost mark on the stack, or -1."""
    s = ptr_i64(h[CELLS])
    i = h[CELLS + 2] - 1
    while i >= 0 and s[2 * i] & 255 != MARK:
        i -= 1
    return i


# --- entries ------------------------------------------------------------------------------------


@device_function
def words_hash(w, start, count, tag):
    """Return the hash of words; wrapping arithmetic keeps the low bits right."""
    value = tag + 7 * count
    for i in range(start, start + count):
        value = (value * 1000003 + (w[i] ^ (w[i] >> 23))) & _HASH_MASK
    return value ^ (value >> 21)


@device_function
def add_entry(h, slot, hashed, offset, count, tag):
    """Enter content under a free slot; return the entry's number."""
    e = ptr_i64(h[ENTRIES])
    number = h[ENTRIES + 2]
    e[4 * number] = hashed
    e[4 * number + 1] = offset
    e[4 * number + 2] = (count << 8) | tag
    e[4 * number + 3] = -1
    h[ENTRIES + 2] = number + 1
    ptr_i64(h[SLOTS])[slot] = number + 1
    return number


@device_function
def same_words(w, a, b, count):
    """Return whether two runs of words are equal."""
    i = 0
    while i < count and w[a + i] == w[b + i]:
        i += 1
    return i == count


@device_function
def intern_words(h, tag, count):
    """Return the entry of the `count` words behind the end of WORDS; there must be room for one."""
    w, e, slots = ptr_i64(h[WORDS]), ptr_i64(h[ENTRIES]), ptr_i64(h[SLOTS])
    start = h[WORDS + 2]
    hashed = words_hash(w, start, count, tag)
    slot = hashed & h[SLOT_MASK]
    while slots[slot] != 0:
        k = 4 * (slots[slot] - 1)
        same = e[k] == hashed and e[k + 2] == (count << 8) | tag
        if same and same_words(w, start, e[k + 1], count):
            return slots[slot] - 1
        slot = (slot + 1) & h[SLOT_MASK]
    h[WORDS + 2] = start + count
    return add_entry(h, slot, hashed, start, count, tag)


@device_function
def intern_bytes(h, b, start, count):
    """Return the entry of a string in the buffer; there must be room for it."""
    pool, e, slots = ptr_u8(h[BYTES]), ptr_i64(h[ENTRIES]), ptr_i64(h[SLOTS])
    hashed = STRING + 7 * count
    for i in range(start, start + count):
        hashed = (hashed * 1000003 + b[i]) & _HASH_MASK
    hashed ^= hashed >> 21
    slot = hashed & h[SLOT_MASK]
    while slots[slot] != 0:
        k = 4 * (slots[slot] - 1)
        if e[k] == hashed and e[k + 2] == (count << 8) | STRING:
            i = 0
            while i < count and pool[e[k + 1] + i] == b[start + i]:
                i += 1
            if i == count:
                return slots[slot] - 1
        slot = (slot + 1) & h[SLOT_MASK]
    offset = h[BYTES + 2]
    for i in range(count):
        pool[offset + i] = b[start + i]
    h[BYTES + 2] = offset + count
    return add_entry(h, slot, hashed, offset, count, STRING)


@device_function
def no_room(h, words):
    """Return the code to grow what one push with one entry of `words` words needs, or 0."""
    if lacks(h, CELLS, 2):
        return GROW - CELLS
    if lacks(h, ENTRIES, 2):
        return GROW - ENTRIES
    if lacks(h, WORDS, words):
        return GROW - WORDS
    return 0


@device_function
def push_word(h, tag, word):
    """Push a value that is an entry of one word."""
    ptr_i64(h[WORDS])[h[WORDS + 2]] = word
    push(h, cell(tag, intern_words(h, tag, 1)), 0)


@device_function
def push_int(h, value):
    """Push an integer; the caller has asked `no_room`."""
    if -NARROW < value < NARROW:
        push(h, cell(INT, value), 0)
    else:
        push_word(h, WIDE, value)


# --- dicts --------------------------------------------------------------------------------------


@device_function
def put(h, place, value):
    """Replace the cell at a place of the stack, also where the memo knows it."""
    s = ptr_i64(h[CELLS])
    s[2 * place] = value
    if s[2 * place + 1] > 0:
        ptr_i64(h[MEMO])[s[2 * place + 1] - 1] = value


@device_function
def frame_entry(h, first):
    """Return the entry of the frame whose keys and values stand from `first` on, or -1."""
    s, w = ptr_i64(h[CELLS]), ptr_i64(h[WORDS])
    start, found = h[WORDS + 2], 0
    for i in range(first, h[CELLS + 2], 2):
        key, value = s[2 * i], s[2 * i + 2]
        if key == h[KEY_NAME] and value & 255 == STRING:
            w[start] = value >> 8
            found |= 1
        elif key == h[KEY_FILE] and value & 255 == STRING:
            w[start + 1] = value >> 8
            found |= 2
        elif key == h[KEY_LINE] and value & 255 == INT:
            w[start + 2] = value >> 8
            found |= 4
    return intern_words(h, FRAME, 3) if found == 7 else -1


@device_function
def shape_of(h, first):
    """Return the number of the shape of the keys and values from `first` on, or a code."""
    s, w, e = ptr_i64(h[CELLS]), ptr_i64(h[WORDS]), ptr_i64(h[ENTRIES])
    start, top = h[WORDS + 2], h[CELLS + 2]
    for i in range(first, top, 2):
        w[start + i - first] = s[2 * i]
        w[start + i - first + 1] = s[2 * i + 2] & 255
    entry = intern_words(h, SHAPE, top - first)
    if e[4 * entry + 3] < 0:
        number = h[SHAPES + 2]
        if number == MAX_SHAPES:
            return TOO_MANY
        e[4 * entry + 3] = number
        f = ptr_i64(h[SHAPES])
        f[5 * number] = f[5 * number + 1] = f[5 * number + 2] = f[5 * number + 3] = 0
        f[5 * number + 4] = entry
        h[SHAPES + 2] = number + 1
    return e[4 * entry + 3]


@device_function
def add_row(h, shape, first):
    """Store the values of a dict as a row; return its cell, or PAGE."""
    s, f = ptr_i64(h[CELLS]), ptr_i64(h[SHAPES])
    k = 5 * shape
    if f[k + 2] == f[k + 1]:
        h[NEED] = shape
        return PAGE
    page = ptr_i64(f[k])
    count = (h[CELLS + 2] - first) // 2
    offset = f[k + 2] * count
    for i in range(count):
        page[offset + i] = s[2 * (first + 2 * i) + 2] >> 8
    row = f[k + 3] + f[k + 2]
    f[k + 2] += 1
    return cell(DICT, (shape << ROW_BITS) | row)


@device_function
def set_items(h, target, first):
    """Make the keys and values from `first` on the content of the empty dict at `target`.

    Returns 0, or a code.
    """
    s = ptr_i64(h[CELLS])
    count = h[CELLS + 2] - first
    if target < 0 or count % 2 != 0:
        return BAD
    if count == 0:
        h[CELLS + 2] = target + 1
        return 0
    if s[2 * target] & 255 != EMPTY_DICT:
        return TOO_MANY
    if lacks(h, SHAPES, 1):
        return GROW - SHAPES
    code = no_room(h, count + 3)
    if code != 0:
        return code
    entry = frame_entry(h, first)
    if entry >= 0:
        value = cell(FRAME, entry)
    else:
        shape = shape_of(h, first)
        value = add_row(h, shape, first) if shape >= 0 else shape
        if value < 0:
            return value
    put(h, target, value)
    h[CELLS + 2] = target + 1
    return 0


# --- lists --------------------------------------------------------------------------------------


@device_function
def only_frames(h, first):
    """Return whether all cells from `first` on are frames."""
    s, i = ptr_i64(h[CELLS]), first
    while i < h[CELLS + 2] and s[2 * i] & 255 == FRAME:
        i += 1
    return i == h[CELLS + 2]


@device_function
def stack_cell(h, target, first):
    """Return the cell of a stack: the frames that are at `target` already, and those behind."""
    s, w, e = ptr_i64(h[CELLS]), ptr_i64(h[WORDS]), ptr_i64(h[ENTRIES])
    start, count = h[WORDS + 2], 0
    if s[2 * target] & 255 == STACK:
        k = 4 * (s[2 * target] >> 8)
        count = e[k + 2] >> 8
        for i in range(count):
            w[start + i] = w[e[k + 1] + i]
    for i in range(first, h[CELLS + 2]):
        w[start + count] = s[2 * i] >> 8
        count += 1
    return cell(STACK, intern_words(h, STACK, count))


@device_function
def list_cell(h, target, first):
    """Store the cells from `first` on as items of the list at `target`; return the list's cell."""
    s, items = ptr_i64(h[CELLS]), ptr_i64(h[ITEMS])
    lists, chunks = ptr_i64(h[LISTS]), ptr_i64(h[CHUNKS])
    start, count, number = h[ITEMS + 2], h[CELLS + 2] - first, s[2 * target] >> 8
    for i in range(count):
        items[start + i] = s[2 * (first + i)]
    h[ITEMS + 2] = start + count
    fresh = s[2 * target] & 255 != LIST
    if fresh:
        number = h[LISTS + 2]
        h[LISTS + 2] = number + 1
    elif chunks[3 * lists[2 * number + 1]] + chunks[3 * lists[2 * number + 1] + 1] == start:
        chunks[3 * lists[2 * number + 1] + 1] += count
        return s[2 * target]
    chunk = h[CHUNKS + 2]
    h[CHUNKS + 2] = chunk + 1
    chunks[3 * chunk], chunks[3 * chunk + 1], chunks[3 * chunk + 2] = start, count, -1
    if fresh:
        lists[2 * number] = chunk
    else:
        chunks[3 * lists[2 * number + 1] + 2] = chunk
    lists[2 * number + 1] = chunk
    return cell(LIST, number)


@device_function
def append_items(h, target, first):
    """Append the cells from `first` on to the list at `target`; returns 0, or a code."""
    s = ptr_i64(h[CELLS])
    count = h[CELLS + 2] - first
    if target < 0 or count < 0:
        return BAD
    kind = s[2 * target] & 255
    if kind not in (EMPTY_LIST, LIST, STACK):
        return BAD
    if count > 0 and kind != LIST and only_frames(h, first):
        e = ptr_i64(h[ENTRIES])
        before = e[4 * (s[2 * target] >> 8) + 2] >> 8 if kind == STACK else 0
        code = no_room(h, before + count)
        if code != 0:
            return code
        put(h, target, stack_cell(h, target, first))
    elif count > 0:
        if kind == STACK:
            return BAD
        if lacks(h, ITEMS, count):
            return GROW - ITEMS
        if lacks(h, LISTS, 1):
            return GROW - LISTS
        if lacks(h, CHUNKS, 1):
            return GROW - CHUNKS
        put(h, target, list_cell(h, target, first))
    h[CELLS + 2] = target + 1
    return 0


@device_function
def insert_target(h, mark, value):
    """Turn the mark into an empty container, with the cells above it as its content to be."""
    ptr_i64(h[CELLS])[2 * mark] = value
    ptr_i64(h[CELLS])[2 * mark + 1] = 0
    return mark


@device_function
def make_tuple(h, first):
    """Replace the cells from `first` on by a tuple: a PAIR where they are two integers."""
    s, w = ptr_i64(h[CELLS]), ptr_i64(h[WORDS])
    top = h[CELLS + 2]
    if first < 0:
        return BAD
    code = no_room(h, 2)
    if code != 0:
        return code
    if top - first == 2 and s[2 * first] & 255 == INT and s[2 * first + 2] & 255 == INT:
        w[h[WORDS + 2]] = s[2 * first] >> 8
        w[h[WORDS + 2] + 1] = s[2 * first + 2] >> 8
        h[CELLS + 2] = first
        push(h, cell(PAIR, intern_words(h, PAIR, 2)), 0)
        return 0
    # Any other tuple is as good as a list: shift the cells up to make room for it.
    for i in range(top, first, -1):
        s[2 * i], s[2 * i + 1] = s[2 * i - 2], s[2 * i - 1]
    s[2 * first], s[2 * first + 1] = EMPTY_LIST, 0
    h[CELLS + 2] = top + 1
    code = append_items(h, first, first + 1)
    if code < 0:
        for i in range(first, top):
            s[2 * i], s[2 * i + 1] = s[2 * i + 2], s[2 * i + 3]
        h[CELLS + 2] = top
    return code


@device_function
def enter_all(h):
    """Enter every entry into the hash table, which is empty."""
    e, slots = ptr_i64(h[ENTRIES]), ptr_i64(h[SLOTS])
    for number in range(h[ENTRIES + 2]):
        slot = e[4 * number] & h[SLOT_MASK]
        while slots[slot] != 0:
            slot = (slot + 1) & h[SLOT_MASK]
        slots[slot] = number + 1
