"""A whole program as plain C functions: launches in order, working memory, threads by OpenMP.

    int NAME(const float *x, const float *w, float *y)

What is written stands alone: a C11 compiler of GNU's kind (gcc, clang, zig cc) is all it needs.
"""

from __future__ import annotations

import keyword
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from pullback.backends.base import Code, Image, Job, Part, Work, lined
from pullback.backends.c.compiler import compiler, crossing
from pullback.backends.c.emit import INDENT, emit_routine
from pullback.backends.c.language import C11, Passed, computed, stored
from pullback.backends.loops.backend import Loops, launched
from pullback.backends.loops.backend import stored as facts_of
from pullback.backends.nests.dense import dense
from pullback.errors import UnsupportedError
from pullback.ir import nest as N
from pullback.ir.dtype import DType
from pullback.ir.expr import Dim
from pullback.ir.graph import Variable
from pullback.ir.program import Branch, Feed, Item, Launch, Loop, Receive
from pullback.ir.target import Target
from pullback.ir.text import show
from pullback.lower.inplace import in_place
from pullback.lower.kernel import lower
from pullback.verify.nest import verify_routine

Array = np.ndarray[Any, Any]
NOBODY: Mapping[Feed | Receive, str] = MappingProxyType({})

OWN = """\
#if defined(_OPENMP)
#include <omp.h>
#define PB_THREADS omp_get_max_threads()
#define PB_THREAD omp_get_thread_num()
#else
#define PB_THREADS 1
#define PB_THREAD 0
#endif

typedef void pb_body(void **block, int64_t task, char *scratch);

/* All tasks of a kernel; each thread has scratch of its own. */
static void pb_launch(
    pb_body *body, void **block, int64_t tasks, char *scratch, int64_t stride, int threads) {
  (void)threads;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (tasks > 1)
  for (int64_t task = 0; task < tasks; ++task)
    body(block, task, stride ? scratch + stride * PB_THREAD : 0);
}
"""
# Not every function of the prelude is called, nor are threads wanted of every compiler.
QUIET = ("psabi", "unknown-pragmas", "unused-function", "unused-const-variable")
POOL = Path(__file__).with_name("pool.h")
LINE = 64  # bytes: to which memory is aligned
# What a name in C, or in Python around it, cannot be.
WORDS = (
    "auto break case char const continue default do double else enum extern float for goto if "
    "inline int long register restrict return short signed sizeof static struct switch typedef "
    "union unsigned void volatile while bool main memory scratch error block threads torch numpy "
    "ctypes hashlib os platform shlex shutil stat subprocess tempfile given fact"
)
TAKEN = frozenset(WORDS.split()) | {"any", "isinstance", *keyword.kwlist}


class Portable(C11):
    """C11 that means the same by any flags: integers wrap as unsigned ones, nothing is exported.

    `threads`: as many of its own; 1: those of OpenMP, where the compiler has it.
    """

    def __init__(self, vector: int, threads: int = 1) -> None:
        super().__init__(vector)
        self.threads = threads

    def integer(self, sign: str, left: str, right: str, kind: DType, index: bool) -> str:
        """As an unsigned number of at least 32 bits, where C leaves open what an overflow is."""
        if index:
            return super().integer(sign, left, right, kind, index)
        around = "uint64_t" if kind.bits == 64 else "uint32_t"
        return f"({computed(kind)})(({around}){left} {sign} ({around}){right})"

    def function(
        self, name: str, routine: N.Routine, passed: Sequence[Passed], names: Mapping[object, str]
    ) -> tuple[str, list[str], str]:
        head, lines, end = super().function(name, routine, passed, names)
        return f"static {head}", lines, end

    def prelude(self) -> str:
        """What stands before the functions, once in a file."""
        ignored = [f'#pragma GCC diagnostic ignored "-W{name}"' for name in QUIET]
        quiet = "\n".join(["#if defined(__GNUC__)", *ignored, "#endif"])
        exact = (
            "#if defined(__clang__)\n#pragma STDC FP_CONTRACT OFF\n#elif defined(__GNUC__)\n"
            '#pragma GCC optimize("fp-contract=off", "wrapv")\n#endif'
        )
        pool = f"#define PB_POOL {self.threads}\n{POOL.read_text()}"
        own = pool if self.threads > 1 else OWN
        return "\n".join([quiet, super().prelude(), exact, own])


