"""Recording: a traced block of user code becomes segments, and segments become a `Program`.

A segment is one simultaneous assignment to be. Every definition belongs to the segment in which
it was made, where it sees the variables' contents as they were then; a later segment that needs
it gets it through a fresh variable, filled by the earlier one (promotion).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pullback.errors import InvalidIR, UnsupportedError
from pullback.ir.expr import Expr, Take
from pullback.ir.graph import (
    Definition,
    Graph,
    Map,
    Value,
    Variable,
    replace_reads,
    topological,
)
from pullback.ir.program import (
    Block,
    Branch,
    Compute,
    Feed,
    HostCall,
    Item,
    Loop,
    Program,
    Receive,
)
from pullback.simplify.graph import with_roots
from pullback.tensor.record.calls import Call
from pullback.tensor.record.dead import without_dead
from pullback.tensor.record.late import late


@dataclass(eq=False, slots=True)
class Segment:
    """One `Compute` to be, and the receives that look at its results."""

    frame: Frame
    number: int
    assigns: dict[Variable, Value] = field(default_factory=dict)
    receives: list[ReceiveDraft] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class ReceiveDraft:
    """A `Receive` whose sources are still values."""

    make: Callable[[tuple[Variable, ...]], Receive]
    sources: tuple[Value, ...]


@dataclass(eq=False, slots=True)
class LoopDraft:
    """A `Loop` whose body is still a frame."""

    body: Frame
    make: Callable[[Block], Loop]


@dataclass(eq=False, slots=True)
class BranchDraft:
    """A `Branch` whose sides are still frames."""

    predicate: Variable
    then: Frame
    otherwise: Frame


@dataclass(eq=False, slots=True)
class BlockDraft:
    """A block that runs once, where it stands."""

    body: Frame


@dataclass(eq=False, slots=True)
class Frame:
    """A block being traced. Feeds run first: they depend on nothing, and a batch that does not
    come must leave the whole step undone.

    `first`, `last`: numbers of its segments. `owner`: the control form that it is a block of.
    """

    parent: Frame | None
    first: int = 0
    last: int = 0
    owner: Call | None = None
    feeds: list[Feed] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)

    def inside(self, other: Frame) -> bool:
        """Whether `other` is this frame or encloses it."""
        frame: Frame | None = self
        while frame is not None and frame is not other:
            frame = frame.parent
        return frame is not None


Part = Segment | LoopDraft | BranchDraft | BlockDraft | HostCall


class Recording:
    """Frames and segments of one trace.

    `changed`: the last segment that changed a state or was fed a batch. `stored`: definitions that
    are read from where another block has left their values, not computed again.
    """

    def __init__(self) -> None:
        self.root = Frame(None)
        self.frame = self.root
        self.segment = Segment(self.root, 0)
        self.root.parts.append(self.segment)
        self.home: dict[Definition, Segment] = {}
        self.changed: dict[Variable, int] = {}
        self.stored: dict[Value, Value] = {}

    def stamp(self, definition: Definition) -> None:
        """`definition`, and what it is made of, belongs to the current segment."""
        stack: list[Definition] = [definition]
        while stack:
            value = stack.pop()
            if value in self.home:
                continue
            self.home[value] = self.segment
            stack.extend(s for s in value.sources if isinstance(s, Definition))

    def cut(self) -> None:
        """Later definitions see the variables as the current segment leaves them."""
        self.segment = Segment(self.frame, self.segment.number + 1)
        self.frame.parts.append(self.segment)

    def assign(self, variable: Variable, value: Value) -> None:
        """``variable = value`` at the end of the current segment, for other segments to see."""
        self.segment.assigns[variable] = value
        self.changed[variable] = self.segment.number

    def feed(self, feed: Feed) -> None:
        """Take a batch at the start of the current block."""
        self.frame.feeds.append(feed)
        self.changed.update((t, self.segment.number) for t in feed.targets)

    def stale(self, variable: Variable, frame: Frame) -> bool:
        """Whether `variable` has changed since `frame` was entered."""
        return self.changed.get(variable, -1) >= frame.first

    def contains(self, frame: Frame, value: Value) -> bool:
        """Whether `value` was made in `frame`."""
        home = self.home.get(value) if isinstance(value, Definition) else None
        return home is not None and home.frame.inside(frame)

    def add(self, draft: LoopDraft | BranchDraft | BlockDraft | HostCall) -> None:
        """Append an item that runs between two segments."""
        self.frame.parts.append(draft)
        self.cut()

    def enter(self) -> Frame:
        """Open a block inside the current one."""
        self.frame = Frame(self.frame, self.segment.number + 1)
        self.cut()
        return self.frame

    def leave(self) -> None:
        """Close the innermost block."""
        if self.frame.parent is None:
            raise InvalidIR("the outermost block cannot be left")
        self.frame.last = self.segment.number
        self.frame = self.frame.parent
        self.cut()

    def finish(self, state: tuple[Variable, ...]) -> Program:
        """The whole recording as a program."""
        return late(without_dead(Program(_Builder(self).block(self.root), state)))


def changes(recording: Recording, states: Container[Variable]) -> list[Value]:
    """Every value that some block of the recording assigns to a state."""
    segments = _segments(recording.root)
    return [d for s in segments for v, d in s.assigns.items() if v in states]


def _segments(frame: Frame) -> Iterator[Segment]:
    for part in frame.parts:
        if isinstance(part, Segment):
            yield part
        elif isinstance(part, LoopDraft | BlockDraft):
            yield from _segments(part.body)
        elif isinstance(part, BranchDraft):
            yield from _segments(part.then)
            yield from _segments(part.otherwise)


def _viewed(definition: Definition) -> Value | None:
    """What `definition` is nothing but a view of, its places fixed."""
    body = definition.body
    if len(definition.reads) != 1 or not isinstance(body, Take) or definition.form != Map():
        return None
    return body.source


class _Builder:
    """Promotes what crosses segments, then rewrites each segment's graph."""

    def __init__(self, recording: Recording) -> None:
        self.home = recording.home
        self.promoted: dict[Definition, Variable] = {}
        self.seen: dict[Segment, set[Definition]] = {}
        self.writes: dict[Variable, list[int]] = {}
        for segment in list(_segments(recording.root)):
            for draft in segment.receives:
                draft.sources = tuple(self.received(s, segment) for s in draft.sources)
        self.settle(recording)
        for segment in list(_segments(recording.root)):
            for variable in (
                *segment.assigns,
                *(t for f in segment.frame.feeds for t in f.targets),
            ):
                self.writes.setdefault(variable, []).append(segment.number)
        pending = [(s, v) for s in _segments(recording.root) for v in s.assigns.values()]
        while pending:
            segment, value = pending.pop()
            pending.extend(self.foreign(segment, value))

    def settle(self, recording: Recording) -> None:
        """Reads of stored definitions become reads of where they are stored."""
        if not (stored := recording.stored):
            return
        segments = list(_segments(recording.root))
        memo = dict(stored)
        roots = [v for s in segments for v in s.assigns.values()]
        for definition in above([*roots, *stored.values()], stored):
            fresh = memo[definition] = reread(definition, memo)
            if fresh is not definition and definition in self.home:
                self.home[fresh] = self.home[definition]
        for segment in segments:
            segment.assigns = {v: memo.get(d, d) for v, d in segment.assigns.items()}

    def received(self, source: Value, segment: Segment) -> Variable:
        """A variable that holds `source` once `segment` has run."""
        if isinstance(source, Variable) and source not in segment.assigns:
            return source
        for variable, value in segment.assigns.items():
            if value is source:
                return variable
        name = f"{source.name}_seen"
        fresh = Variable(name, source.shape, source.dtype, source.origin)
        segment.assigns[fresh] = source
        return fresh

    def foreign(self, segment: Segment, root: Value) -> list[tuple[Segment, Value]]:
        """Promote what `root` needs from other segments; the new work for those."""
        work: list[tuple[Segment, Value]] = []
        seen = self.seen.setdefault(segment, set())
        stack = [root]
        while stack:
            value = stack.pop()
            if not isinstance(value, Definition) or value in seen:
                continue
            seen.add(value)
            home = self.home.get(value, segment)
            if home is segment or self.free(value, home, segment):
                stack.extend(value.sources)
                continue
            if value in self.promoted:
                continue
            self.promoted[value] = self.promote(value, home, segment)
            work.append((home, value))
        return work

    def free(self, value: Definition, home: Segment, user: Segment) -> bool:
        """Whether `user` may write `value` down itself at no cost.

        A map that reads nothing, or a view of a variable that is the same there.
        """
        if not value.reads:
            return isinstance(value.form, Map)
        if not user.frame.inside(home.frame):
            return False
        source: Value | None = value
        while isinstance(source, Definition):
            home = self.home.get(source, home)
            source = _viewed(source)
        last, frame = user.number - 1, user.frame
        while frame is not home.frame and frame.parent is not None:
            last, frame = frame.last, frame.parent
        written = () if source is None else self.writes.get(source, ())
        return source is not None and not any(home.number <= n <= last for n in written)

    def promote(self, value: Definition, home: Segment, user: Segment) -> Variable:
        """A variable that `home` fills with `value`."""
        if not user.frame.inside(home.frame):
            raise UnsupportedError(
                f"`{value.name}` was made inside a loop or branch and is used outside of it",
                origin=value.origin,
                help="pass it out as a carry, or assign it to a state",
                code="E317",
            )
        fresh = Variable(value.name, value.shape, value.dtype, value.origin)
        home.assigns[fresh] = value
        return fresh

    def block(self, frame: Frame) -> Block:
        """The items of `frame`, in order."""
        items: list[Item] = list(frame.feeds)
        for part in frame.parts:
            if isinstance(part, Segment):
                if part.assigns:
                    items.append(Compute(self.graph(part)))
                items.extend(self.receive(d) for d in part.receives)
            elif isinstance(part, LoopDraft):
                items.append(part.make(self.block(part.body)))
            elif isinstance(part, BlockDraft):
                items.extend(self.block(part.body))
            elif isinstance(part, HostCall):
                items.append(part)
            else:
                then, otherwise = self.block(part.then), self.block(part.otherwise)
                items.append(Branch(part.predicate, then, otherwise))
        return tuple(items)

    @staticmethod
    def receive(draft: ReceiveDraft) -> Receive:
        return draft.make(tuple(s for s in draft.sources if isinstance(s, Variable)))

    def graph(self, segment: Segment) -> Graph:
        """The segment's assignments with promoted definitions read from their variables."""
        known: dict[Definition, Value] = {}
        for definition in topological(segment.assigns.values()):
            home = self.home.get(definition, segment)
            variable = self.promoted.get(definition)
            if variable is None or home is segment:
                continue
            if not self.free(definition, home, segment):
                known[definition] = variable
        values = redirect(list(segment.assigns.values()), known)
        return Graph(tuple(zip(segment.assigns, values, strict=True)))


def redirect(roots: list[Value], known: Mapping[Definition, Value]) -> list[Value]:
    """`roots` with every read of a key of `known` replaced by one of its value."""
    memo: dict[Value, Value] = {}
    for definition in above(roots, known):
        memo.update(
            (s, known[s]) for s in definition.sources if isinstance(s, Definition) and s in known
        )
        memo[definition] = reread(definition, memo)
    return [known[r] if isinstance(r, Definition) and r in known else memo.get(r, r) for r in roots]


def above(roots: Iterable[Value], stop: Container[Value]) -> list[Definition]:
    """Definitions under `roots`, sources first, without those in `stop`."""
    return topological(roots, stop)


def reread(definition: Definition, memo: dict[Value, Value]) -> Definition:
    """`definition` with its sources replaced; itself where none changes."""
    if all(memo.get(s, s) is s for s in definition.sources):
        return definition

    def change(take: Take) -> Expr | None:
        source = memo.get(take.source, take.source)
        return None if source is take.source else take.of(source)

    return with_roots(definition, [replace_reads(r, change) for r in definition.roots])
