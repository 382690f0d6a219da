"""Arrays: where elements live and how lanes reach them.

An offset whose coefficient of the vector variable is 1 is a contiguous access, -1 a reversed one,
0 a broadcast, 2 to 4 whole vectors whose lanes are picked, ``lane // c`` a short vector whose
elements are repeated, anything else a gather or scatter. Masked-off lanes never touch memory.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from operator import attrgetter

from pullback.algebra.affine import Affine
from pullback.backends.llvm import arith
from pullback.backends.llvm.scope import Scope
from pullback.backends.llvm.text import Builder, Counter, Val, const, iota, mangled, prefix_mask
from pullback.backends.nests.analysis import Facts
from pullback.errors import InvalidIR
from pullback.ir.expr import Expr, FloorDiv, Mod
from pullback.ir.nest import Array, Load
from pullback.ir.target import MOST_PICKED

Get = Callable[[Expr, Scope], Val]
SAFE = "@safe"
SAFE_BYTES = 128  # two of the widest vectors


class Memory:
    """Loads and stores of one function.

    `exact`: arguments have all their elements; else rows may lie apart, as many as a call has, of
    which the last ends with what is read of it.
    """

    def __init__(
        self,
        builder: Builder,
        facts: Facts,
        arrays: dict[Array, Val],
        streamed: set[Array],
        exact: bool,
    ) -> None:
        self.b = builder
        self.facts = facts
        self.arrays = arrays
        self.streamed = streamed
        self.exact = exact

    # -- addresses

    def stride(self, offset: Expr, at: Scope) -> int | None:
        """Elements between lanes; None where it is not one number."""
        if at.lanes is None or not at.lanes.varying.of(offset):
            return 0
        form = self.facts.form(offset)
        rest = form.without(at.lanes.var)
        if any(at.lanes.varying.of(a) for a in rest.atoms):
            return None
        return form.of(at.lanes.var)

    def needs(self, offset: Expr, at: Scope) -> list[tuple[Expr, Scope]]:
        """What the address is computed from, each with its scope."""
        digit = self.repeated(offset, at)
        if digit is not None:
            atoms = self.facts.form(offset).atoms
            return [(a, at.uniform if a is digit else at) for a in atoms]
        if self.stride(offset, at) is None:
            rows = self.woven(offset, at)
            if rows is None:
                return [(offset, at)]
            atoms = self.facts.form(offset).atoms
            return [(a, at.uniform) for a in atoms if a is not rows[1]]
        var = at.lanes.var if at.lanes else None
        atoms = self.facts.form(offset).atoms
        return [(a, at.uniform if a is var else at) for a in atoms]

    def repeated(self, offset: Expr, at: Scope) -> Expr | None:
        """The one atom of `offset` that varies, if it is ``x // c`` over whole blocks of lanes,
        once or c times: ``a[x // c]``, ``a[x // c * c + 1]``
        """
        if at.lanes is None:
            return None
        form = self.facts.form(offset)
        varying = [a for a in form.atoms if at.lanes.varying.of(a)]
        if len(varying) != 1:
            return None
        quotient = varying[0]
        if not isinstance(quotient, FloorDiv) or self.facts.loads(quotient):
            return None
        times = at.lanes.phase(quotient, self.facts)
        return quotient if times is not None and form.of(quotient) in (1, times) else None

    def woven(self, offset: Expr, at: Scope) -> tuple[Expr, Expr] | None:
        """The atoms ``x // c`` and ``x % c`` of `offset` if lanes take `c` rows in turn."""
        if at.lanes is None or at.guarded:
            return None
        form = self.facts.form(offset)
        varying = [a for a in form.atoms if at.lanes.varying.of(a)]
        row = next((a for a in varying if isinstance(a, FloorDiv)), None)
        turn = next((a for a in varying if isinstance(a, Mod)), None)
        if row is None or turn is None or len(varying) != 2 or form.of(row) != 1:
            return None
        if row.children != turn.children or any(map(self.facts.loads, varying)):
            return None
        times = at.lanes.phase(row, self.facts)
        return (row, turn) if times is not None and times & (times - 1) == 0 else None

    def pointer(self, array: Array, offset: Expr, at: Scope, get: Get) -> Val:
        """The address of the first lane's element."""
        form = self.facts.form(offset)
        var = at.lanes.var if at.lanes else None
        loads = any(self.facts.loads(a) for a in form.atoms)
        home = at if loads and at.guarded else at.uniform
        shift = form.const
        if var is not None and at.lanes is not None:
            shift += form.of(var) * at.first
        kind = arith.MEMORY[array.dtype.name]
        key = ("&", array, form.terms)
        base = home.find(key)
        if base is None:
            index = self._sum(form, at, get)
            base = self.b.offset(self._array(array), kind, index)
            cells = [self.facts.reads(a) for a in form.atoms]
            home.keep(key, base, frozenset().union(*cells))
        return self.b.offset(base, kind, const(shift, "i64"))

    def _array(self, array: Array) -> Val:
        if array not in self.arrays:
            raise InvalidIR(f"array {array} is not declared by the routine")
        return self.arrays[array]

    def _sum(self, form: Affine, at: Scope, get: Get) -> Val:
        """The terms of a form, each added before the next loop inwards that counts another."""
        terms: list[tuple[int, Val, int]] = []
        loops: list[Counter] = []
        for atom, coefficient in form.terms:
            counter = at.uniform.counter(atom)
            if counter is not None:
                loops.append(counter)
                terms.append((counter.number, counter.times(coefficient), 1))
            else:
                own = at.uniform if at.lanes and atom is at.lanes.var else at
                value = get(atom, own)
                terms.append((value.number, value, coefficient))
        total = const(0, "i64")
        for number, value, coefficient in sorted(terms, key=lambda term: term[0]):
            inner = min(
                (c for c in loops if c.number > number), key=attrgetter("number"), default=None
            )
            with self.b.before(inner):
                term = self.b.binary("mul", value, const(coefficient, "i64"))
                total = self.b.binary("add", total, term)
        return total

    def _vector_pointer(self, array: Array, offset: Expr, at: Scope, get: Get) -> Val:
        assert at.lanes is not None
        kind = arith.MEMORY[array.dtype.name]
        stride = self.stride(offset, at)
        if stride is None:
            index = self.b.splat(get(offset, at), at.lanes.count)
            place = self.b.offset(self._array(array), kind, index)
            return self.b.splat(place, at.lanes.count)  # where the index came out as a constant
        first = self.pointer(array, offset, at, get)
        return self.b.offset(first, kind, iota("i64", at.lanes.count, stride))

    # -- arrays

    def load(self, e: Load, at: Scope, get: Get) -> Val:
        """``array[offset]``"""
        raw = self._load(e.array, e.offset, at, get)
        return arith.from_memory(self.b, raw, e.array.dtype)

    def whole(self, pointer: Val, kind: str, lanes: int, align: int, at: Scope) -> Val:
        """One element, or neighbours in all lanes that are on."""
        if not lanes or at.mask is None:
            return self.b.load(pointer, kind, lanes, align)
        return self._under(pointer, kind, align, lanes, at.mask)

    def zero_outside(self, e: Expr, at: Scope) -> bool:
        """Whether `e` is a load that reads zeros where the guard of a branch does not hold: one
        element, from elsewhere; neighbours and those of a stride, in masked lanes.
        """
        if not isinstance(e, Load):
            return False
        stride = self.stride(e.offset, at)
        return at.lanes is None or bool(stride)

    def certain(self, e: Load, at: Scope) -> bool:
        """Whether a load is of one element, which exists wherever it is read."""
        low, high = self.facts.interval(e.offset)
        ours = self.exact or e.array.space != "argument"
        return ours and low >= 0 and high < e.array.size and self.stride(e.offset, at) == 0

    def _load(self, array: Array, offset: Expr, at: Scope, get: Get) -> Val:
        kind, align = arith.MEMORY[array.dtype.name], array.dtype.itemsize
        stride = self.stride(offset, at)
        if stride == 0:
            pointer = self.pointer(array, offset, at, get)
            if at.guarded and at.mask is not None:
                pointer = self.b.select(self.b.any(at.mask), pointer, Val(SAFE, "ptr"))
            return self.b.load(pointer, kind, 0, align)
        assert at.lanes is not None
        lanes = at.lanes.count
        digit = self.repeated(offset, at) if stride is None else None
        if digit is not None:
            return self._repeats(array, offset, digit, at, get)
        if stride is None and (rows := self.woven(offset, at)) is not None:
            return self._woven(array, offset, rows, at, get)
        if stride is not None and 1 < stride <= min(MOST_PICKED, lanes):
            first = self.pointer(array, offset, at, get)
            mask = None if at.mask is None else self._mask(at)
            return self._picked(first, kind, align, stride, lanes, mask)
        if stride not in (1, -1):
            pointers = self._vector_pointer(array, offset, at, get)
            return self._gather(pointers, kind, align, self._mask(at))
        pointer = self.pointer(array, offset, at, get)
        mask = at.mask
        if stride == -1:
            pointer = self.b.offset(pointer, kind, const(1 - lanes, "i64"))
            mask = self.b.reverse(self._mask(at)) if mask is not None else None
        if mask is None:
            raw = self.b.load(pointer, kind, lanes, align)
        else:
            raw = self._under(pointer, kind, align, lanes, mask)
        return self.b.reverse(raw) if stride == -1 else raw

    def _repeats(self, array: Array, offset: Expr, digit: Expr, at: Scope, get: Get) -> Val:
        """``a[x // c]``: a short vector, each element `c` times. ``a[x // c * c + r]``: of each `c`
        elements of a vector one, `c` times.
        """
        assert at.lanes is not None
        kind, align = arith.MEMORY[array.dtype.name], array.dtype.itemsize
        times, lanes = at.lanes.phase(digit, self.facts), at.lanes.count
        assert times is not None
        form = self.facts.form(offset)
        step, short = form.of(digit), lanes // times
        index = const(at.first // times * step, "i64")
        for atom, coefficient in form.terms:
            value = get(atom, at.uniform if atom is digit else at)
            term = self.b.binary("mul", value, const(coefficient, "i64"))
            index = self.b.binary("add", index, term)
        low, high = self.facts.interval(offset)
        ours = self.exact or array.space != "argument"
        place = min(low, step - 1) if ours and low >= 0 else 0  # of what is read, among `step`
        inside = ours and low >= 0 and high - place + step - 1 < array.size
        index = self.b.binary("add", index, const(form.const - place, "i64"))
        pointer = self.b.offset(self._array(array), kind, index)
        # Two lanes share an element: their masks would have to be joined, and none is needed.
        home = at.plain if inside else at
        if home.mask is None and (inside or step == 1):
            raw = self.b.load(pointer, kind, short * step, align)
        else:
            mask = self._mask(home)
            parts = [self.b.shuffle(mask, mask, range(n, lanes, times)) for n in range(times)]
            groups = functools.reduce(lambda a, c: self.b.binary("or", a, c), parts)
            read = [n // step if inside or n % step == place else None for n in range(short * step)]
            raw = self.b.masked_load(pointer, kind, align, self._on(groups, read))
        return self.b.shuffle(raw, raw, [n // times * step + place for n in range(lanes)])

    def _woven(
        self, array: Array, offset: Expr, rows: tuple[Expr, Expr], at: Scope, get: Get
    ) -> Val:
        """``a[x // c + s (x % c)]``: short vectors of `c` rows, element by element in turn."""
        assert at.lanes is not None
        row, turn = rows
        kind, align = arith.MEMORY[array.dtype.name], array.dtype.itemsize
        times, lanes = at.lanes.phase(row, self.facts), at.lanes.count
        assert times is not None
        form = self.facts.form(offset)
        index = const(form.const + at.first // times, "i64")
        for atom, coefficient in form.terms:
            if atom is turn:
                continue
            term = self.b.binary("mul", get(atom, at.uniform), const(coefficient, "i64"))
            index = self.b.binary("add", index, term)
        pointer = self.b.offset(self._array(array), kind, index)
        step = const(form.of(turn), "i64")
        parts = []
        for number in range(times):
            if at.mask is None:
                parts.append(self.b.load(pointer, kind, lanes // times, align))
            else:
                mask = self._mask(at)
                own = self.b.shuffle(mask, mask, range(number, lanes, times))
                parts.append(self.b.masked_load(pointer, kind, align, own))
            pointer = self.b.offset(pointer, kind, step)
        while len(parts) > 1:
            half = len(parts) // 2
            pairs = zip(parts[:half], parts[half:], strict=True)
            parts = [self._zipped(a, c) for a, c in pairs]
        return parts[0]

    def _zipped(self, a: Val, c: Val) -> Val:
        """``a[0], c[0], a[1], c[1], ..``"""
        return self.b.shuffle(a, c, [n for i in range(a.lanes) for n in (i, a.lanes + i)])

    def _picked(
        self, first: Val, kind: str, align: int, stride: int, lanes: int, mask: Val | None
    ) -> Val:
        """Every `stride`-th element from `first` on, out of `stride` whole vectors.

        The last vector ends with the last lane, so nothing beyond it is read; under a `mask` what
        is picked alone (16 lanes of stride 2 on Zen 4: a gather 9.6 ns, two vectors 1.6).
        """
        joined: Val | None = None
        for number, (place, on) in enumerate(_gaps(lanes, stride)):
            pointer = self.b.offset(first, kind, const(place, "i64"))
            if mask is None:
                part = self.b.load(pointer, kind, lanes, align)
            else:
                part = self.b.masked_load(pointer, kind, align, self._on(mask, on))
            if joined is None:
                joined = part
                continue
            picks = []
            for lane in range(lanes):
                at = lane * stride
                here = min(at // lanes, stride - 1)
                own = at if number == 1 else lane
                picks.append(lanes + at - place if here == number else min(own, lanes - 1))
            joined = self.b.shuffle(joined, part, picks)
        assert joined is not None
        return joined

    def _is_strewn(self, stride: int, lanes: int) -> bool:
        """Whether lanes that lie apart are stored as vectors with gaps."""
        return self.b.module.target.masks and 1 < stride <= min(MOST_PICKED, lanes)

    def _strewn(self, value: Val, first: Val, align: int, stride: int, mask: Val | None) -> None:
        """Each lane `stride` elements after the one before, from `first` on: `stride` vectors, what
        lies between is not touched.

        The last vector ends with the last lane.
        """
        for place, lanes in _gaps(value.lanes, stride):
            pointer = self.b.offset(first, value.kind, const(place, "i64"))
            spread = self.b.shuffle(value, value, [lane or 0 for lane in lanes])
            whole = self.b.splat(const(True, "i1") if mask is None else mask, value.lanes)
            on = self._on(whole, lanes)
            self.b.masked_store("store", spread, pointer, align, on)

    def _on(self, mask: Val, lanes: Sequence[int | None]) -> Val:
        """The mask of elements of which some are lanes."""
        off = self.b.splat(const(False, "i1"), mask.lanes)
        return self.b.shuffle(mask, off, [mask.lanes if n is None else n for n in lanes])

    def _mask(self, at: Scope) -> Val:
        assert at.lanes is not None
        return self.b.splat(at.mask or const(True, "i1"), at.lanes.count)

    def _under(self, pointer: Val, kind: str, align: int, lanes: int, mask: Val) -> Val:
        """Neighbours in the lanes that are on, zeros in others; where all are on or none, from
        elsewhere.

        A load without lanes whose address is outside of its array is slow on Zen 3, more so where
        nothing is mapped (the gradient of weights by those of queries, keys and values side by
        side, 1024 x 768: 14 to 72 ms, 9 to 13 from elsewhere).
        """
        if mask.lanes or align * lanes > SAFE_BYTES:
            return self.b.masked_load(pointer, kind, align, self.b.splat(mask, lanes))
        place = self.b.select(mask, pointer, Val(SAFE, "ptr"))
        return self.b.load(place, kind, lanes, align)

    def _gather(self, pointers: Val, kind: str, align: int, mask: Val) -> Val:
        wide = f"<{mask.lanes} x {kind}>"
        name = f"llvm.masked.gather.{mangled(kind, mask.lanes)}.v{mask.lanes}p0"
        self.b.declare(name, [pointers.type, mask.type, wide], wide)
        where = f"{pointers.type} align {align} {pointers.text}"
        args = f"{where}, {mask.typed}, {wide} zeroinitializer"
        return self.b.value(f"call {wide} @{name}({args})", kind, mask.lanes)

    def store(self, array: Array, offset: Expr, value: Val, at: Scope, get: Get) -> None:
        """``array[offset] = value``; the offset's needs are known."""
        value = arith.to_memory(self.b, value, array.dtype)
        align = array.dtype.itemsize
        stride = self.stride(offset, at)
        if at.lanes is None:
            self.b.store(value, self.pointer(array, offset, at, get), align)
            return
        if stride == 0:
            raise InvalidIR(f"every lane stores to one element of {array}")
        value = self.b.splat(value, at.lanes.count)
        first = 0 if stride is None or at.mask is None else self._first(at.mask, value.lanes)
        if first == 1 or (first and stride in (1, -1)):
            pointer = self.pointer(array, offset, at, get)
            self.b.store_first(value, first, pointer, stride == -1, align)
            return
        if stride is not None and self._is_strewn(stride, value.lanes):
            self._strewn(value, self.pointer(array, offset, at, get), align, stride, at.mask)
            return
        if stride not in (1, -1):
            pointers = self._vector_pointer(array, offset, at, get)
            self.b.masked_store("scatter", value, pointers, align, self._mask(at))
            return
        pointer, mask = self.pointer(array, offset, at, get), at.mask
        if stride == -1:
            pointer = self.b.offset(pointer, value.kind, const(1 - value.lanes, "i64"))
            value = self.b.reverse(value)
            mask = self.b.reverse(self._mask(at)) if mask is not None else None
        if mask is None:
            past = array in self.streamed and value.lanes * align == self.b.module.target.vector
            (self.b.store_past_caches if past else self.b.store)(value, pointer, align)
        else:
            self.b.masked_store("store", value, pointer, align, self.b.splat(mask, value.lanes))

    def _first(self, mask: Val, lanes: int) -> int:
        """How many lanes are stored that a constant mask has on, the first ones: 1, or what a
        processor without registers for masks stores in parts; 0: under the mask.

        Zen 3, six lanes of eight: 6.8 ns under a mask, 0.9 as four and two. LLVM 22 stores a
        narrowed vector under a constant mask of one lane too wide.
        """
        every = (1,) if self.b.module.target.masks else range(1, lanes)
        return next((n for n in every if mask == prefix_mask(n, lanes)), 0)


def _gaps(lanes: int, stride: int) -> list[tuple[int, list[int | None]]]:
    """The vectors over lanes that lie `stride` apart: where each begins, and the lane that each of
    its elements is, or None. ``4, 2  ->  (0, [0, None, 1, None]), (3, [None, 2, None, 3])``
    """
    places = [min(n * lanes, (lanes - 1) * (stride - 1)) for n in range(stride)]
    elements = {p: [divmod(p + n, stride) for n in range(lanes)] for p in places}
    return [(p, [None if between else n for n, between in own]) for p, own in elements.items()]
