"""Kernels that store the places of an output once, or several times at once."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def placed_kernel(X, AT, OUT, n, p, KIND: tl.constexpr, BLOCK: tl.constexpr):
    part = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(X + part * BLOCK + at)
    y = x * x
    if KIND == "rows":
        tl.store(OUT + part * BLOCK + at, y)
    elif KIND == "parts":
        tl.store(OUT + part * 2 * BLOCK + at, y)
        tl.store(OUT + part * 2 * BLOCK + BLOCK + at, tl.sin(x))
    elif KIND == "twice":
        tl.store(OUT + part * BLOCK + at, tl.sin(x))
        tl.debug_barrier()
        tl.store(OUT + part * BLOCK + at, y)
    elif KIND == "steps":
        for k in range(3):
            tl.store(OUT + part * BLOCK + at, y * k)
    elif KIND == "quotients":
        tl.store(OUT + (part * BLOCK + at) // 4 * 4 + at % 4, y)
    elif KIND == "quotients of each":
        tl.store(OUT + at // 4 * 4 + at % 4, tl.load(X + at))
    elif KIND == "one of two":
        tl.store(OUT + at, y, mask=at < part * BLOCK)
    elif KIND == "by a number":
        tl.store(OUT + at, y, mask=at < p * part * BLOCK)
    elif KIND == "a branch":
        if part == 1:
            tl.store(OUT + at, y)
    elif KIND == "loaded":
        tl.store(OUT + tl.load(AT + part * BLOCK + at), y)
    elif KIND == "lanes":
        tl.store(OUT + part * BLOCK + at // 2, y)
    elif KIND == "programs":
        tl.store(OUT + at, y)
    elif KIND == "numbers":
        tl.store(OUT + (part * BLOCK + at) % n, y)
    elif KIND == "all one":
        tl.store(OUT + at * 0, tl.sum(y, 0))
    elif KIND == "one of all":
        tl.store(OUT, tl.sum(y, 0))
    elif KIND == "one each":
        tl.store(OUT + part, tl.sum(y, 0))
    elif KIND == "added":
        tl.atomic_add(OUT + at // 2, y)
    elif KIND == "stored and added":
        tl.store(OUT + part * BLOCK + at, y)
        tl.debug_barrier()
        tl.atomic_add(OUT + part * BLOCK + at, tl.sin(x) * 0)
    elif KIND == "added by another":
        tl.store(OUT + part * BLOCK + at, y)
        tl.debug_barrier()
        tl.atomic_add(OUT + at, y)
    elif KIND == "no number of an input":
        tl.store(OUT + at // 2, 1.0)
        tl.store(OUT + 2 * BLOCK + part * BLOCK + at, y)
