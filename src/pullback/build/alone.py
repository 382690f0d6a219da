"""Functions of operations where nothing compiles C: LLVM's objects, linked by `elf.py`.

What `interface.txt` and `padded.txt` are in C stands here as LLVM IR: checks before anything runs,
messages, copies of arrays whose rows lie further apart at the largest size.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any, Protocol

from pullback.backends.base import Compiler, Image, lined
from pullback.backends.host.lines import LINE, NEEDS, Lines
from pullback.backends.host.lying import apart as lies_apart
from pullback.backends.registry import named
from pullback.build.elf import shared_library
from pullback.build.interface import signature
from pullback.build.sized import extent_in_llvm, in_llvm
from pullback.config import BACKEND
from pullback.errors import UnsupportedError
from pullback.ir.expr import Dim, Expr, upper
from pullback.ir.graph import Variable
from pullback.ir.program import Feed, Receive

# Those that can occur here; the rest are of a reader of weights.
SAID = {
    0: "",
    -1: "there is no memory [E547]",
    -2: "a size is out of its bounds [E544]",
    -3: "a callback is missing [E545]",
    -4: "a callback failed, or fed nothing [E546]",
    -5: "this processor lacks instructions that it was built for [E542]",
    -6: "the header is of another build, or another version of the interface [E541]",
}
UNKNOWN = "an unknown status"
NEEDED = "libm.so.6", "libc.so.6"  # of glibc; other C libraries are one, and there already
COMMON = """\
declare ptr @malloc(i64)
declare ptr @memcpy(ptr, ptr, i64)
declare ptr @fopen(ptr, ptr)
declare ptr @fgets(ptr, i32, ptr)
declare i32 @fclose(ptr)
declare i32 @strncmp(ptr, ptr, i64)
declare ptr @strstr(ptr, ptr)
@pb_path = internal constant [14 x i8] c"/proc/cpuinfo\\00"
@pb_mode = internal constant [2 x i8] c"r\\00"
@pb_flags = internal constant [6 x i8] c"flags\\00"
@pb_known = internal global i32 0

; The bytes of `shape` elements of `size`, from rows that are `from` elements apart to those that
; are `to` apart, by axis; nothing where both are one array.
define internal void @pb_lay(
    ptr %into, ptr %to, ptr %out, ptr %from, ptr %shape, i64 %axes, i64 %size) nounwind {
entry:
  %lies = icmp eq ptr %into, %out
  br i1 %lies, label %none, label %some
none:
  ret void
some:
  %count = load i64, ptr %shape
  %last = icmp eq i64 %axes, 1
  br i1 %last, label %copy, label %rows
copy:
  %bytes = mul i64 %count, %size
  %same = call ptr @memcpy(ptr %into, ptr %out, i64 %bytes)
  ret void
rows:
  %far = load i64, ptr %to
  %near = load i64, ptr %from
  %up = mul i64 %far, %size
  %down = mul i64 %near, %size
  %to1 = getelementptr i64, ptr %to, i64 1
  %from1 = getelementptr i64, ptr %from, i64 1
  %shape1 = getelementptr i64, ptr %shape, i64 1
  %axes1 = sub i64 %axes, 1
  br label %test
test:
  %n = phi i64 [0, %rows], [%n1, %do]
  %more = icmp slt i64 %n, %count
  br i1 %more, label %do, label %end
do:
  %a = mul i64 %n, %up
  %b = mul i64 %n, %down
  %p = getelementptr i8, ptr %into, i64 %a
  %q = getelementptr i8, ptr %out, i64 %b
  call void @pb_lay(ptr %p, ptr %to1, ptr %q, ptr %from1, ptr %shape1, i64 %axes1, i64 %size)
  %n1 = add i64 %n, 1
  br label %test
end:
  ret void
}

; Rounded down; 0 by 0 is 0.
define internal i64 @pb_floor(i64 %a, i64 %b) nounwind {
  %none = icmp eq i64 %b, 0
  %by = select i1 %none, i64 1, i64 %b
  %top = select i1 %none, i64 0, i64 %a
  %q = sdiv i64 %top, %by
  %r = srem i64 %top, %by
  %rest = icmp ne i64 %r, 0
  %mixed = xor i64 %r, %by
  %apart = icmp slt i64 %mixed, 0
  %down = and i1 %rest, %apart
  %less = sext i1 %down to i64
  %floor = add i64 %q, %less
  ret i64 %floor
}

