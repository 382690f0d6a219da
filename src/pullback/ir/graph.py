"""Values with identity: variables (buffers that exist) and definitions (boxes of axes with a body).

Identity lasts until differentiation is done: two equal zero tensors are two inputs. Everything
below the body of a definition is interned (`expr`), so equal bodies are one object.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from pullback.config import entity, frozen
from pullback.errors import Origin
from pullback.ir import expr as E
from pullback.ir.dtype import DType, bool_
from pullback.ir.expr import Axis, Expr, Exprs, Extent, Shape, Take, rewritten, takes
from pullback.ir.markup import html
from pullback.ir.node import Node, postorder


class Keep(Enum):
    """Whether a definition may, must or must not reach memory; adjoints inherit it."""

    AUTO = "auto"
    NEVER = "never"
    ALWAYS = "always"


@frozen
class Combiner:
    """An associative, commutative way to reduce. `join` is written in primitives."""

    name: str
    identity: Callable[[DType], E.Const]
    join: Callable[[Expr, Expr], Expr]


SUM = Combiner("sum", lambda t: E.const(0, t), E.Add)
PROD = Combiner("prod", lambda t: E.const(1, t), E.Mul)
MAX = Combiner("max", E.lowest, E.maximum)
MIN = Combiner("min", E.highest, E.minimum)
ANY = Combiner("any", lambda t: E.Const(False, bool_), E.Or)
ALL = Combiner("all", lambda t: E.Const(True, bool_), E.And)
COMBINERS: dict[str, Combiner] = {c.name: c for c in (SUM, PROD, MAX, MIN, ANY, ALL)}


@frozen
class Map:
    """``out[i] = body(i)``."""


@frozen
class Reduce:
    """``out[i] = combine over k of body(i, k)``; axes of `over` follow the output's."""

    combiner: Combiner
    over: Shape


@frozen
class Scan:
    """``out[.., t, ..] = combine over t' <= t of body(.., t', ..)`` along output axis `axis`."""

    combiner: Combiner
    axis: int


@frozen
class Accumulate:
    """``out = identity; for v in domain: out[at(v)] = combine(out[at(v)], body(v))``.

    Axes 0..len(domain)-1 are the domain's. A write outside the shape raises.
    """

    combiner: Combiner
    domain: Shape
    at: Exprs


Form = Map | Reduce | Scan | Accumulate
MAP = Map()


@dataclass(eq=False, slots=True, weakref_slot=True)
class Variable:
    """A buffer that exists outside a computation: parameter, state, input, feed, constant."""

    name: str
    shape: Shape
    dtype: DType
    origin: Origin | None = None

    def __repr__(self) -> str:
        return self.name


@entity
class Rule:
    """A derivative that is given: ``adjoints of deps = pull(adjoints of outputs)``.

    `deps` need not be immediate: what lies between is not looked at. `push` takes tangents
    forward. Each is called once, with a value for all: zeros where there is no influence. `again`
    gives the rule to copies of the outputs, told what each value has become; all of them may have
    the same axes more in front.
    """

    kind: str
    outputs: tuple[Value, ...]
    deps: tuple[Value, ...]
    pull: Callable[[Sequence[Value]], Sequence[Value | None]] | None = None
    push: Callable[[Sequence[Value]], Sequence[Value]] | None = None
    again: Callable[[Callable[[Value], Value]], Rule | None] | None = None

    @property
    def sources(self) -> tuple[Value, ...]:
        return self.deps


@dataclass(eq=False, slots=True, weakref_slot=True)
class Definition:
    """A tensor as a box of axes and a scalar body. Treated as immutable.

    `stop`: no gradient passes. `keep`: see `Keep`. `name` is for people; it need not be unique.
    `rule`: a derivative that is given; it is set once, when all outputs of the rule exist.
    """

    name: str
    shape: Shape
    body: Expr
    form: Form = MAP
    stop: bool = False
    keep: Keep = Keep.AUTO
    origin: Origin | None = None
    rule: Rule | None = field(default=None, init=False, repr=False)
    _reads: tuple[Take, ...] | None = field(default=None, init=False, repr=False)
    _sources: tuple[Value, ...] | None = field(default=None, init=False, repr=False)

    @property
    def dtype(self) -> DType:
        return self.body.dtype

    @property
    def unstored(self) -> bool:
        """Whether it is marked to be computed where it is read."""
        return self.keep is Keep.NEVER

    @property
    def extents(self) -> Shape:
        """Extents of all axes the body may use, by axis number."""
        if isinstance(self.form, Reduce):
            return self.shape + self.form.over
        if isinstance(self.form, Accumulate):
            return self.form.domain
        return self.shape

    @property
    def axes(self) -> tuple[Axis, ...]:
        """The axes of the body, by number."""
        return E.axes(self.extents)

    @property
    def roots(self) -> Exprs:
        """The body and, of an accumulating write, the target indices."""
        return roots(self.body, self.form)

    @property
    def reads(self) -> tuple[Take, ...]:
        """Every read of the body, once each, in a fixed order."""
        if self._reads is None:
            self._reads = tuple(takes(self.roots))
        return self._reads

    def placed(self) -> Definition:
        """The same; reads at data, which are checked, know the user's line as this does."""
        for take in self.reads:
            if take.is_data:
                take.placed(self.origin)
        return self

    @property
    def sources(self) -> tuple[Value, ...]:
        """Every value read, once each, in a fixed order."""
        if self._sources is None:
            self._sources = tuple(dict.fromkeys([r.source for r in self.reads]))
        return self._sources

    def __repr__(self) -> str:
        return self.name

    def _repr_html_(self) -> str:
        """For notebooks: the equation and the user's line."""
        return html(self)


