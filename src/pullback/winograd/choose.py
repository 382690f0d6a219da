"""The rule that rewrites convolutions, by the price of each way or as it is asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from pullback.backends.base import Compiler
from pullback.backends.registry import compiler
from pullback.config import BACKEND, Options, frozen
from pullback.errors import OptionError, Origin, RuleError
from pullback.ir.graph import Definition, Graph, Value
from pullback.ir.program import Item, Program
from pullback.ir.signature import digest, graph_signature
from pullback.pipeline import fuse_graph
from pullback.rules.kinds import RewriteRule
from pullback.runtime.report import Reporter
from pullback.runtime.tuned import chooser
from pullback.simplify.graph import alone
from pullback.winograd.algorithms import ALGORITHMS
from pullback.winograd.recognise import recognised
from pullback.winograd.rewrite import Made, rewritten

DIRECT, CHEAPEST = "direct", "cheapest"
WAYS = (CHEAPEST, DIRECT, *ALGORITHMS)
# What a way that is less exact may cost of direct, at most: prices leave out what large temporaries
# cost the launches beside them. Of 39 convolutions (`benchmarks/winograd.py`) 17 were priced below
# this and took 0.6 to 1.0 of direct's time; eight stood between it and 0.91 and took 0.9 to 1.8.
GAIN = 0.73
# What is said of a definition that is not near to a convolution of 3 x 3 taps is not kept.
FAR = ("no sum", "sums of", "no product", "no two axes")
# Prices that are known, by what is computed and where: a network repeats its convolutions.
PRICES: dict[tuple[str, str | None], float] = {}


@frozen
class Choice:
    """What became of one convolution: by which algorithm, and the prices, microseconds by name.

    `why`: what kept it as it is, of one that is not rewritten whatever is asked.

    Example:
        >>> rule = pb.winograd.rule("winograd2")
        >>> conv = pb.jit(pb.nn.functional.conv2d, rules=[rule])
        >>> _ = conv(pb.ones((1, 2, 8, 8)), pb.ones((3, 2, 3, 3)))
        >>> rule.choices[0].name, rule.choices[0].algorithm
        ('conv', 'winograd2')
    """

    name: str
    algorithm: str
    prices: tuple[tuple[str, float], ...]
    why: str
    origin: Origin | None

    def __str__(self) -> str:
        said = ", ".join(f"{name} {us:.1f}" for name, us in self.prices)
        place = "" if self.origin is None else f" ({self.origin.place})"
        return f"{self.name}{place}: {self.algorithm}{self.why}" + (f"; us: {said}" if said else "")


class Winograd(RewriteRule):
    """Convolutions of 3 x 3 taps and stride 1 by minimal filtering; `choices` says which and why.

    Made by `rule`. `choices` are those of the program that was compiled last.

    Example:
        >>> pb.winograd.rule("winograd4")
        Winograd(winograd.rule('winograd4'))
    """

    def __init__(self, algorithm: str, target: str | None) -> None:
        super().__init__(self._way)
        self.algorithm, self.target = algorithm, target
        self.name = f"winograd.rule({algorithm!r})"
        self.digest = _digest(algorithm, target or "")
        self.choices: list[Choice] = []
        self.made: Made = {}

    def program(self, program: Program) -> Program:
        """Every convolution, sources first. Raises: RuleError where none is that was asked for."""
        self.choices = []
        made = super().program(program)
        asked = self.algorithm in ALGORITHMS
        if asked and all(choice.algorithm == DIRECT for choice in self.choices):
            near = "; ".join(f"{c.name}{c.why}" for c in self.choices)
            raise RuleError(
                f"{self.algorithm} is asked for, and no convolution is of 3 x 3 taps, stride 1",
                help=near or "sums of float32 or float64 over two axes of three taps",
                code="E595",
            )
        return made

    def _rewritten(self, item: Item) -> Sequence[Item] | None:
        """Transforms are shared within a computation."""
        self.made = {}
        return super()._rewritten(item)

    def _way(self, definition: Definition) -> Definition | None:
        conv = recognised(definition)
        if isinstance(conv, str):
            if not conv.startswith(FAR):
                why = f", {conv}"
                self.choices.append(Choice(definition.name, DIRECT, (), why, definition.origin))
            return None
        made = {name: dict(self.made) for name in ALGORITHMS}
        ways = {n: rewritten(conv, a, made[n]) for n, a in ALGORITHMS.items()}
        ways[DIRECT] = definition
        prices: dict[str, float] = {}
        chosen = self.algorithm
        if chosen == CHEAPEST:
            over = (*definition.sources, *self.made.values())  # transforms that there are are free
            prices = {name: _price(way, over, self.target) for name, way in ways.items()}
            chosen = _cheapest(prices)
        self.made = made.get(chosen, self.made)
        told = tuple((name, prices[name] / 1e3) for name in (DIRECT, *ALGORITHMS) if prices)
        self.choices.append(Choice(definition.name, chosen, told, "", definition.origin))
        return _named(ways[chosen], f"{definition.name}_{chosen}")


def rule(algorithm: str = CHEAPEST, target: str | None = None) -> Winograd:
    """The rule that computes convolutions of 3 x 3 taps and stride 1 by minimal filtering.

    `algorithm` is "cheapest", for each convolution the way of the lowest price on the processor
    `target` (None: this one), direct unless another is well below; or one of "winograd2",
    "winograd4" and "direct", for all of them.
    Raises: OptionError, E594, for another name; where a program is compiled RuleError, E595, if a
    way is asked for by name and no convolution of the program can go it.

    Example:
        >>> x, w = pb.ones((1, 2, 8, 8)), pb.ones((3, 2, 3, 3))
        >>> conv = pb.jit(pb.nn.functional.conv2d, rules=[pb.winograd.rule("winograd2")])
        >>> float(conv(x, w)[0, 0, 0, 0].item())
        18.0
    """
    if algorithm not in WAYS:
        raise OptionError(
            f"no algorithm {algorithm!r} of convolutions", help=", ".join(WAYS), code="E594"
        )
    return Winograd(algorithm, target)


def _cheapest(prices: dict[str, float]) -> str:
    """The way of the lowest price, if it is well below direct's."""
    lowest = min(prices, key=lambda name: prices[name])
    return lowest if prices[lowest] < GAIN * prices[DIRECT] else DIRECT


def _named(way: Definition, name: str) -> Definition:
    d = way
    return Definition(name, d.shape, d.body, d.form, d.stop, d.keep, d.origin)


def _price(way: Definition, sources: Iterable[Value], target: str | None) -> float:
    """Nanoseconds of one thread, of all launches that compute a definition from `sources`."""
    graph = alone(way, sources)
    key = graph_signature(graph, names=False), target
    if key not in PRICES:
        PRICES[key] = _priced(graph, target)
    return PRICES[key]


def _priced(graph: Graph, target: str | None) -> float:
    options = Options(target=target, cache=None)
    backend: Compiler = compiler(BACKEND)
    machine = backend.machine(options)
    chosen = chooser(None, 1, (), backend.name, backend.start)
    total = 0.0
    for kernel in fuse_graph(graph, machine, Reporter(options), backend):
        for piece in kernel.pieces:
            price = backend.price(piece, chosen(piece, machine), machine)
            assert price is not None, "it writes loops"
            total += price.ns
    return total


def _digest(*settings: str) -> str:
    """A rule by the texts of this room and what it is made with."""
    texts = [p.read_text() for p in sorted(Path(__file__).parent.glob("*.py"))]
    return digest(*texts, *settings)[:32]