; What this processor says of itself, with spaces around each word; null: nothing.
define internal ptr @pb_words() nounwind {
entry:
  %line = call ptr @malloc(i64 65536)
  %none = icmp eq ptr %line, null
  br i1 %none, label %nothing, label %open
open:
  %file = call ptr @fopen(ptr @pb_path, ptr @pb_mode)
  %shut = icmp eq ptr %file, null
  br i1 %shut, label %lost, label %read
read:
  %got = call ptr @fgets(ptr %line, i32 65536, ptr %file)
  %over = icmp eq ptr %got, null
  br i1 %over, label %close, label %look
look:
  %order = call i32 @strncmp(ptr %line, ptr @pb_flags, i64 5)
  %here = icmp eq i32 %order, 0
  br i1 %here, label %close, label %read
close:
  %right = phi i1 [false, %read], [true, %look]
  %done = call i32 @fclose(ptr %file)
  br i1 %right, label %spaces, label %lost
spaces:
  %at = phi ptr [%line, %close], [%next, %put]
  %c = load i8, ptr %at
  %ends = icmp eq i8 %c, 0
  br i1 %ends, label %told, label %char
char:
  %tab = icmp ult i8 %c, 32
  br i1 %tab, label %space, label %put
space:
  store i8 32, ptr %at
  br label %put
put:
  %next = getelementptr i8, ptr %at, i64 1
  br label %spaces
told:
  ret ptr %line
lost:
  call void @free(ptr %line)
  br label %nothing
nothing:
  ret ptr null
}

