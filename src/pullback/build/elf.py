"""Objects of LLVM as one shared library of Linux on x86-64: a linker for code that needs no other.

Sections that are loaded lie in three segments: what is read, what runs, what is written. References
among the objects are resolved here; those to the C library go through a table of addresses that the
loader fills before anything runs. Every other kind of relocation is refused by its name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pullback.errors import UnsupportedError

PAGE = 4096
HEAD, PROGRAM, SECTION = 64, 56, 64  # bytes of the file's head, of a row of each table
SYMBOL, RELA, ROW = 24, 24, 16  # bytes of a symbol, a relocation, a row of .dynamic
PROGBITS, SYMTAB, RELAS, NOBITS = 1, 2, 4, 8  # kinds of sections
WRITE, ALLOC, EXEC, LOCAL = 1, 2, 4, 1024  # flags of sections; thread-local ones
COMMON = 0xFFF2  # the section of what has none yet
FUNCTION, GLOBAL, SHARED = 2, 1 << 4, 3
# Relocations, by their numbers in the x86-64 psABI.
R_64, R_PC32, R_PLT32, R_GLOB_DAT, R_RELATIVE, R_PC64 = 1, 2, 4, 6, 8, 24
TABLES = {9: "GOTPCREL", 41: "GOTPCRELX", 42: "REX_GOTPCRELX"}
NAMES = {
    10: "R_X86_64_32", 11: "R_X86_64_32S", 12: "R_X86_64_16", 16: "R_X86_64_DTPMOD64",
    19: "R_X86_64_TLSGD", 22: "R_X86_64_GOTTPOFF", 23: "R_X86_64_TPOFF32", 25: "R_X86_64_GOTOFF64",
    26: "R_X86_64_GOTPC32", 27: "R_X86_64_GOT64",
}  # fmt: skip
STUB = 8  # bytes of a jump through the table
UNWOUND = ".eh_frame"  # nothing of ours throws
DT_NEEDED, DT_HASH, DT_STRTAB, DT_SYMTAB, DT_RELA = 1, 4, 5, 6, 7
DT_RELASZ, DT_RELAENT, DT_STRSZ, DT_SYMENT, DT_FLAGS, BIND_NOW = 8, 9, 10, 11, 30, 8
READS, RUNS, WRITES, ZEROS = range(4)
KINDS = ".rodata", ".text", ".data", ".bss"


@dataclass(eq=False, slots=True)
class Section:
    """One that is loaded: bytes, or zeros; its place in memory once that is known."""

    data: bytearray
    size: int
    align: int
    home: int  # which of `KINDS`
    at: int = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A name, and the place it stands for; of another library where it has no section."""

    name: str
    section: Section | None
    value: int
    is_global: bool


@dataclass(frozen=True, slots=True)
class Relocation:
    """What must be added at a place of a section."""

    section: Section
    offset: int
    kind: int
    symbol: Symbol
    addend: int


