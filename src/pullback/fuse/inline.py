"""Which definitions vanish into their readers, which are computed again, which may be stored.

*View*: only moves elements; always substituted. *Inline*: cheap, or read once by a map;
substituted. *Stage*: never stored; a stage of every kernel that needs it. *Node*: may get a buffer.
``v[i] = x[i+1]; y[i] = v[i] * 2  ->  y[i] = x[i+1] * 2``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import prod

from pullback.config import Cap, frozen
from pullback.cost.facts import (
    BodyFacts,
    compose,
    elements,
    is_cheap,
    is_permutation,
    is_view,
    points,
    study,
)
from pullback.fuse.asked import Places, asked, checks
from pullback.fuse.products import contraction
from pullback.ir.dtype import float32
from pullback.ir.expr import Axis, Expr, Extent, Take, upper
from pullback.ir.graph import (
    Accumulate,
    Definition,
    Form,
    Keep,
    Map,
    Reduce,
    Value,
    replace_reads,
    substitute,
    topological,
    with_places,
)
from pullback.machine.machine import Machine
from pullback.prepare.extend import padded

Simplify = Callable[[Expr], Expr]
# Nodes of bodies that are written into others, and of views: more take too long to compile.
BODY_NODES: Cap = 400
VIEW_NODES: Cap = 4000
# Recomputed stages in a row, so that a kernel keeps room within its 32.
CHAIN_STAGES: Cap = 10
# Points of what runs once on one thread: about a launch on several (1 us).
FINISH_POINTS = 8192


class Role(Enum):
    INLINE = "inline"
    STAGE = "stage"
    NODE = "node"


@dataclass(slots=True)
class Inlined:
    """A graph after inlining: live definitions with their new bodies and roles."""

    order: list[Definition]
    machine: Machine
    roles: dict[Definition, Role] = field(default_factory=dict)
    bodies: dict[Definition, Expr] = field(default_factory=dict)
    forms: dict[Definition, Form] = field(default_factory=dict)
    facts: dict[Definition, BodyFacts] = field(default_factory=dict)

    def sources(self, *definitions: Definition) -> list[Value]:
        """What definitions read, each once, in order."""
        every = (a.source for d in definitions for a in self.facts[d].accesses)
        return list(dict.fromkeys(every))

    def needs(self, definition: Definition) -> list[Definition]:
        """The definitions that one reads, in order."""
        return [s for s in self.sources(definition) if isinstance(s, Definition)]

    def add(self, definition: Definition) -> None:
        """One more node, as it is."""
        self.order.append(definition)
        self.roles[definition] = Role.NODE
        self.bodies[definition] = definition.body
        self.forms[definition] = definition.form
        self.facts[definition] = study(definition.body, definition.form)

    def copy(self) -> Inlined:
        """The same decisions, to be changed apart."""
        order = list(self.order)
        roles = dict(self.roles)
        bodies = dict(self.bodies)
        return Inlined(order, self.machine, roles, bodies, dict(self.forms), dict(self.facts))


def inline(outputs: list[Definition], simplify: Simplify, machine: Machine) -> Inlined:
    """Views first, then what is cheaper to compute than to load."""
    scene = Inlined(topological(outputs), machine)
    fixed = set(outputs) | padded(scene.order, machine)
    places = asked(scene.order)
    for definition in scene.order:
        _rewrite(scene, definition, simplify)
        moves = definition not in fixed and isinstance(definition.form, Map)
        moves = moves and definition.keep is not Keep.ALWAYS
        moves = moves and scene.facts[definition].nodes <= VIEW_NODES
        view = moves and is_view(scene.bodies[definition])
        view = view and _checks(scene, definition, places)
        scene.roles[definition] = Role.INLINE if view else Role.NODE
    scene.order = live(scene, outputs)
    users = readers(scene)
    leaves: dict[Definition, dict[Value, None]] = {}
    chain: dict[Definition, int] = {}
    again: dict[Definition, int] = {}
    for definition in scene.order:
        _rewrite(scene, definition, simplify)
        below = _leaves(scene, definition, leaves)
        above = users.get(definition, [])
        stages = _stages(scene, definition)
        depth = 1 + sum(chain[s] for s in stages)
        work = sum(again[s] for s in stages)
        # To keep a value memory is fetched, written and read again.
        kept = not definition.unstored
        dear = kept and not is_cheap(work, machine, 3, "memory_sweep")
        apart = definition in fixed or (dear and len({use.user for use in above}) > 1)
        role = Role.NODE if apart else _role(scene, definition, below, above, depth)
        if role is Role.INLINE and not _checks(scene, definition, places):
            role = Role.NODE
        scene.roles[definition] = role
        leaves[definition] = below
        chain[definition] = depth if role is Role.STAGE else 0
        again[definition] = work + scene.facts[definition].flops
    scene.order = live(scene, outputs)
    return scene


def _checks(scene: Inlined, definition: Definition, places: Places) -> bool:
    """Whether a definition, written into its readers, is checked as it is where it is read."""
    own = places.get(definition)
    return not own or checks(scene.bodies[definition], definition.shape, own)


def live(scene: Inlined, outputs: list[Definition]) -> list[Definition]:
    """What the outputs still read, in the old order."""
    needed = set(outputs)
    for definition in reversed(scene.order):
        if definition in needed:
            needed.update(scene.needs(definition))
    return [d for d in scene.order if d in needed]


@frozen
class Use:
    """One access to a definition by `user`."""

    user: Definition
    bind: tuple[int | None, ...]


def readers(scene: Inlined) -> dict[Definition, list[Use]]:
    """Who reads each definition, in order."""
    uses: dict[Definition, list[Use]] = {}
    for user in scene.order:
        for access in scene.facts[user].accesses:
            if isinstance(access.source, Definition):
                uses.setdefault(access.source, []).append(Use(user, access.bind))
    return uses


def _rewrite(scene: Inlined, definition: Definition, simplify: Simplify) -> None:
    """Substitute the sources that vanish."""
    body = scene.bodies.get(definition, definition.body)
    form = scene.forms.get(definition, definition.form)
    facts = scene.facts.get(definition) or study(body, form)
    sources = dict.fromkeys(a.source for a in facts.accesses)
    inlined = [s for s in sources if isinstance(s, Definition) and _vanishes(scene, s)]
    if inlined:
        reader = _Reader(scene)
        body = replace_reads(body, reader.change)
        form = with_places(form, reader.change)
        if reader.moved:
            body = simplify(body)
            facts = study(body, form)
        else:
            facts = compose(facts, {s: scene.facts[s] for s in inlined})
    scene.bodies[definition] = body
    scene.forms[definition] = form
    scene.facts[definition] = facts


def _vanishes(scene: Inlined, definition: Definition) -> bool:
    return scene.roles.get(definition) is Role.INLINE


class _Reader:
    """Replaces reads of inlined definitions by their bodies."""

    def __init__(self, scene: Inlined) -> None:
        self.scene = scene
        self.moved = False

    def change(self, take: Take) -> Expr | None:
        source = take.source
        if not isinstance(source, Definition) or not _vanishes(self.scene, source):
            return None
        body = self.scene.bodies[source]
        moves = {
            n: index
            for n, index in enumerate(take.indices)
            if index is not Axis(n, source.shape[n])
        }
        if not moves:
            return body
        self.moved = True
        return substitute(body, moves) if body.axes & moves.keys() else body


def _stages(scene: Inlined, definition: Definition) -> list[Definition]:
    """Recomputed definitions that this one reads."""
    return [s for s in scene.needs(definition) if scene.roles.get(s) is Role.STAGE]


def _leaves(
    scene: Inlined, definition: Definition, known: dict[Definition, dict[Value, None]]
) -> dict[Value, None]:
    """Stored values that computing this definition again would read."""
    leaves: dict[Value, None] = {}
    for source in scene.sources(definition):
        if isinstance(source, Definition) and scene.roles[source] is Role.STAGE:
            leaves.update(known[source])
        else:
            leaves[source] = None
    return leaves


def _role(
    scene: Inlined,
    definition: Definition,
    leaves: dict[Value, None],
    uses: list[Use],
    depth: int,
) -> Role:
    """The cheapest honest place for a definition that is not assigned."""
    facts = scene.facts[definition]
    form = scene.forms[definition]
    never = definition.unstored
    product = contraction(definition, form, facts, scene.machine)
    alone = product is not None and product.tall and not never
    if alone or definition.keep is Keep.ALWAYS or isinstance(form, Accumulate):
        return Role.NODE
    size = elements(definition.shape)
    big = sum(elements(leaf.shape) >= size for leaf in leaves)
    small = isinstance(form, Map) and facts.nodes <= BODY_NODES
    heavy = not never and any(_reduces(scene, s) for s in _stages(scene, definition))
    light = small and (not heavy or _is_epilogue(scene, definition, uses))
    if light and _substitutes(scene, definition, uses, big, never):
        return Role.INLINE
    if never:
        return Role.STAGE
    if heavy or depth > CHAIN_STAGES:
        return Role.NODE
    exact = all(is_permutation(use.bind, definition.shape) for use in uses)
    if not isinstance(form, Map):
        late = size == 1 and points(definition) > FINISH_POINTS  # in tasks, however many one reads
        near = _is_epilogue(scene, definition, uses) and sums_up(scene, definition) is None
        return Role.STAGE if near and not late else Role.NODE
    once = len({use.user for use in uses}) == 1
    return Role.STAGE if (exact and (once or big <= 1)) or big == 0 else Role.NODE


def sums_up(scene: Inlined, definition: Definition) -> Definition | None:
    """The stored reduction of which one number is taken, every element once: a norm's share.

    ``dw[n, k] = sum[i](..); s[] = sum[n, k](dw[n, k] * dw[n, k])  ->  dw``
    """
    sources = scene.sources(definition)
    if len(sources) != 1 or elements(definition.shape) > 1:
        return None
    source = sources[0]
    if not isinstance(source, Definition) or scene.roles[source] is not Role.NODE:
        return None
    if isinstance(scene.forms[definition], Map):
        return None
    if not isinstance(scene.forms[source], Reduce | Accumulate):
        return None
    return source if points(definition) == elements(source.shape) > 1 else None


def _substitutes(
    scene: Inlined,
    definition: Definition,
    uses: list[Use],
    big: int,
    never: bool,
) -> bool:
    """Whether substitution costs neither memory traffic nor noticeable work."""
    size = elements(definition.shape)
    if len(uses) == 1 and points(uses[0].user) <= size:
        return True
    cheap = is_cheap(scene.facts[definition].flops, scene.machine) and (big <= 1 or never)
    return cheap and (never or not _often(scene, definition, uses))


def _often(scene: Inlined, definition: Definition, uses: list[Use]) -> bool:
    """Whether to compute it in loops around those of its own axes takes longer than to write it and
    to read it there: ``y[c, i] = sum[k](w[k, i] x[c, i + k])``, w in each c. Operands of products
    are computed once, as these lay them out.
    """
    machine = scene.machine
    often = 1
    for user in dict.fromkeys(use.user for use in uses):
        form, facts = scene.forms.get(user, user.form), scene.facts[user]
        if contraction(user, form, facts, machine) is None:
            own = [a.axes for a in facts.accesses if a.source is definition]
            often = max(often, *(_around(user.extents, axes) for axes in own))
    again = often * scene.facts[definition].flops / machine.rate("whole", "work")
    moved = 3 / machine.rate("whole", "memory") + often / machine.rate("whole", "near")
    return again > float32.itemsize * moved


def _around(extents: Sequence[Extent], axes: frozenset[int]) -> int:
    """How often loops turn that are around those over `axes`, at most."""
    last = max(axes, default=-1)
    return prod(upper(e) for n, e in enumerate(extents) if n < last and n not in axes)


def _reduces(scene: Inlined, definition: Definition) -> bool:
    """Whether recomputing a stage repeats a reduction."""
    stack = [definition]
    while stack:
        stage = stack.pop()
        if not isinstance(scene.forms[stage], Map):
            return True
        stack += _stages(scene, stage)
    return False


def _is_epilogue(scene: Inlined, definition: Definition, uses: list[Use]) -> bool:
    """One map of the same size reads it, element by element: bias, activation, residual, update."""
    if len({use.user for use in uses}) != 1:
        return False
    user = uses[0].user
    same = points(user) == elements(definition.shape)
    exact = all(is_permutation(use.bind, definition.shape) for use in uses)
    return same and exact and isinstance(scene.forms[user], Map)