define internal i1 @pb_lacks() nounwind {
entry:
  %known = load atomic i32, ptr @pb_known monotonic, align 4
  %new = icmp eq i32 %known, 0
  br i1 %new, label %ask, label %old
ask:
  %has = call i1 @pb_has()
  %now = select i1 %has, i32 1, i32 2
  store atomic i32 %now, ptr @pb_known monotonic, align 4
  br label %old
old:
  %state = phi i32 [%known, %entry], [%now, %ask]
  %lacks = icmp eq i32 %state, 2
  ret i1 %lacks
}
"""


class Apart(Compiler, Protocol):
    """What compiles kernels as objects, and writes what launches them."""

    objects: dict[str, bytes]
    dense: bool

    def program(
        self,
        name: str,
        image: Image,
        arguments: Mapping[Variable, str],
        constants: Mapping[Variable, Any],
        sizes: Mapping[Dim, str],
        sites: list[str],
        calls: Mapping[Feed | Receive, str] = ...,
    ) -> str:
        """The function of a program."""

    def driver(self, texts: Sequence[str]) -> bytes:
        """The object of such functions."""


class Function(Protocol):
    """One of the functions that are built."""

    name: str

    def names(self) -> list[str]:
        """Of inputs, results and sizes."""

    copied: bool

    def compiled(self, start: Callable[[], Apart]) -> tuple[Apart, Image]:
        """Kernels by a backend, memory planned; `copied`: they work on copies."""

    @property
    def state(self) -> list[Variable]:
        """What it is given, then what it gives."""

    @property
    def given(self) -> int:
        """How many of its state it is given."""

    @property
    def constants(self) -> dict[Variable, Any]:
        """What it captures, with contents."""

    @property
    def sizes(self) -> dict[Dim, str]:
        """Those that are arguments, each by its name."""

    @property
    def checks(self) -> Sequence[Expr]:
        """What has to be true of them, beside their bounds."""


def is_linux() -> bool:
    """Whether this machine is one that libraries are linked for."""
    return sys.platform == "linux" and platform.machine() == "x86_64"


def is_alone(language: str) -> bool:
    """Whether libraries are linked here, because nothing compiles a language."""
    backend: Any = named(language)
    return is_linux() and not backend.compiles()


def apart() -> Apart:
    """What compiles kernels."""
    backend: Any = named(BACKEND)
    made: Apart = backend.alone()
    return made


def linked(
    functions: Sequence[Function], facts: Mapping[str, Any], whole: bool, threads: int
) -> bytes:
    """A shared library of functions. Raises: UnsupportedError for what needs a C compiler."""
    if not whole or threads > 1:
        what = f"{threads} threads" if whole else "an object or an archive"
        raise UnsupportedError(f"{what}, without a C compiler", help=NEEDS, code="E533")
    writer, sites, texts = apart(), list[str](), [COMMON, _has(facts["features"])]
    for function in functions:
        own, image = function.compiled(apart)
        writer.objects |= own.objects
        names = function.names()
        inner = f"{function.name}_kernels"
        arguments = dict(zip(function.state, names, strict=False))
        program = own.program(inner, image, arguments, function.constants, function.sizes, sites)
        texts += [program, _outer(function, inner, arguments)]
    return _together(writer, texts, [f.name for f in functions], facts, sites)


def program(
    name: str,
    image: Image,
    arguments: Mapping[Variable, str],
    calls: Mapping[Feed | Receive, str],
    facts: Mapping[str, Any],
    writer: Apart,
) -> bytes:
    """A shared library of the program of a script, whose kernels `writer` compiled."""
    sites: list[str] = []
    inner = f"{name}_run"
    text = writer.program(inner, image, arguments, {}, {}, sites, calls)
    user = ["user"] if calls else []
    given = ", ".join(f"ptr %{n}" for n in [*arguments.values(), *calls.values(), *user])
    b = Lines()
    b.fails(b.value("call i1 @pb_lacks()"), "-5")
    b.emit(f"ret i32 {b.value(f'call i32 @{inner}({given})')}")
    head = f"define i32 @{name}({given}) nounwind {{\n.entry:"
    outer = "\n".join([head, *b.lines, "}", ""])
    return _together(writer, [COMMON, _has(facts["features"]), text, outer], [name], facts, sites)


def _together(
    writer: Apart,
    texts: list[str],
    names: Sequence[str],
    facts: Mapping[str, Any],
    sites: Sequence[str],
) -> bytes:
    """Objects, with what says what is wrong, as a library."""
    name = names[0]
    texts += [_check(name, signature(facts)), _message(name, sites)]
    objects = [writer.driver(texts), *writer.objects.values()]
    exports = [*names, f"{name}_check", f"{name}_message"]
    return shared_library(objects, exports, NEEDED if platform.libc_ver()[0] == "glibc" else ())


def _outer(function: Function, inner: str, arguments: Mapping[Variable, str]) -> str:
    """The function of dense arrays: copies of those whose rows lie further apart at the largest."""
    b, sizes, room = Lines(), function.sizes, 0
    given = [*(f"ptr %{n}" for n in arguments.values()), *(f"i64 %{n}" for n in sizes.values())]
    b.fails(b.value("call i1 @pb_lacks()"), "-5")
    b.bounded(sizes)
    for check in function.checks:
        b.fails(b.value(f"xor i1 {in_llvm(b, check, sizes)}, true"), "-2")
    wide: dict[Variable, int] = {}
    for variable in arguments:
        if function.copied and lies_apart(variable.shape):
            wide[variable] = room
            room += lined(max(1, prod(map(upper, variable.shape)) * variable.dtype.itemsize))
    if wide:
        b.emit(f"%.wide = call ptr @aligned_alloc(i64 {LINE}, i64 {lined(room)})")
        b.fails(b.value("icmp eq ptr %.wide, null"), "-1")
    passed, into, back = [], list(arguments)[: function.given], []
    for variable, name in arguments.items():
        passed.append(f"ptr %{name}")
        if variable in wide:
            own = b.value(f"getelementptr i8, ptr %.wide, i64 {wide[variable]}")
            rows = _rows(b, variable, sizes)
            own = b.value(f"select i1 {_lies(b, variable, sizes)}, ptr %{name}, ptr {own}")
            passed[-1] = f"ptr {own}"
            if variable in into:
                b.emit(_lay(own, rows[0], f"%{name}", rows[1], rows[2], variable))
            else:
                back.append(_lay(f"%{name}", rows[1], own, rows[0], rows[2], variable))
    call = ", ".join([*passed, *(f"i64 %{n}" for n in sizes.values())])
    status = b.value(f"call i32 @{inner}({call})")
    freed = ["call void @free(ptr %.wide)"] if wide else []
    b.fails(b.value(f"icmp ne i32 {status}, 0"), status, *freed)
    for line in [*back, *freed, "ret i32 0"]:
        b.emit(line)
    head = f"define i32 @{function.name}({', '.join(given)}) nounwind {{\n.entry:"
    return "\n".join([head, *b.lines, "}", ""])


def _lies(b: Lines, variable: Variable, sizes: Mapping[Dim, str]) -> str:
    """Whether the rows of an array of a caller's lie as far apart as at the largest size."""
    good = "true"
    for extent in [e for e in variable.shape[1:] if isinstance(e, Dim)]:
        size = extent_in_llvm(b, extent, sizes)
        good = b.value(f"and i1 {good}, {b.value(f'icmp eq i64 {size}, {extent.hi}')}")
    return good


