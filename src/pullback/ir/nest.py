"""Loop nests: what a kernel becomes once scheduled. A small imperative language, scalar in form.

A loop marked VECTOR promises that its iterations are independent but for `Combine`; a backend runs
them in lanes, masks the tail, and reduces registers combined inside. A loop marked UNROLL is
written out; indices of register arrays must be constant after that (but for the vector variable
in the last place). Scalar expressions are `ir.expr` nodes over the leaves `Var`, `Load`, `Peek`.
Offsets are in elements.

What `lower/` makes of this, and a backend must handle:

- A VECTOR loop whose variable indexes a register's last place has literal bounds ``0..n`` with
  ``n <= shape[-1]``: it is written out in whole vectors, the last one masked.
- Inside a VECTOR loop stand SEQ and UNROLL loops with bounds equal in every lane; a register
  declared inside is one value a lane (column sums, scans); no VECTOR loop stands in another.
- A register declared outside a VECTOR loop is combined inside (then reduced at the loop's end) or
  peeked (then broadcast), never set, unless its last index is the vector variable.
- A loop of one iteration ``for v in e..e+1`` names a value: `v` has bounds, `e` has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pullback.config import Ints, entity
from pullback.errors import InvalidIR
from pullback.ir.dtype import DType, int64
from pullback.ir.expr import Expr, Exprs
from pullback.ir.graph import Combiner


@dataclass(eq=False, slots=True, weakref_slot=True)
class Array:
    """Memory. An *argument* is given by the caller; *scratch* is private to a task and aligned to
    64 bytes; *shared* scratch is one block for the launch (partials). `size` in elements.
    """

    name: str
    dtype: DType
    size: int
    space: str = "argument"

    def __repr__(self) -> str:
        return self.name


@dataclass(eq=False, slots=True, weakref_slot=True)
class Register:
    """A local value, or a small array of them with literal shape; never has an address."""

    name: str
    dtype: DType
    shape: Ints = ()

    def __repr__(self) -> str:
        return self.name


class Var(Expr):
    """A loop variable, the task number or a run-time extent: int64 in ``lo..hi`` (inclusive)."""

    __slots__ = ("hi", "lo", "name")
    name: str
    lo: int
    hi: int

    def derive(self) -> None:
        self._set(dtype=int64, axes=frozenset())


class Load(Expr):
    """``array[offset]``. Under an `If`, only the lanes that take the branch touch memory."""

    __slots__ = ("array", "offset")
    array: Array
    offset: Expr

    def typed(self, kids: Exprs) -> DType:
        return self.array.dtype


class Peek(Expr):
    """The value of a register (element)."""

    __slots__ = ("indices", "register")
    register: Register
    indices: Exprs

    def typed(self, kids: Exprs) -> DType:
        return self.register.dtype


class Native(Expr):
    """A scalar function that a backend provides, chosen from a composite's canonical form.

    `name` is one of NATIVES; its meaning is NumPy's (erf: SciPy's; normal_cdf: its ndtr).
    ``power(x, y)`` is ``exp(y log x)``.
    """

    __slots__ = ("args", "name")
    name: str
    args: Exprs

    def typed(self, kids: Exprs) -> DType:
        if len(kids) != ARITY.get(self.name, 1):
            raise InvalidIR(f"{self.name} of {len(kids)} values")
        return super().typed(kids)


ARITY = {"maximum": 2, "minimum": 2, "power": 2, "fma": 3}  # of all others 1
NATIVES = (
    "maximum", "minimum", "abs", "floor", "rint", "fma", "tanh", "erf", "sigmoid", "softplus",
    "cos", "tan", "sinh", "cosh", "log1p", "expm1", "log2", "log10", "atan", "asin", "acos",
    "asinh", "acosh", "atanh", "power", "normal_cdf",
)  # fmt: skip


class LoopKind(Enum):
    SEQ = "seq"
    UNROLL = "unroll"
    VECTOR = "vector"


@entity
class For:
    """``for var in lo, lo+step, .. < hi: body``. `unroll`: vectors in flight in a VECTOR loop."""

    var: Var
    lo: Expr
    hi: Expr
    body: tuple[Stmt, ...]
    kind: LoopKind = LoopKind.SEQ
    step: int = 1
    unroll: int = 1


@entity
class Declare:
    """A fresh register; every element starts as `init`."""

    register: Register
    init: Expr


@entity
class Set:
    """``register[indices] = value``"""

    register: Register
    indices: Exprs
    value: Expr


@entity
class Combine:
    """``register[indices] = join(register[indices], value)``; the order may be changed."""

    register: Register
    indices: Exprs
    combiner: Combiner
    value: Expr


@entity
class Store:
    """``array[offset] = value``"""

    array: Array
    offset: Expr
    value: Expr


@entity
class StoreCombine:
    """``array[offset] = join(array[offset], value)``, one writer, in loop order.

    In a VECTOR loop the offset must be affine with a non-zero coefficient (no two lanes meet).
    """

    array: Array
    offset: Expr
    combiner: Combiner
    value: Expr


@entity
class Guard:
    """``if condition: body``"""

    condition: Expr
    body: tuple[Stmt, ...]


@entity
class Check:
    """Where not ``0 <= index < extent``: the first such value is kept with `site` for the caller.

    Code after it must not touch memory with the bad index: it uses a clamped one.
    """

    index: Expr
    extent: Expr
    site: int


@entity
class Transpose:
    """``target[t0 + c*target_row + r] = source[s0 + r*source_row + c]`` for r < rows, c < columns.

    A panel copy that a backend may do in registers. Elements have one dtype. `word`: so many
    neighbours of the source stay together, and `r` and `c` count words.
    """

    target: Array
    target_offset: Expr
    target_row: int
    source: Array
    source_offset: Expr
    source_row: int
    rows: Expr
    columns: Expr
    word: int = 1


@entity
class Prefetch:
    """A hint that ``array[offset]`` is read some microseconds later; it may lie outside."""

    array: Array
    offset: Expr


@entity
class Mark:
    """What follows in its block computes these stages of the kernel, by number; for people."""

    stages: Ints


Effect = Declare | Set | Combine | Store | StoreCombine | Check | Transpose | Prefetch | Mark
Stmt = For | Guard | Effect
Stmts = list[Stmt]


@entity
class Routine:
    """A compiled kernel's code: ``body(arguments, task)`` for task in 0..tasks-1, then `finish`.

    `arguments` in call order; `sizes` are run-time extents passed after them; `scratch` is per
    task; `shared` is one block for the launch. `sites[n]` describes check `n` for the user.
    `streamed` are arguments that are written past the caches: nothing here reads them.
    """

    name: str
    arguments: tuple[Array, ...]
    sizes: tuple[Var, ...]
    scratch: tuple[Array, ...]
    shared: tuple[Array, ...]
    task: Var
    tasks: int
    body: tuple[Stmt, ...]
    finish: tuple[Stmt, ...] = ()
    sites: tuple[str, ...] = ()
    streamed: tuple[Array, ...] = ()
