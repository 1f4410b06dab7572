"""The fields of a convolution's plan table: what `conv_plan` writes and the loops of `conv` read.

State: none; each name is the index of an int64. Invariants: sizes are in elements, offsets into
packed memory in bytes; a triple of fields stands for depth, height and width.
"""

from __future__ import annotations

# Source and result.
IMAGES = 0
BATCH = 1  # images that are packed side by side
GROUPS = 2
CHANNELS = 3  # source channels of a group
ROWS = 4  # result channels of a group
DEPTH, HEIGHT, WIDTH = 5, 6, 7
STEP = 8  # triple: distance of packed positions in the source
PRE = 11  # triple: zeros before the source (negative: cropped)
OUT_SIZE = 14  # elements of one result channel

# Packed memory.
QD, QH, QW = 15, 16, 17
PITCH = 18  # from one packed channel and phase to the next
BUFFER = 19  # all of it, slack included
PHASES = 20  # count; the address of the triples follows
PHASE_TABLE = 21
DIRECT = 22  # whether the source itself serves as packed memory

# Tiles.
PANELS = 23  # full panels of rows in a group
SINGLES = 24  # rows that go one by one
TILE_ROWS = 25
TILE_WIDTH = 26
TILE_WIDTH_1 = 27
COLUMNS = 28  # width of the tile buffer
SLOT = 29  # bytes of scratch memory of one slot
SLOTS = 30

# Jobs.
JOBS = 31  # count; the address of the records follows
JOB_TABLE = 32
SIZE = 33

JOB_SIZE = 16
J_TAPS = 0  # rows of the product: source channels times taps
J_OFFSETS = 1  # address of their offsets into packed memory
J_SOURCES = 2  # address of their places in the weight
J_PANELS = 3  # where the job's panels start, in bytes
J_GROUP = 4  # bytes of one group's panels
J_DEPTH = 5
J_LINES = 6  # lines of a plane
J_WIDTH = 7  # elements of a line
J_PITCH = 8  # from one line to the next, in packed positions
J_BLOCK = 9  # lines that are computed together
J_OUT = 10  # first element of the result channel
J_OUT_D = 11
J_OUT_H = 12
J_OUT_W = 13