class Writer(Loops):
    """Writes kernels down and compiles nothing; `bodies` are their functions, in order."""

    name = "c"

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.dense = False  # arrays of symbolic sizes have no gaps
        self.bodies: list[str] = []

    def prelude(self, target: Target, threads: int = 1) -> str:
        """What a file of programs for `target` begins with; `threads`: as many of its own."""
        return Portable(target.vector, threads).prelude()

    def comment(self, text: str) -> str:
        """A comment that says `text`."""
        return comment(text)

    def kind(self, dtype: DType) -> str:
        """The type of an element in memory."""
        return stored(dtype)

    def names(self, names: Iterable[str], taken: Container[str] = ()) -> list[str]:
        """Each as an identifier that no other is, nor one of `taken`."""
        made: list[str] = []
        for name in names:
            own = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
            own = own if own and not own[0].isdigit() else f"x{own}"
            while {own} & {*made, *TAKEN} or own in taken or own.startswith(("pb_", "PB_")):
                own += "_"
            made.append(own)
        return made

    def program(
        self,
        image: Image,
        inputs: Mapping[Variable, str],
        results: Mapping[Variable, str],
        constants: Mapping[Variable, Array],
        sizes: Mapping[Dim, str],
        sites: list[str],
        calls: Mapping[Feed | Receive, str] = NOBODY,
    ) -> str:
        """The function of a program, which calls `bodies`; `sizes` are its last arguments, checked
        against their bounds; behind them, `calls`: feeders and receivers, as function pointers.
        What its checks of indices say is added to `sites`: it returns 1 + the place there.

        Raises: UnsupportedError for a program that calls its host otherwise.
        """
        ports = Ports(inputs, results, constants, sizes, calls)
        return _Program(self.prefix, image, ports, sites).text()

    def library(
        self, text: str, plain: str, target: Target, whole: bool = True, machine: str = ""
    ) -> bytes:
        """Two files, the second for any processor, as a shared library or one object, for this
        machine or another. Raises: CompilerError, OptionError.
        """
        tool = crossing(machine) if machine else compiler()
        return tool.linked({text: target.cpu, plain: ""}, whole)

    def compile(self, work: Iterable[Work], job: Job) -> list[Code]:
        """Code without an address of each kernel."""
        language, codes = Portable(job.target.vector), []
        for kernel, schedule in work:
            verify_routine(lower(kernel, schedule), "lower")
            written = dense if self.dense else lower
            nest = written(kernel, schedule, marks=True)
            symbol = f"_{self.prefix}_{len(self.bodies)}"
            text = emit_routine(nest, language, symbol)
            self.bodies.append(f"{comment(show(kernel))}\n{text}")
            codes.append(Code(facts_of(nest, "", symbol), 0, 0, None, in_place(nest)))
        return codes


def comment(text: str) -> str:
    """A comment of C that says `text`."""
    lines = text.replace("*/", "* /").rstrip().splitlines()
    return "/* " + "\n   ".join(lines) + " */"


@dataclass(frozen=True, slots=True)
class Ports:
    """The variables of a program that are its arguments in C, each by the name it has there.

    `inputs` are read, `results` written; `constants` have contents that are written down.
    """

    inputs: Mapping[Variable, str]
    results: Mapping[Variable, str]
    constants: Mapping[Variable, Array]
    sizes: Mapping[Dim, str]
    calls: Mapping[Feed | Receive, str]