Value = Variable | Definition
Moves = dict[int, Expr]
"""What axes are replaced by, by their numbers."""


def read(source: Value, *indices: Expr | int) -> Take:
    """``source[indices]``, Python integers lifted."""
    return Take(source, tuple(E.index(i) if isinstance(i, int) else i for i in indices))


def identity(value: Value) -> Take:
    """``value[i, j, ..]`` over the value's own axes."""
    return Take(value, E.axes(value.shape))


def define(
    name: str,
    shape: Iterable[Extent],
    body: Callable[..., Expr],
    *,
    over: Iterable[Extent] = (),
    combiner: Combiner = SUM,
    stop: bool = False,
    keep: Keep = Keep.AUTO,
    origin: Origin | None = None,
) -> Definition:
    """A map (no `over`) or reduction whose `body` is called with one `Axis` per axis."""
    shape = tuple(shape)
    over = tuple(over)
    form: Form = Reduce(combiner, over) if over else Map()
    return Definition(name, shape, body(*E.axes(shape + over)), form, stop, keep, origin)


@frozen
class Label:
    """What a new definition is called and inherits."""

    name: str
    keep: Keep
    origin: Origin | None

    def define(self, shape: Iterable[Extent], body: Expr, form: Form = MAP) -> Definition:
        """The definition of that name."""
        return Definition(self.name, tuple(shape), body, form, False, self.keep, self.origin)


def beside(
    definition: Definition,
    name: str,
    body: Expr,
    form: Form,
    shape: Iterable[Extent] | None = None,
) -> Definition:
    """A companion of `definition`, of its shape and keep; no gradient enters an integer one."""
    return Definition(
        name,
        definition.shape if shape is None else tuple(shape),
        body,
        form,
        stop=not body.dtype.is_float,
        keep=definition.keep,
        origin=definition.origin,
    )


def substitute(root: Expr, axes: Mapping[int, Expr]) -> Expr:
    """`root` with axis values replaced. ``x[i, k], {0: j+1} -> x[j+1, k]``"""

    def change(node: Node) -> Node | None:
        return axes.get(node.number) if isinstance(node, Axis) else None

    return rewritten(root, change)


def placed_at(root: Expr, indices: Iterable[Expr]) -> Expr:
    """`root` over its first axes, at `indices`."""
    return substitute(root, dict(enumerate(indices)))


def replace_reads(root: Expr, change: Callable[[Take], Expr | None]) -> Expr:
    """`root` with reads replaced, innermost first."""

    def visit(node: Node) -> Node | None:
        return change(node) if isinstance(node, Take) else None

    return rewritten(root, visit)


def with_places(form: Form, change: Callable[[Take], Expr | None]) -> Form:
    """`form` with reads in the indices that it writes at replaced."""
    if not isinstance(form, Accumulate):
        return form
    return replace(form, at=tuple([replace_reads(i, change) for i in form.at]))


def roots(body: Expr, form: Form) -> Exprs:
    """A body and, of an accumulating write, the target indices."""
    return (body, *form.at) if isinstance(form, Accumulate) else (body,)


def topological(outputs: Iterable[Value], skip: Container[Value] = ()) -> list[Definition]:
    """Every definition that `outputs` need, sources before users, in a deterministic order.

    Those in `skip`, and what only they need, are left out.
    """

    def below(value: Value) -> Sequence[Value] | None:
        if not isinstance(value, Definition) or value in skip:
            return None
        return value.sources

    return [d for d in postorder(outputs, below) if isinstance(d, Definition)]


def variables(outputs: Iterable[Value]) -> list[Variable]:
    """Every variable that `outputs` read (or are), in a deterministic order."""
    outputs = list(outputs)
    read_first = {o: None for o in outputs if isinstance(o, Variable)}
    for definition in topological(outputs):
        read_first.update({s: None for s in definition.sources if isinstance(s, Variable)})
    return list(read_first)


@entity
class Graph:
    """A simultaneous assignment: every value is computed from the variables' old contents.

    A `Variable` on the right is a copy. The order of `assigns` means nothing.
    """

    assigns: tuple[tuple[Variable, Value], ...]

    @property
    def definitions(self) -> list[Definition]:
        return topological(v for _, v in self.assigns)

    @property
    def inputs(self) -> list[Variable]:
        return variables(v for _, v in self.assigns)

    def of(self, known: Mapping[Value, Value]) -> Graph:
        """The same assignment of what values became; itself where none did."""
        assigns = tuple((target, known.get(v, v)) for target, v in self.assigns)
        same = all(new is old for (_, new), (_, old) in zip(assigns, self.assigns, strict=True))
        return self if same else Graph(assigns)