def _rows(b: Lines, variable: Variable, sizes: Mapping[Dim, str]) -> list[str]:
    """Arrays: how far apart elements of each axis lie at the largest, and dense; the shape."""
    shape = [extent_in_llvm(b, e, sizes) for e in variable.shape]
    far, near = ["1"], ["1"]
    for extent, size in zip(variable.shape[:0:-1], shape[:0:-1], strict=True):
        far.append(str(int(far[-1]) * upper(extent)))
        near.append(b.value(f"mul i64 {near[-1]}, {size}"))
    made = []
    for row in (far[::-1], near[::-1], shape):
        made.append(b.value(f"alloca [{len(row)} x i64], align 8"))
        for number, value in enumerate(row):
            to = b.value(f"getelementptr i64, ptr {made[-1]}, i64 {number}")
            b.emit(f"store i64 {value}, ptr {to}")
    return made


def _lay(into: str, to: str, out: str, gaps: str, shape: str, variable: Variable) -> str:
    rest = f"i64 {len(variable.shape)}, i64 {variable.dtype.itemsize}"
    given = f"ptr {into}, ptr {to}, ptr {out}, ptr {gaps}, ptr {shape}, {rest}"
    return f"call void @pb_lay({given})"


def _has(features: Sequence[str]) -> str:
    """Whether this processor says of itself that it has each of these."""
    b = Lines()
    if not features:
        return "define internal i1 @pb_has() nounwind {\n  ret i1 true\n}\n"
    b.emit("%.line = call ptr @pb_words()")
    b.emit("%.none = icmp eq ptr %.line, null")
    b.emit("br i1 %.none, label %.no, label %.yes")
    b.lines.append(".yes:")
    good = "true"
    for number in range(len(features)):
        word = b.value(f"call ptr @strstr(ptr %.line, ptr @pb_feature_{number})")
        good = b.value(f"and i1 {good}, {b.value(f'icmp ne ptr {word}, null')}")
    b.emit("call void @free(ptr %.line)")
    b.emit(f"ret i1 {good}")
    b.lines += [".no:", "  ret i1 false", "}", ""]
    words = [_words(f"pb_feature_{n}", f" {feature} ") for n, feature in enumerate(features)]
    return "\n".join([*words, "define internal i1 @pb_has() nounwind {", *b.lines])


def _check(name: str, wanted: int) -> str:
    signed = wanted - (1 << 64) if wanted >> 63 else wanted
    return f"""\
define i32 @{name}_check(i64 %interface) nounwind {{
  %other = icmp ne i64 %interface, {signed}
  br i1 %other, label %foreign, label %own
foreign:
  ret i32 -6
own:
  %lacks = call i1 @pb_lacks()
  %status = select i1 %lacks, i32 -5, i32 0
  ret i32 %status
}}
"""


def _message(name: str, sites: Sequence[str]) -> str:
    """What a status says."""
    said = {**SAID, **{n + 1: f"{site} [E548]" for n, site in enumerate(sites)}}
    every = list(said.values())
    texts = [_words(f"pb_said_{n}", text) for n, text in enumerate([*every, UNKNOWN])]
    rows = [f"    i32 {status}, label %said{n}" for n, status in enumerate(said)]
    blocks = [f"said{n}:\n  ret ptr @pb_said_{n}" for n in range(len(every) + 1)]
    head = f"define ptr @{name}_message(i32 %status) nounwind {{"
    switch = f"  switch i32 %status, label %said{len(every)} ["
    return "\n".join([*texts, head, switch, *rows, "  ]", *blocks, "}", ""])


def _words(name: str, text: str) -> str:
    """A text with a zero behind it."""
    data = text.encode() + b"\0"
    held = "".join(f"\\{byte:02X}" for byte in data)
    return f'@{name} = internal constant [{len(data)} x i8] c"{held}"'