@dataclass(slots=True)
class _Program:
    """Writes one function."""

    name: str
    image: Image
    ports: Ports
    sites: list[str]
    lines: list[str] = field(default_factory=list)
    depth: int = 1
    order: int = 0
    turns: int = 0  # loops around

    def text(self) -> str:
        inputs = [f"const {stored(v.dtype)} *{n}" for v, n in self.ports.inputs.items()]
        results = [f"{stored(v.dtype)} *{n}" for v, n in self.ports.results.items()]
        sizes = [f"int64_t {n}" for n in self.ports.sizes.values()]
        calls = [f"pb_callback *{n}" for n in self.ports.calls.values()]
        user = ["void *user"] if calls else []
        given = ", ".join([*inputs, *results, *sizes, *calls, *user]) or "void"
        self.callbacks()
        self.memory()
        self.block(self.image.block)
        self.emit("free(memory);")
        self.emit("return 0;")
        constants = [self.constant(v, a) for v, a in self.ports.constants.items()]
        return "\n".join([*constants, f"int {self.name}({given}) {{", *self.lines, "}", ""])

    @property
    def room(self) -> tuple[int, int]:
        """Bytes for values, and for the scratch of each thread."""
        plan = self.image.plan
        return lined(plan.arena_bytes), max(plan.stride, default=0)

    def memory(self) -> None:
        """One block for all of a call, which is within its bounds."""
        arena, stride = self.room
        for dim, name in self.ports.sizes.items():
            self.emit(f"if ({name} < {dim.lo} || {name} > {dim.hi}) return -2;")
        self.emit("int64_t error[3] = {0, 0, 0};")
        self.emit("const int threads = PB_THREADS;")
        self.emit(f"const size_t room = {arena} + {stride} * (size_t)threads;")
        self.emit(f"char *const memory = aligned_alloc({LINE}, room ? room : {LINE});")
        self.emit("if (!memory) return -1;")
        self.emit(f"char *const scratch = memory + {arena};")
        self.emit("(void)error, (void)scratch;")

    def callbacks(self) -> None:
        """All of them are there; how often each receiver was reached."""
        if self.ports.calls:
            self.emit("int ended = 0;")
        for item, name in self.ports.calls.items():
            self.emit(f"if (!{name}) return -3;")
            if isinstance(item, Receive):
                self.emit(f"int64_t reached_{name} = 0;")

    def constant(self, variable: Variable, array: Array) -> str:
        """The contents of one, as bytes."""
        data = ", ".join(map(str, np.ascontiguousarray(array).tobytes())) or "0"
        home = self.constant_name(variable)
        return f"_Alignas({LINE}) static const uint8_t {home}[] = {{{data}}};"

    def constant_name(self, variable: Variable) -> str:
        place = list(self.ports.constants).index(variable)
        return f"{self.name}_constant_{place}"

    def emit(self, line: str) -> None:
        self.lines.append(INDENT * self.depth + line)

    @contextmanager
    def braced(self, head: str) -> Iterator[None]:
        self.emit(f"{head} {{" if head else "{")
        self.depth += 1
        yield
        self.depth -= 1
        self.emit("}")

    def at(self, variable: Variable) -> str:
        """Where a variable lies."""
        for known in (self.ports.inputs, self.ports.results):
            if variable in known:
                return f"(void *){known[variable]}"
        if variable in self.ports.constants:
            return f"(void *){self.constant_name(variable)}"
        return f"memory + {self.image.plan.offsets[variable]}"

    def block(self, block: Sequence[Item]) -> None:
        for item in block:
            self.item(item)

    def item(self, item: Item) -> None:
        """Raises: UnsupportedError for what talks to its host."""
        if isinstance(item, Launch):
            self.launch(item)
        elif isinstance(item, Loop):
            self.loop(item)
        elif isinstance(item, Branch):
            with self.braced(f"if (*(const uint8_t *)({self.at(item.predicate)}))"):
                self.block(item.then)
            with self.braced("else"):
                self.block(item.otherwise)
        elif isinstance(item, Feed | Receive) and item in self.ports.calls:
            self.talk(item, self.ports.calls[item])
        else:
            kind = type(item).__name__
            raise UnsupportedError(f"a {kind} of the host, in a file of C", code="E395")

    def talk(self, item: Feed | Receive, name: str) -> None:
        """Call a function of the caller's: a feeder gives 1 where there is no more, which ends the
        innermost loop; anything else but 0 ends the program.
        """
        feeds = isinstance(item, Feed)
        variables = item.targets if isinstance(item, Feed) else item.sources
        head = "" if isinstance(item, Feed) else f"if (++reached_{name} % {item.every} == 0)"
        self.emit("ended = 0;")
        with self.braced(head):
            self.emit(f"void *const arrays[] = {{{', '.join(map(self.at, variables))}}};")
            self.emit(f"ended = {name}(user, arrays);")
        if feeds and self.turns:
            self.emit("if (ended == 1) break;")
        with self.braced("if (ended)"):
            self.emit("free(memory);")
            self.emit("return -4;")

    def loop(self, loop: Loop) -> None:
        """Tested, counted, run."""
        self.turns += 1
        turn = f"turn{self.depth}"
        head = f"for (int64_t {turn} = 0; {turn} < {loop.count}; ++{turn})"
        with self.braced(head):
            if loop.condition is not None:
                self.emit(f"if (!*(const uint8_t *)({self.at(loop.condition)})) break;")
            if loop.counter is not None:
                value = f"{loop.start} + {turn} * {loop.step}"
                self.emit(f"*(int64_t *)({self.at(loop.counter)}) = {value};")
            self.block(loop.body)
        self.turns -= 1

    def launch(self, item: Launch) -> None:
        """One kernel, part by part: tasks of each are independent."""
        for part, shared in launched(self.image, item, self.order):
            self.part(part, shared)
        self.order += 1

    def part(self, part: Part, shared: int) -> None:
        facts = part.code.stored
        words = [self.at(v) for v in part.arguments]
        for size in facts.shared:
            words.append(f"memory + {shared}")
            shared += lined(size)
        named = {dim.name: name for dim, name in self.ports.sizes.items()}
        words += [f"(void *)(intptr_t){named[n]}" for n in facts.sizes]
        words.append("error")
        stride = lined(facts.scratch)
        with self.braced(""):
            self.emit(f"void *block[] = {{{', '.join(words)}}};")
            body, rest = f"body{facts.symbol}", f"{facts.tasks}, scratch, {stride}, threads"
            self.emit(f"pb_launch({body}, block, {rest});")
            if facts.finish:
                self.emit(f"finish{facts.symbol}(block, 0, scratch);")
        if facts.sites:
            with self.braced("if (error[0])"):
                self.emit(f"const int failed = {1 + len(self.sites)} + (int)error[1];")
                self.emit("free(memory);")
                self.emit("return failed;")
            self.sites += [site.partition("\n")[0] for site in facts.sites]
