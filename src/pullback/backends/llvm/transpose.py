"""Panel transposes in registers: square blocks through a butterfly of shuffles, masked edges.

``target[c * target_row + r] = source[r * source_row + c]``
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from pullback.backends.llvm.text import Builder, Counter, Module, Val, const, iota, prefix_mask
from pullback.backends.nests.analysis import PACKED, is_strip
from pullback.config import Pair

SIGNATURE = "ptr noalias %dst, i64 %drow, ptr noalias %src, i64 %srow, i64 %rows, i64 %cols"


def call(
    b: Builder, pointers: Sequence[Val], strides: tuple[int, int], sizes: Sequence[Val], size: int
) -> None:
    """Transpose with the helper for elements of `size` bytes."""
    n = b.module.target.lanes(size)
    known = tuple(int(s.literal) for s in sizes if s.literal is not None)
    fixed = size >= PACKED and len(known) == 2
    whole = fixed and not any(count % n for count in known)
    strip = fixed and not whole and is_strip(known[0], known[1], n)
    name = f"transpose{size}" + ("_whole" if whole else f"_{known[0]}x{known[1]}" if strip else "")
    if name not in b.module.helpers:
        b.module.helpers[name] = ""
        if strip:
            body = _strip(b.module, size, known[0], known[1])
        else:
            body = _blocks(b.module, size, whole) if size >= PACKED else _elements(b.module, size)
        head = f"define internal void @{name}({SIGNATURE}) noinline {b.module.attributes}"
        b.module.helpers[name] = f"{head} {{\nentry:\n{body}\n  ret void\n}}"
    target, source = pointers
    rows, columns = sizes
    to = f"{target.typed}, i64 {strides[0]}"
    fro = f"{source.typed}, i64 {strides[1]}"
    b.emit(f"call void @{name}({to}, {fro}, {rows.typed}, {columns.typed})")


def _argument(name: str, kind: str = "i64") -> Val:
    return Val(f"%{name}", kind)


def _elements(module: Module, size: int) -> str:
    """One element at a time."""
    b = Builder(module)
    kind = f"i{8 * size}"
    zero = const(0, "i64")

    def row(r: Counter) -> None:
        def column(c: Counter) -> None:
            at = b.binary("add", b.binary("mul", r.value, _argument("srow")), c.value)
            to = b.binary("add", b.binary("mul", c.value, _argument("drow")), r.value)
            value = b.load(b.offset(_argument("src", "ptr"), kind, at), kind)
            b.store(value, b.offset(_argument("dst", "ptr"), kind, to))

        b.repeat(zero, _argument("cols"), 1, False, column)

    b.repeat(zero, _argument("rows"), 1, False, row)
    return b.body()


def _blocks(module: Module, size: int, whole: bool) -> str:
    """Square blocks of one vector a row, masked at edges; `whole`: there are none."""
    b = Builder(module)
    n = module.target.lanes(size)
    zero = const(0, "i64")

    def rows(r: Counter) -> None:
        def columns(c: Counter) -> None:
            block = _square if whole else _inside
            block(b, f"i{8 * size}", n, r.value, c.value)

        b.repeat(zero, _argument("cols"), n, whole, columns)

    b.repeat(zero, _argument("rows"), n, whole, rows)
    return b.body()


def _strip(module: Module, size: int, rows: int, columns: int) -> str:
    """Few squares, at whose edges is known how many rows and columns there are."""
    b = Builder(module)
    n = module.target.lanes(size)
    for first, start in product(range(0, rows, n), range(0, columns, n)):
        _part(b, size, n, (first, min(n, rows - first)), (start, min(n, columns - start)))
    return b.body()


def _part(b: Builder, size: int, n: int, rows: Pair, columns: Pair) -> None:
    """A square of fewer rows or columns: where they begin, and how many they are."""
    kind, (r, height), (c, width) = f"i{8 * size}", rows, columns
    place = b.binary("mul", const(r, "i64"), _argument("srow"))
    row = b.offset(_argument("src", "ptr"), kind, b.binary("add", place, const(c, "i64")))
    mask = prefix_mask(width, n)
    lines = []
    for _ in range(height):
        whole = width == n
        lines.append(b.load(row, kind, n, size) if whole else b.masked_load(row, kind, size, mask))
        row = b.offset(row, kind, _argument("srow"))
    lines += [b.splat(const(0, kind), n)] * (n - height)
    place = b.binary("mul", const(c, "i64"), _argument("drow"))
    row = b.offset(_argument("dst", "ptr"), kind, b.binary("add", place, const(r, "i64")))
    for line in _transposed(b, lines)[:width]:
        if 1 < height < n and b.module.target.masks:
            b.masked_store("store", line, row, size, prefix_mask(height, n))
        else:
            b.store_first(line, height, row, False, size)
        row = b.offset(row, kind, _argument("drow"))


def _inside(b: Builder, kind: str, n: int, r: Val, c: Val) -> None:
    """A block that is whole but at an edge."""
    below = b.binary("sub", _argument("rows"), r)
    right = b.binary("sub", _argument("cols"), c)
    fewest = b.intrinsic("smin", below, right)
    inside, edge, done = b.name("inside"), b.name("edge"), b.name("done")
    b.branch(b.compare("sge", fewest, const(n, "i64")), inside, edge)
    b.label(inside)
    with b.region():
        _square(b, kind, n, r, c)
    b.jump(done)
    b.label(edge)
    with b.region():
        _block(b, kind, n, (r, c), (below, right))
    b.jump(done)
    b.label(done)


def _block(b: Builder, kind: str, n: int, at: tuple[Val, Val], left: tuple[Val, Val]) -> None:
    """A block that reaches over an edge: of the rows and columns `left` there may be fewer."""
    (r, c), (below, right) = at, left
    row_mask, column_mask = (_first(b, count, n) for count in left)
    place = b.binary("add", b.binary("mul", r, _argument("srow")), c)
    pointer = b.offset(_argument("src", "ptr"), kind, place)
    align = b.module.target.vector // n
    rows = _rows(b, kind, pointer, "srow", n, below, column_mask)
    lines = [b.masked_load(row, kind, align, mask) for row, mask in rows]
    place = b.binary("add", b.binary("mul", c, _argument("drow")), r)
    pointer = b.offset(_argument("dst", "ptr"), kind, place)
    places = _rows(b, kind, pointer, "drow", n, right, row_mask)
    for line, (row, mask) in zip(_transposed(b, lines), places, strict=True):
        b.masked_store("store", line, row, align, mask)


def _square(b: Builder, kind: str, n: int, r: Val, c: Val) -> None:
    """A block that is whole."""
    at = b.binary("add", b.binary("mul", r, _argument("srow")), c)
    source = b.offset(_argument("src", "ptr"), kind, at)
    align = b.module.target.vector // n
    lines = [b.load(row, kind, n, align) for row in _places(b, kind, source, "srow", n)]
    at = b.binary("add", b.binary("mul", c, _argument("drow")), r)
    target = b.offset(_argument("dst", "ptr"), kind, at)
    columns = _transposed(b, lines)
    for line, row in zip(columns, _places(b, kind, target, "drow", n), strict=True):
        b.store(line, row, align)


def _places(b: Builder, kind: str, row: Val, stride: str, n: int) -> Iterator[Val]:
    """Where `n` rows of a block begin."""
    for _ in range(n):
        yield row
        row = b.offset(row, kind, _argument(stride))


def _first(b: Builder, count: Val, n: int) -> Val:
    """The lanes below `count`."""
    limit = b.convert("trunc", b.intrinsic("smin", count, const(n, "i64")), "i32")
    return b.compare("slt", iota("i32", n), b.splat(limit, n))


def _rows(
    b: Builder, kind: str, first: Val, stride: str, n: int, count: Val, mask: Val
) -> Iterator[tuple[Val, Val]]:
    """`n` rows of a block with their masks; beyond `count` the first one, with nothing on.

    A vector in memory that is not there costs microseconds, masked as it is: with 7 rows of 16
    missing, packing for a 3x3 convolution of 17 channels took 1.7 ms of 2.1.
    """
    row = first
    for k in range(n):
        there = b.compare("sgt", count, const(k, "i64"))
        here = b.select(there, row, first) if k else row
        yield here, b.select(there, mask, const(False, "i1", mask.lanes))
        row = b.offset(row, kind, _argument(stride))


def _transposed(b: Builder, rows: list[Val]) -> list[Val]:
    """The columns of a square of `n` vectors, in ``n log2 n`` shuffles.

    Each step swaps the off-diagonal h x h blocks: ``[A B; C D] -> [A C; B D]``. Vectors of 512 bits
    pass through empty assembly half way: LLVM tries to join chains of shuffles, with a cost that
    doubles with each step (a helper in 19 ms instead of 9, the same code).
    """
    n = len(rows)
    h = 1
    while h < n:
        for k in range(n):
            if k & h:
                continue
            upper, lower = rows[k], rows[k + h]
            left = [j if not j & h else n + j - h for j in range(n)]
            right = [j + h if not j & h else n + j for j in range(n)]
            rows[k] = b.shuffle(upper, lower, left)
            rows[k + h] = b.shuffle(upper, lower, right)
        h *= 2
        if h == 4 and n > 8:
            rows = [_opaque(b, row) for row in rows]
    return rows


def _opaque(b: Builder, a: Val) -> Val:
    """The same vector of 512 bits; LLVM does not see where it comes from."""
    return b.value(f'call {a.type} asm "", "=v,0"({a.typed})', a.kind, a.lanes)
