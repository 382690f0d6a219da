"""Products of matrices in a kernel, whose derivatives are products again, tiled by other blocks.

    total += dot(left, right)            d_left = d_total right^T,   d_right = left^T d_total

A kernel's derivative keeps the blocks that its user chose for `total`: each program adds to all of
its rows and columns, by atomic operations. As products of their own both have tiles of their own,
and no element is added to by two programs. What comes from behind `total` is that of an output, or
is stored once by the kernel's derivative, which has less to do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pullback.config import frozen
from pullback.triton import words
from pullback.triton.facts import LOOPS, Facts, start_of
from pullback.triton.indices import ROOM, Indices
from pullback.triton.layouts import Layout, laid
from pullback.triton.nodes import ENDS, Operation, Value

_CASTS = ("arith.extf", "arith.truncf", "tt.fp_to_fp")
_MOVES = (*_CASTS, "tt.trans")  # from a load to a product
_ALIKE = (*_CASTS, "arith.cmpf", "tt.bitcast")  # of elements, beside those that have words


@frozen
class Factor:
    """What comes from behind `total` is stored where `store` stores, as elements of this type.

    `start` is what the sum begins with.
    """

    total: Value
    start: Value
    store: Operation
    element: str


@frozen
class Product:
    """A sum of products of blocks that are loaded; a block is `turned` behind its load.

    `arrays` are the arguments that hold both, and what is made of the sum; `behind` is the output
    whose cotangent the factor is, if it is one's.
    """

    arrays: tuple[str, str, str]
    dot: Operation
    factor: Factor
    left: Operation
    right: Operation
    turned: tuple[bool, bool]
    loop: Operation | None
    behind: str


@frozen
class Tiled:
    """The products of a kernel that are tiled again, where their matrices lie, and by whom (names
    of arguments) gradients are theirs; of other arguments that are in products why they are not.
    """

    products: tuple[tuple[Product, Layout], ...] = ()
    targets: frozenset[str] = frozenset()
    reasons: tuple[tuple[str, str], ...] = ()

    @property
    def factors(self) -> tuple[Factor, ...]:
        """Those that the kernel's derivative stores."""
        return tuple(p.factor for p, _ in self.products if not p.behind)

    @property
    def lines(self) -> list[str]:
        """What is tiled again, and what is not."""
        made = []
        for product, layout in self.products:
            a, b, c = product.arrays
            total = f"d_{c}" if product.behind else f"behind_{product.factor.total.name}"
            batch = "b, " * (layout.total.extents[0] > 1)
            both = (
                (a, f"d_{a}[{batch}m, k] = sum[n]({total}[{batch}m, n] * {b}[{batch}k, n])"),
                (b, f"d_{b}[{batch}k, n] = sum[m]({a}[{batch}m, k] * {total}[{batch}m, n])"),
            )
            made += [f"tiled again: {text}" for name, text in both if name in self.targets]
        return made + [f"{name} is not tiled again: {why}" for name, why in self.reasons]


def tiled(
    facts: Facts,
    numbers: Mapping[str, int],
    grid: tuple[int, int, int],
    wrt: Sequence[str],
    behind: frozenset[str],
    kept: frozenset[str] = frozenset(),
) -> Tiled:
    """The products of a kernel that may be tiled again, for the numbers and the grid of a call.

    Something comes from behind the outputs `behind`; by those that are `kept` a kernel has the
    gradients.
    """
    search = _Search(facts, frozenset(wrt), behind, kept)
    made, reasons = list[tuple[Product, Layout]](), dict[str, str]()
    for dot in [o for o in facts.function.block.walk() if o.name == "tt.dot"]:
        product = search.product(dot)
        layout = product if isinstance(product, str) else search.layout(product, numbers, grid)
        if isinstance(product, Product) and isinstance(layout, Layout):
            made.append((product, layout))
        else:
            reasons |= dict.fromkeys(search.loads(dot), str(layout))
    while True:
        targets = search.targets([p for p, _ in made])
        left = [(p, at) for p, at in made if search.alone(p, made, targets)]
        if len(left) == len(made):
            break
        made = left
    rest = [n for n in wrt if n in search.multiplied and n not in targets]
    return Tiled(tuple(made), targets, tuple((n, reasons.get(n, _MORE)) for n in rest))


_MORE_THAN_ADDED = "its loop does more with the sum than to add products"
_MORE = "it, or what it is multiplied by, is loaded for more than products"


