"""The machine and its thread pool as LLVM IR text. Both are compiled once and know no program.

`pb_run(state)` interprets the flat code that `assemble` wrote; it returns a `Code`. All memory it
uses is given to it: `state`, `pool` and rings are arrays of 8-byte words laid out as said here.
C functions are called through a table of pointers, so the object code has no symbols to resolve.
"""

from __future__ import annotations

from enum import IntEnum


class Code(IntEnum):
    """Why `pb_run` came back."""

    END = 0
    AGAIN = 1
    STOPPED = 2
    FEED_FAILED = 3
    BAD_INDEX = 4
    HOST = 5
    CALL_FAILED = 6


class Op(IntEnum):
    """Instructions, 8 words each: the operation, then its operands."""

    # The two words before a block are the scratch of thread 0 and its size, bytes.
    # body, block, tasks, finish (0: none), bytes moved, whether it checks indices,
    # its clock {ns, runs} (0: not timed)
    LAUNCH = 0
    SET = 1  # slot, value
    TEST = 2  # slot, count, exit, counter buffer, start, step
    JUMP = 3  # target
    BRANCH = 4  # bool buffer, target where it is false
    FEED = 5  # ring, exit, whether this is a place to stop
    RECEIVE = 6  # ring
    STEP = 7  # a step boundary: the place to stop or to let the caller look around
    COPY = 8  # target, source, bytes
    END = 9
    HOST = 11  # comes back, to be entered again behind it
    CALL = 12  # a C function, a row of 8 words for it; what it returns is 0 where all is well
    BEGIN = 10  # addresses of this run, rows {number of one, word that wants it}, rows


class Word(IntEnum):
    """The words of `state`."""

    PC = 0
    STOP = 1
    CODE = 2
    POOL = 3
    THREADS = 4  # of the pool that a launch may use
    RETURNED = 5  # by the last C function that failed
    LAUNCHES = 6
    BARRIERS = 7
    MOVED = 8  # bytes
    SLICE = 9  # how long to run before coming back, ns
    FAILED = 10  # the ring of the feed that failed
    EVENTS = 11  # ring numbers in the order of their snapshots
    EVENT_HEAD = 12
    EVENT_SIZE = 13
    EVENT_SEMAPHORE = 14
    TABLE = 15  # of C functions
    ERROR = 16  # three words: state, site, value
    LOG = 19  # rows {place, start, end} of timed launches, ns
    LOGGED = 20
    LOG_SIZE = 21  # rows
    COUNT = 24


class RingWord(IntEnum):
    """The words of a ring: a bounded queue of batches or snapshots."""

    FILLED = 0  # semaphore
    FREE = 1  # semaphore
    HEAD = 2  # batches taken or snapshots made so far
    DEPTH = 3
    SLOTS = 4
    STRIDE = 5  # of one slot, bytes
    PARTS = 6
    TABLE = 7  # per part: buffer, offset in the slot, bytes
    STATUS = 8  # per slot: 0 data, 1 no more, 2 failed
    DEMAND = 9  # a batch is made only when asked for
    EVERY = 10
    REACHED = 11
    NUMBER = 12
    ASKED = 13
    COUNT = 16


class PoolByte(IntEnum):
    """Offsets in the pool's memory, bytes; each written word has its own cache lines."""

    TICKET = 0  # launch number << 32 | tasks left
    DONE = 128
    SLEEPING = 256
    BODY = 384
    BLOCK = 392
    TASKS = 400
    SCRATCH = 408
    STRIDE = 416
    LIMIT = 424  # workers with a smaller number take part
    BUSY = 512
    THREADS = 640
    SPIN = 644
    EXIT = 648
    TABLE = 656
    SIZE = 768
