"""Fusion: definitions are grouped into kernels, one launch each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.config import Cap, Ints, UserRule
from pullback.fuse.beside import set_beside
from pullback.fuse.emit import Emitter, launch_order
from pullback.fuse.group import Grouping, apply_rules, best_first, too_large
from pullback.fuse.groups import Group
from pullback.fuse.inline import Inlined, Role, inline
from pullback.fuse.masks import told_by_results
from pullback.fuse.problem import Order, build, closures, reads_itself_safely
from pullback.ir.graph import Definition, Graph, Value, Variable, identity
from pullback.ir.kernel import Kernel
from pullback.ir.signature import graph_signature
from pullback.ir.target import Target
from pullback.prepare.extend import extend
from pullback.prepare.written import write_out
from pullback.simplify.rules import RULES, Simplifier

# How often recomputed values that do not fit a tile are looked for; storing one may show another.
STORE_ROUNDS: Cap = 3


def fuse(
    graph: Graph,
    target: Target,
    rules: Sequence[UserRule] = (),
    price: Callable[[Kernel], float] | None = None,
) -> list[Kernel]:
    """Kernels of a simultaneous assignment, in launch order.

    ``z = sum[k] x * w; y = max(z + b, 0)  ->  one kernel: z in registers, y stored``
    Values that cross kernels become fresh variables named after their definitions.
    """
    grouping = group(graph, target, rules, price)
    return _emitted(grouping)


def group(
    graph: Graph,
    target: Target,
    rules: Sequence[UserRule] = (),
    price: Callable[[Kernel], float] | None = None,
) -> Grouping:
    """The groups of a graph: everything but the choice of outer axes. `price`: ns of a kernel."""
    simplify = Simplifier(RULES.also(rules))
    known: dict[str, float] = {}  # a network repeats its sums

    def ns(one: Graph) -> float:
        assert price is not None, "asked for sums that are priced"
        key = graph_signature(one, names=False)
        if key not in known:
            kernels = _emitted(_grouped(one, simplify, target, rules))
            known[key] = sum(price(piece) for kernel in kernels for piece in kernel.pieces)
        return known[key]

    priced = None if price is None else ns
    return _grouped(extend(graph, simplify, target.profile, priced), simplify, target, rules)


def _grouped(
    graph: Graph, simplify: Simplifier, target: Target, rules: Sequence[UserRule]
) -> Grouping:
    """The groups of a graph whose sums are as they are to be."""
    outputs = _outputs(graph)
    scene = inline(list(outputs), simplify, target.profile)
    told_by_results(scene, set(outputs), simplify)

    def start() -> Grouping:
        """One group for every node."""
        mine = scene.copy()
        return Grouping(build(mine, _targets(mine, outputs)), target, rules)

    grouping = start()
    for _ in range(STORE_ROUNDS):
        crowded = too_large(grouping)
        if not crowded:
            break
        scene.roles.update(dict.fromkeys(crowded, Role.NODE))
        grouping = start()
    apply_rules(grouping)
    set_beside(grouping)
    best_first(grouping)
    return grouping


def _emitted(grouping: Grouping) -> list[Kernel]:
    return emit(grouping, lambda g: grouping.price(g).outer)


def emit(grouping: Grouping, choose: Callable[[Group], Ints]) -> list[Kernel]:
    """One kernel a group, over the classes that `choose` gives, in launch order."""
    problem = grouping.problem
    emitter = Emitter(problem)
    kernels = []
    for one in launch_order(problem, list(grouping.groups.values())):
        apart = grouping.reasons(grouping.home[one.nodes[0]])
        reasons = tuple(f"apart from {emitter.name(g)}: {why}" for g, why in apart)
        parts = []
        for piece in one.pieces:
            outer = tuple(piece.classes[n] for n in choose(piece))
            own = () if one.parts else reasons
            parts.append(write_out(emitter.kernel(piece, outer, own), grouping.target.profile))
        beside = Kernel(emitter.name(one), (), (), (), reasons, tuple(parts))
        kernels.append(beside if one.parts else parts[0])
    return kernels


def _outputs(graph: Graph) -> dict[Definition, Variable]:
    """What is computed for each variable; a variable or a shared value on the right is a copy."""
    outputs: dict[Definition, Variable] = {}
    for variable, value in graph.assigns:
        if value is variable:
            continue
        if isinstance(value, Variable) or value in outputs:
            value = copy_of(value, variable.name)
        outputs[value] = variable
    return outputs


def copy_of(value: Value, name: str) -> Definition:
    """``name[i] = value[i]``"""
    return Definition(name, value.shape, identity(value))


def _targets(scene: Inlined, outputs: dict[Definition, Variable]) -> dict[Definition, Variable]:
    """Who stores into which variable: the value's own node where that is safe, else a late copy."""
    closure = closures(scene)
    order = Order(scene, closure)
    targets: dict[Definition, Variable] = {}
    for definition, variable in outputs.items():
        safe = reads_itself_safely(scene, closure[definition], definition, variable)
        if safe and order.overwrites(definition, variable):
            targets[definition] = variable
            continue
        late = copy_of(definition, variable.name)
        scene.add(late)
        order.append(scene, late)
        order.overwrites(late, variable)
        targets[late] = variable
    return targets