class _Search:
    """A kernel, and who reads each value."""

    def __init__(
        self, facts: Facts, wrt: frozenset[str], behind: frozenset[str], kept: frozenset[str]
    ) -> None:
        self.facts, self.wrt, self.behind, self.kept = facts, wrt, behind, kept
        self.walk = list(facts.function.block.walk())
        self.users: dict[Value, list[Operation]] = {}
        for o in self.walk:
            for value in o.operands:
                self.users.setdefault(value, []).append(o)
        dots = [o for o in self.walk if o.name == "tt.dot"]
        self.multiplied = frozenset(n for o in dots for n in self.loads(o))

    # --- the form of a product --------------------------------------------------------------------

    def product(self, dot: Operation) -> Product | str:
        """The product that an operation is of; or why it is none."""
        made, loop = self.total(dot), None
        if isinstance(made, str):
            return made
        total, start = made
        if total not in dot.results:
            loop = self.facts.makers[total]
        sides = [self.loaded(v) for v in dot.operands[:2]]
        loads = [side for side in sides if side is not None]
        if len(loads) < 2:
            return "it is no product of blocks that are loaded, or other than by 0 beyond masks"
        store = self.stored(total)
        if isinstance(store, str):
            return store
        (left, one), (right, two) = loads
        factor = Factor(total, start, store, dot.operands[0].type.element)
        alone = loop is None or [v for v in loop.results if v.type.is_float] == [total]
        behind = self.direct(factor) if alone else ""
        a, b, c = (self.facts.bases[o.operands[0]].name for o in (left, right, store))
        return Product((a, b, c), dot, factor, left, right, (one, two), loop, behind)

    def total(self, dot: Operation) -> tuple[Value, Value] | str:
        """The sum over all steps, and what it begins with."""
        (made,), start = dot.results, dot.operands[2]
        if len(made.type.shape) != 2:
            return "its blocks have more axes than two"
        loop = self.facts.around.get(start)
        if loop is None:
            return made, start
        carried = loop.regions[0].arguments
        place = carried.index(start) - 1 if loop.name == "scf.for" else -1
        ends = loop.regions[-1].yields
        alone = len(self.users[start]) == len(self.users[made]) == 1
        if place < 0 or ends[place] is not made or not alone:
            return _MORE_THAN_ADDED
        return loop.results[place], start_of(loop, start)

    def loaded(self, value: Value) -> tuple[Operation, bool] | None:
        """The load of a block, and whether its axes are turned; beyond its mask it is 0."""
        holder = self.facts.makers.get(value)
        if holder is None or not holder.results[0].type.is_float:
            return None
        if holder.name in _MOVES:
            inner = self.loaded(holder.operands[0])
            return inner and (inner[0], inner[1] != (holder.name == "tt.trans"))
        if holder.name != "tt.load" or len(holder.operands[0].type.shape) != 2:
            return None
        other = [self.facts.makers.get(self.facts.bare(v)) for v in holder.operands[2:]]
        zero = all(
            o is not None
            and o.name == "arith.constant"
            and words.literal(o.attribute("value"), value.type) in ("0.0", "-0.0")
            for o in other
        )
        return (holder, False) if zero else None

    def stored(self, total: Value) -> Operation | str:
        """A store of what is made of a sum, element by element, with all that stores have of it."""
        stores: list[Operation] = []
        todo, seen = [total], {total}
        while todo:
            value = todo.pop()
            for o in self.users.get(value, []):
                if o.name == "tt.store" and o.operands[1] is value:
                    stores.append(o)
                    continue
                if o.name in ENDS:
                    return _MORE_THAN_ADDED
                plain = words.named(o) in words.ELEMENTWISE or o.name in _ALIKE
                if not plain or not o.results or o.results[0].type.shape != total.type.shape:
                    return f"of its sum {o.name} makes something, which is not of one element"
                todo += [v for v in o.results if v not in seen]
                seen.update(o.results)
        known = [o for o in stores if self.name(o) in self.behind]
        if not known:
            return "nothing comes from behind it"
        depth = len(self.around(self.facts.makers[total]))
        if any(len(self.around(o)) > depth for o in known):
            return "it is stored in a branch or a loop of its own"
        if len({o.operands[2:] for o in known}) > 1:
            return "it is stored under several masks"
        return known[0]

    def direct(self, factor: Factor) -> str:
        """The output that is a sum, of what does not vary too, and holds elements of its type."""
        value = factor.total
        while True:
            users = self.users.get(value, [])
            if len(users) != 1:
                return ""
            (o,) = users
            if o.name == "tt.store":
                base = self.facts.bases[o.operands[0]].name
                return base if o.operands[0].type.element == factor.element else ""
            first = o.name == "arith.subf" and o.operands[0] is value
            if o.name not in (*_CASTS, "arith.addf") and not first:
                return ""
            if o.operands.count(value) > 1:
                return ""
            (value,) = o.results

    # --- where its matrices lie -------------------------------------------------------------------

    def layout(
        self, product: Product, numbers: Mapping[str, int], grid: tuple[int, int, int]
    ) -> Layout | str:
        """Where the matrices lie; or why it is not known."""
        if math.prod(grid) > ROOM:
            return "it has more blocks than are looked at"
        indices, store = Indices(self.facts, numbers, grid), product.factor.store
        maker = self.facts.makers[product.factor.total]
        if not all(map(indices.around, self.around(maker))):
            return "it is in a branch, or in a loop whose steps are not known"
        if product.loop is not None and not indices.within(product.loop):
            return "the steps of its loop are not known, or not the same of each program"
        made = laid(
            indices,
            product.left.operands[:2],
            product.right.operands[:2],
            (store.operands[0], *store.operands[2:]),
            product.turned,
        )
        if isinstance(made, str):
            return made
        sides = zip(product.arrays, (made.left, made.right), strict=False)
        if any(name in self.wrt and not lies.apart for name, lies in sides):
            return "elements of its matrices share their places"
        return made

    def around(self, wanted: Operation) -> list[Operation]:
        """What an operation is in, outermost first."""
        made, block = list[Operation](), self.facts.function.block
        while not any(o is wanted for o in block.operations):
            inner = ((o, r) for o in block.operations for r in o.regions)
            o, block = next((o, r) for o, r in inner if any(q is wanted for q in r.walk()))
            made.append(o)
        return made

    # --- which of them make whole gradients -------------------------------------------------------

    def targets(self, products: Sequence[Product]) -> frozenset[str]:
        """The arguments whose elements are loaded for these products, and for nothing else."""
        dots = [p.dot for p in products]
        loads = [o for o in self.walk if o.name == "tt.load"]
        names = {name for p in products for name in p.arrays[:2]}
        more = {self.name(o) for o in loads if not self.multiplies(o.results[0], dots)}
        return frozenset(names & self.wrt - more - self.kept)

    def multiplies(self, value: Value, dots: Sequence[Operation]) -> bool:
        """Whether all that a value is read for are sides of these products."""
        return all(
            self.multiplies(o.results[0], dots)
            if o.name in _MOVES
            else value is not o.operands[-1] and any(o is dot for dot in dots)
            for o in self.users.get(value, [])
        )

    def alone(
        self,
        product: Product,
        products: Sequence[tuple[Product, Layout]],
        targets: frozenset[str],
    ) -> bool:
        """Whether nothing else is left to do where a product is made."""
        names = {*product.arrays[:2]} & self.wrt
        if not names or not names <= targets:
            return False
        totals = frozenset(p.factor.total for p, _ in products)
        vary = self.facts.varying(self.wrt - targets, totals)
        loop = product.loop
        if loop is None:
            return True
        sums = {v for o in loop.regions[0].operations if o.name == "tt.dot" for v in o.results}
        inside = {v for o in loop.regions[0].walk() for v in o.results}
        return not vary & (inside - sums) and vary & {*loop.results} <= totals

    def name(self, load: Operation) -> str:
        return self.facts.bases[load.operands[0]].name

    def loads(self, dot: Operation) -> frozenset[str]:
        """The arguments that the operands of a product are made of."""
        names, todo, seen = set[str](), list(dot.operands[:2]), set[Value]()
        while todo:
            value = todo.pop()
            holder = self.facts.makers.get(value)
            if value in seen or not value.type.is_float:
                continue
            seen.add(value)
            around = self.facts.around.get(value)
            if around is not None and around.name in LOOPS:
                todo.append(start_of(around, value))
            elif holder is not None and holder.name == "tt.load":
                names.add(self.name(holder))
            elif holder is not None:
                ends = [v for r in holder.regions for v in r.yields]
                todo += [*holder.operands, *ends]
        return frozenset(names)