@dataclass(slots=True)
class _Linked:
    """Sections, symbols and relocations of all objects."""

    sections: list[Section] = field(default_factory=list)
    symbols: dict[str, Symbol] = field(default_factory=dict)
    relocations: list[Relocation] = field(default_factory=list)

    def add(self, data: bytes) -> None:
        """One object. Raises: UnsupportedError for what LLVM does not make of our code."""
        if data[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", data, 16) != (1, 62):
            raise _refused("an object that is none of x86-64")
        start, count, names = (
            *struct.unpack_from("<Q", data, 40),
            *struct.unpack_from("<HH", data, 60),
        )
        rows = [struct.unpack_from("<IIQQQQIIQQ", data, start + n * SECTION) for n in range(count)]
        texts = rows[names][4]
        loaded: dict[int, Section] = {}
        for number, (name, kind, flags, _, place, size, _, _, align, _) in enumerate(rows):
            called = _text(data, texts + name)
            if not flags & ALLOC or called.startswith(UNWOUND):
                continue
            if flags & LOCAL or kind not in (PROGBITS, NOBITS):
                raise _refused(f"section {called}")
            held = bytearray() if kind == NOBITS else bytearray(data[place : place + size])
            loaded[number] = Section(held, size, max(align, 1), _home(kind, flags))
        self.sections += loaded.values()
        symbols = [s for row in rows if row[1] == SYMTAB for s in _symbols(data, row, rows, loaded)]
        for symbol in symbols:
            if symbol.is_global and symbol.section is not None:
                if symbol.name in self.symbols:
                    raise _refused(f"two functions {symbol.name}")
                self.symbols[symbol.name] = symbol
        for row in rows:
            if row[1] == RELAS and row[7] in loaded:
                self.relocations += _relocations(data, row, loaded[row[7]], symbols)


def shared_library(
    objects: Sequence[bytes], exports: Sequence[str], needed: Sequence[str] = ()
) -> bytes:
    """A library that exports these functions. Raises: UnsupportedError (E533)."""
    linked = _Linked()
    for data in objects:
        linked.add(data)
    missing = [name for name in exports if name not in linked.symbols]
    if missing:
        raise _refused(f"no function {missing[0]}")
    return _File(linked, exports, needed).written()


@dataclass(slots=True)
class _File:
    """Where everything lies."""

    linked: _Linked
    exports: Sequence[str]
    needed: Sequence[str]
    slots: dict[Symbol | str, int] = field(default_factory=dict)  # words of the table
    dynamic: list[tuple[int, int, int]] = field(default_factory=list)  # offset, info, addend
    offsets: dict[str, int] = field(default_factory=dict)  # of what is no section of an object

    @property
    def imports(self) -> list[str]:
        """Names of other libraries, in order."""
        every = [r.symbol for r in self.linked.relocations if self.home(r.symbol) is None]
        return list(dict.fromkeys(s.name for s in every))

    def home(self, symbol: Symbol) -> Symbol | None:
        """The symbol where it is defined; None: in no object."""
        return symbol if symbol.section is not None else self.linked.symbols.get(symbol.name)

    def written(self) -> bytes:
        imports, names = self.imports, [*self.imports, *self.exports]
        for name in imports:
            self.slots[name] = len(self.slots)
        for r in self.linked.relocations:
            home = self.home(r.symbol)
            if r.kind in TABLES and home is not None and home not in self.slots:
                self.slots[home] = len(self.slots)
        strings, places = _strings([*names, *self.needed])
        absolute = [r for r in self.linked.relocations if r.kind == R_64]
        rows = len(self.slots) + len(absolute)
        sizes = {
            ".hash": 4 * (3 + len(names) + 1), ".dynsym": SYMBOL * (1 + len(names)),
            ".dynstr": len(strings), ".rela.dyn": RELA * rows,
        }  # fmt: skip
        end = self.laid(sizes, len(imports))
        for relocation in self.linked.relocations:
            self.resolve(relocation, imports)
        for owner, slot in self.slots.items():
            self.entry(owner, self.offsets[".got"] + 8 * slot, imports)
        image = bytearray(end)
        for section in self.linked.sections:
            image[section.at : section.at + len(section.data)] = section.data
        self.put(image, ".hash", _hash(len(names)))
        self.put(image, ".dynsym", self.table(names, len(imports), places))
        self.put(image, ".dynstr", strings)
        self.put(image, ".rela.dyn", b"".join(struct.pack("<QQq", *r) for r in self.dynamic))
        self.put(image, ".plt", self.stubs(imports))
        for owner, slot in self.slots.items():
            if isinstance(owner, Symbol):
                struct.pack_into("<Q", image, self.offsets[".got"] + 8 * slot, self.place(owner))
        self.put(image, ".dynamic", self.facts(places, sizes))
        tail, count, texts = self.rows(sizes, end)
        image[:HEAD] = self.head(end, count, texts)
        image[HEAD : HEAD + PROGRAM * 5] = self.segments()
        return bytes(image) + tail

    def put(self, image: bytearray, name: str, data: bytes) -> None:
        image[self.offsets[name] : self.offsets[name] + len(data)] = data

    def laid(self, sizes: dict[str, int], imports: int) -> int:
        """Give everything its place, in memory as in the file; where the file's contents end."""
        at = HEAD + PROGRAM * 5
        for name, size in sizes.items():
            self.offsets[name] = at = _up(at, 8)
            at += size
        at = self.placed(READS, at)
        self.offsets["runs"] = at = _up(at, PAGE)
        at = self.placed(RUNS, at)
        self.offsets[".plt"] = at = _up(at, 16)
        self.offsets["ran"] = at + STUB * imports
        self.offsets["writes"] = at = _up(at + STUB * imports + 1, PAGE)
        at = self.placed(WRITES, at)
        self.offsets[".dynamic"] = at = _up(at, 16)
        self.offsets[".got"] = at = at + ROW * (len(self.needed) + 10)
        end = at = at + 8 * len(self.slots)
        self.offsets["zeros"] = self.placed(ZEROS, at)
        self.offsets["end"] = end
        return end

    def placed(self, home: int, at: int) -> int:
        self.offsets.setdefault(KINDS[home], at)
        for section in (s for s in self.linked.sections if s.home == home):
            section.at = at = _up(at, section.align)
            at += section.size
        return at

    def place(self, symbol: Symbol) -> int:
        assert symbol.section is not None
        return symbol.section.at + symbol.value

    def resolve(self, r: Relocation, imports: Sequence[str]) -> None:
        """Write what is known; leave the rest to the loader. Raises: UnsupportedError."""
        own, at = self.home(r.symbol), r.section.at + r.offset
        wide = r.kind in (R_64, R_PC64)
        if r.kind == R_64:
            if r.section.home != WRITES:
                raise _refused("an address in what is only read")
            number = 0 if own is not None else 1 + imports.index(r.symbol.name)
            value = 0 if own is None else self.place(own) + r.addend
            info = R_RELATIVE if own is not None else (number << 32) | R_64
            self.dynamic.append((at, info, value if own is not None else r.addend))
        elif r.kind in TABLES:
            slot = self.slots[r.symbol.name if own is None else own]
            value = self.offsets[".got"] + 8 * slot + r.addend - at
        elif r.kind in (R_PC32, R_PLT32, R_PC64) and own is not None:
            value = self.place(own) + r.addend - at
        elif r.kind == R_PLT32:
            value = self.offsets[".plt"] + STUB * imports.index(r.symbol.name) + r.addend - at
        else:
            known = {R_PC32: "R_X86_64_PC32", R_PC64: "R_X86_64_PC64", **NAMES}
            called = known.get(r.kind, f"of kind {r.kind}")
            raise _refused(f"relocation {called} against {r.symbol.name or 'a section'}")
        struct.pack_into("<q" if wide else "<i", r.section.data, r.offset, value)

    def entry(self, owner: Symbol | str, at: int, imports: Sequence[str]) -> None:
        """What the loader does with a word of the table."""
        if isinstance(owner, str):
            self.dynamic.append((at, ((1 + imports.index(owner)) << 32) | R_GLOB_DAT, 0))
        else:
            self.dynamic.append((at, R_RELATIVE, self.place(owner)))

    def stubs(self, imports: Sequence[str]) -> bytes:
        """``jmp *[rip + slot]`` for each function of another library."""
        made = b""
        for number, name in enumerate(imports):
            at = self.offsets[".plt"] + STUB * number
            slot = self.offsets[".got"] + 8 * self.slots[name]
            made += b"\xff\x25" + struct.pack("<i", slot - at - 6) + b"\xcc\xcc"
        return made

    def table(self, names: Sequence[str], imports: int, places: dict[str, int]) -> bytes:
        rows = [bytes(SYMBOL)]
        for number, name in enumerate(names):
            defined = number >= imports
            value = self.place(self.linked.symbols[name]) if defined else 0
            row = places[name], GLOBAL | FUNCTION, 0, 6 if defined else 0, value, 0
            rows.append(struct.pack("<IBBHQQ", *row))
        return b"".join(rows)

    def facts(self, places: dict[str, int], sizes: dict[str, int]) -> bytes:
        rows = [(DT_NEEDED, places[name]) for name in self.needed]
        rows += [(DT_HASH, self.offsets[".hash"]), (DT_STRTAB, self.offsets[".dynstr"])]
        rows += [(DT_SYMTAB, self.offsets[".dynsym"]), (DT_RELA, self.offsets[".rela.dyn"])]
        rows += [(DT_RELASZ, RELA * len(self.dynamic)), (DT_RELAENT, RELA), (DT_SYMENT, SYMBOL)]
        rows += [(DT_STRSZ, sizes[".dynstr"]), (DT_FLAGS, BIND_NOW), (0, 0)]
        return b"".join(struct.pack("<QQ", *row) for row in rows)

    def segments(self) -> bytes:
        """What is loaded where, with which rights; a stack that nothing runs on."""
        o = self.offsets
        reads, runs, writes = 4, 5, 6
        rows = [
            (1, reads, 0, o["runs"], o["runs"], PAGE),
            (1, runs, o["runs"], o["ran"] - o["runs"], o["ran"] - o["runs"], PAGE),
            (1, writes, o["writes"], o["end"] - o["writes"], o["zeros"] - o["writes"], PAGE),
            (2, writes, o[".dynamic"], o[".got"] - o[".dynamic"], o[".got"] - o[".dynamic"], 8),
            (0x6474E551, writes, 0, 0, 0, 16),
        ]
        parts = [
            struct.pack("<IIQQQQQQ", kind, flags, at, at, at, size, memory, align)
            for kind, flags, at, size, memory, align in rows
        ]
        return b"".join(parts)

    def head(self, end: int, count: int, texts: int) -> bytes:
        own = b"\x7fELF\x02\x01\x01" + bytes(9)
        sections = _up(end + texts, 8)
        rest = SHARED, 62, 1, 0, HEAD, sections, 0, HEAD, PROGRAM, 5, SECTION, count, count - 1
        return own + struct.pack("<HHIQQQIHHHHHH", *rest)

    def rows(self, sizes: dict[str, int], end: int) -> tuple[bytes, int, int]:
        """Names and rows of sections, for linkers and people; how many rows, and bytes of names."""
        o = self.offsets
        last = _up(o[".rela.dyn"] + sizes[".rela.dyn"], 1)
        listed = [
            (".hash", 5, ALLOC, o[".hash"], sizes[".hash"], 2, 0, 4),
            (".dynsym", 11, ALLOC, o[".dynsym"], sizes[".dynsym"], 3, 1, SYMBOL),
            (".dynstr", 3, ALLOC, o[".dynstr"], sizes[".dynstr"], 0, 0, 0),
            (".rela.dyn", RELAS, ALLOC, o[".rela.dyn"], sizes[".rela.dyn"], 2, 0, RELA),
            (".rodata", PROGBITS, ALLOC, last, o["runs"] - last, 0, 0, 0),
            (".text", PROGBITS, ALLOC | EXEC, o["runs"], o["ran"] - o["runs"], 0, 0, 0),
            (".data", PROGBITS, ALLOC | WRITE, o["writes"], o[".dynamic"] - o["writes"], 0, 0, 0),
            (".dynamic", 6, ALLOC | WRITE, o[".dynamic"], o[".got"] - o[".dynamic"], 3, 0, ROW),
            (".got", PROGBITS, ALLOC | WRITE, o[".got"], o["end"] - o[".got"], 0, 0, 8),
            (".bss", NOBITS, ALLOC | WRITE, o["end"], o["zeros"] - o["end"], 0, 0, 0),
        ]
        texts, places = _strings([*(row[0] for row in listed), ".shstrtab"])
        made = [bytes(SECTION)]
        for name, kind, flags, at, size, link, info, each in listed:
            row = places[name], kind, flags, at, at, size, link, info, 8, each
            made.append(struct.pack("<IIQQQQIIQQ", *row))
        own = places[".shstrtab"], 3, 0, 0, end, len(texts), 0, 0, 1, 0
        made.append(struct.pack("<IIQQQQIIQQ", *own))
        gap = bytes(_up(end + len(texts), 8) - end - len(texts))
        return texts + gap + b"".join(made), len(made), len(texts)


def _symbols(
    data: bytes, row: tuple[int, ...], rows: Sequence[tuple[int, ...]], loaded: dict[int, Section]
) -> Iterator[Symbol]:
    texts = rows[row[6]][4]
    for at in range(row[4], row[4] + row[5], SYMBOL):
        name, info, _, home, value, _ = struct.unpack_from("<IBBHQQ", data, at)
        called = _text(data, texts + name)
        if home == COMMON or info >> 4 > 1:
            raise _refused(f"symbol {called}, which is weak or common")
        yield Symbol(called, loaded.get(home), value, info >> 4 == 1)


def _relocations(
    data: bytes, row: tuple[int, ...], section: Section, symbols: Sequence[Symbol]
) -> Iterator[Relocation]:
    for at in range(row[4], row[4] + row[5], RELA):
        offset, info, addend = struct.unpack_from("<QQq", data, at)
        yield Relocation(section, offset, info & 0xFFFFFFFF, symbols[info >> 32], addend)


def _home(kind: int, flags: int) -> int:
    if kind == NOBITS:
        return ZEROS
    return RUNS if flags & EXEC else WRITES if flags & WRITE else READS


def _strings(names: Sequence[str]) -> tuple[bytes, dict[str, int]]:
    """Names one after the other, and where each begins."""
    data, places = b"\0", {}
    for name in names:
        places[name] = len(data)
        data += name.encode() + b"\0"
    return data, places


def _hash(count: int) -> bytes:
    """All symbols in one bucket, a chain of them: there are few."""
    chain = [0, *range(2, count + 1), 0] if count else [0]
    return struct.pack(f"<{3 + len(chain)}I", 1, len(chain), 1 if count else 0, *chain)


def _text(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _up(at: int, step: int) -> int:
    return -(-at // step) * step


def _refused(what: str) -> UnsupportedError:
    help = "install gcc or clang, or `pip install ziglang`: they link it"
    return UnsupportedError(f"{what}, which only a linker resolves", help=help, code="E533")
