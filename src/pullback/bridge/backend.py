"""`torch.compile(model, backend="pullback")`: forward and backward graphs as programs.

What has no rule runs as PyTorch has it, between the parts that have, and is reported.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import torch
import torch._functorch.config as functorch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler
from torch._guards import TracingContext
from torch._inductor.output_code import OutputCode
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.fx import Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.multiprocessing.reductions import StorageWeakRef

from pullback.bridge import breaks
from pullback.bridge.aten import RULES
from pullback.bridge.aten.control import WITHIN
from pullback.bridge.bounds import TOLD
from pullback.bridge.draws import SEED, seeded
from pullback.bridge.effects import with_own_tokens
from pullback.bridge.graphs import Native, graph_of, lacking
from pullback.bridge.kept import Constants, constants, digest, read, text_of
from pullback.bridge.layout import overlaps
from pullback.bridge.margins import with_margins
from pullback.bridge.masked import with_masks
from pullback.bridge.partition import partitioned
from pullback.bridge.programs import PLACES, caller
from pullback.bridge.record import RECORD, Fallback, Graph, HostCall
from pullback.bridge.recurrent import allow_recurrent, with_whole_recurrences
from pullback.bridge.symbols import symbols_of
from pullback.bridge.timed import WARM, Timed
from pullback.bridge.trial import tried
from pullback.bridge.writes import COPY, Apart, settled, sharing, written
from pullback.config import Options
from pullback.errors import OptionError, PullbackError, StateError, UnsupportedError
from pullback.runtime.record import compiler as sources
from pullback.tensor.record.away import CUDA

log = logging.getLogger("pullback")

TUNE = 60.0  # seconds for each program, where schedules are measured and nobody says how long
MODES = {None: 0.0, "default": 0.0, "reduce-overhead": 0.0}  # a graph is one native call in each
MODES |= {"max-autotune": TUNE, "max-autotune-no-cudagraphs": TUNE}
ALLOW = 'options={"fallback": "allow"} lets PyTorch run them'
RANDOM = torch.Tag.nondeterministic_seeded
Reasons = Mapping[Node, str]
"""Why nodes are in no program."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``torch.compile(.., options={..})`` may say.

    `fallback`: "allow", and what has no rule runs as PyTorch has it, or "error". `threads`: of a
    program; None: as many as PyTorch has. `memory`: bytes that the arena of a program may have; a
    float: the part of what the least cut keeps for the backward that may be kept, the rest is
    computed again. `fallback_random`: PyTorch draws random numbers, with the bits of eager, not
    programs. `dynamic`: True, and a graph of symbolic sizes is one program for all of them, or an
    error; False: it has a program for each size; None: one where that can be. `tune`: seconds in
    which other schedules of each program are measured; what is found serves later processes. None:
    as the mode has it.
    """

    fallback: str = "allow"
    threads: int | None = None
    memory: Any = None
    fallback_random: bool = False
    dynamic: bool | None = None
    tune: float | None = None

    @classmethod
    def of(cls, mode: str | None, options: Mapping[str, Any] | None) -> Settings:
        """Raises: OptionError for what is no option."""
        names = [f.name for f in fields(cls)]
        if mode not in MODES:
            raise _no_option(f"mode={mode!r}", f"one of {', '.join(filter(None, MODES))}")
        if not isinstance(options, Mapping | None):
            raise _no_option(f"options={options!r}", 'options={"fallback": "error"}, say')
        for name in options or {}:
            if name not in names:
                raise _no_option(f"options={{{name!r}: ..}}", f"one of {', '.join(names)}")
        settings = cls(**{"tune": MODES[mode], **(options or {})})
        if settings.fallback not in ("allow", "error"):
            raise _no_option(f"fallback={settings.fallback!r}", '"allow" or "error"')
        if not isinstance(settings.fallback_random, bool):
            raise _no_option(f"fallback_random={settings.fallback_random!r}", "True or False")
        if not isinstance(settings.dynamic, bool | None):
            raise _no_option(f"dynamic={settings.dynamic!r}", "True, False or None")
        try:
            settings.program()
        except OptionError as error:  # with the line that compiles, not PyTorch's
            raise OptionError(
                error.what, origin=caller(), help=error.help, code=error.code
            ) from None
        return settings

    def program(self) -> Options:
        """As programs take it, and what the environment says. Raises: OptionError."""
        threads = torch.get_num_threads() if self.threads is None else self.threads
        memory = None if self.share < 1 else self.memory
        own = Options.from_environment()
        return replace(own, threads=threads, memory=memory, tune=self.tune or 0.0)

    @property
    def share(self) -> float:
        """Of what the least cut keeps for the backward, what may be kept."""
        fraction = isinstance(self.memory, float) and 0 < self.memory < 1
        return self.memory if fraction else 1.0


def _no_option(what: str, help: str) -> OptionError:
    return OptionError(
        f"torch.compile(.., backend='pullback') has no {what}",
        origin=caller(),
        help=help,
        code="E385",
    )


def backend(gm: Any, inputs: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """What `torch.compile` asks: a function that runs `gm`.

    Raises: OptionError for an option that does not exist; UnsupportedError for tensors of another
    device, and for what has no rule, or no place in a graph, where no fallback is allowed;
    ShapeError for a size beyond what `mark_dynamic` told. PyTorch wraps them in its own
    `BackendCompilerFailed`.

    Example:
        >>> import torch
        >>> double = torch.compile(lambda x: x + x, backend=pb.torch.backend)
        >>> double(torch.ones(2))
        tensor([2., 2.])
    """
    settings = Settings.of(mode, options)
    _placed(inputs)

    TOLD.check()
    _unbroken(settings)
    with_whole_recurrences(gm)
    with_margins(gm)
    with_masks(gm)
    _with_apart_results(gm)
    kept = _kept(gm, settings, inputs)

    def compiler(kind: str) -> Callable[..., Any]:
        def run(graph: Any, fakes: Sequence[Any]) -> Any:
            del fakes  # the types and sizes stand in the graph
            _retained()
            return compiled(graph, settings, kind, kept)

        return SerializableAOTDispatchCompiler(Compiled, run) if kept else run

    def parted(joint: Any, inputs: Sequence[Any], **how: Any) -> Any:
        if not settings.fallback_random:
            seeded(joint)
        budget = functorch.activation_memory_budget * settings.share
        with functorch.patch(activation_memory_budget=budget):
            return partitioned(joint, inputs, **how)

    with functorch.patch(
        bundled_autograd_cache=kept or functorch.bundled_autograd_cache,
        force_non_lazy_backward_lowering=kept or functorch.force_non_lazy_backward_lowering,
    ):
        return aot_autograd(
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            decompositions=_decompositions(settings),
            partition_fn=parted,
            keep_inference_input_mutations=True,
        )(gm, inputs)


def _placed(inputs: Sequence[Any]) -> None:
    """Raises: UnsupportedError for tensors of what has no programs, and of two devices."""
    devices = dict.fromkeys(t.device for t in inputs if isinstance(t, torch.Tensor))
    others = [d for d in devices if d.type not in PLACES]
    several = [d for d in devices if d.type == CUDA][1:]
    if others or several:
        what = f"a tensor on {(others or several)[0]}: programs have memory of the processor, "
        what += "or of one CUDA device"
        raise UnsupportedError(what, origin=caller(), help='.to("cpu")', code="E387")


def _unbroken(settings: Settings) -> None:
    """Raises: UnsupportedError where PyTorch runs an operator between graphs, and no fallback is
    allowed.
    """
    if settings.fallback == "error" and (left := breaks.of_operators()):
        listed = "".join(f"\n  {one}" for one in left)
        what = f"an operator whose result is of a shape that is data is in no graph:{listed}"
        help = "torch.where(mask, x, 0) in place of x[mask], or " + ALLOW
        raise UnsupportedError(what, origin=caller(), help=help, code="E386")


def _with_apart_results(gm: Any) -> None:
    """Results whose elements share places are copies: PyTorch gives an adjoint the strides of its
    result, and would keep one of each place. ``return (x * 2).unfold(0, 3, 1)  ->  .clone()``

    A view of an argument is none of its results.
    """
    graph = gm.graph
    values = {n: n.meta.get("example_value") for n in graph.nodes}
    tensors = {n: v for n, v in values.items() if isinstance(v, torch.Tensor)}
    given = {
        StorageWeakRef(v.untyped_storage()) for n, v in tensors.items() if n.op == "placeholder"
    }
    (output,) = graph.find_nodes(op="output")
    with graph.inserting_before(output):
        for node in output.all_input_nodes:
            value = tensors.get(node)
            if value is None or StorageWeakRef(value.untyped_storage()) in given:
                continue
            if overlaps(value.shape, value.stride()):
                copy = graph.call_method(
                    "clone", (node,), {"memory_format": torch.contiguous_format}
                )
                copy.meta["example_value"] = value.clone(memory_format=torch.contiguous_format)
                output.replace_input_with(node, copy)
    gm.recompile()


def _retained() -> None:
    """Programs do not write over what is kept for a backward: it may be run again."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


def _kept(gm: Any, settings: Settings, inputs: Sequence[Any]) -> bool:
    """Whether what becomes of a graph is left to the next process, in PyTorch's cache.

    Its key is Dynamo's graph with what stands in the module: these settings, this compiler, which
    arguments share memory and within which bounds sizes are, as PyTorch's own key does not say.
    """
    if not functorch.enable_autograd_cache or settings.program().cache is None:
        return False
    if any(isinstance(t, torch.Tensor) and not t.is_cpu for t in inputs):
        return False  # code of a device has records of its own
    if any(n.op == "get_attr" for n in gm.graph.nodes):
        return False  # the key has no contents of tensors
    shared = sharing(inputs)
    told = [(name, *bounds) for name, _, *bounds in symbols_of(inputs)]
    gm._pullback = f"{sources()} {settings!r} {torch.get_num_threads()} {shared} {told}"
    return True


allow_recurrent()


def _reset() -> None:
    """Forget what PyTorch forgets."""
    RECORD.reset()
    TOLD.reset()


setattr(backend, "reset", _reset)  # noqa: B010  # functions have none that mypy knows


def _decompositions(settings: Settings) -> dict[Any, Any]:
    """PyTorch's own ways to write operators by others, but for those that have rules.

    Where PyTorch is to draw, what draws stays as it is, to the bits.

    Attention stays whole, forward and backward: written out, the one does not give what the other
    takes.
    """
    return {
        operator: way
        for operator, way in _core().items()
        if operator not in RULES and not (settings.fallback_random and RANDOM in operator.tags)
    }


@cache
def _core() -> dict[Any, Any]:
    """PyTorch's table but attention, 70 ms to write out.

    An operator of others that is made later is not in it: PyTorch writes such by itself.
    """
    table = core_aten_decompositions()
    return {o: way for o, way in table.items() if "scaled_dot_product" not in str(o)}


@dataclass
class Compiled(OutputCode):  # type: ignore[misc]  # PyTorch has no types here
    """A graph that runs, and all that another process needs to make it again.

    PyTorch keeps it in its cache without what runs: a text, and whether that is whole.
    """

    text: str
    held: Constants
    kind: str
    settings: Settings
    left: tuple[Fallback, ...]
    calls: tuple[HostCall, ...]
    names: Mapping[str, str]
    seal: str
    run: Any = None
    _boxed_call: bool = True

    def __call__(self, inputs: Any) -> Any:
        return self.run(inputs)

    def prepare_for_serialization(self) -> None:
        """Raises: UnsupportedError for a graph that is no text."""
        if not self.seal:
            raise UnsupportedError("a graph that is not kept", code="E390")
        self.run = None

    def post_compile(self, *args: Any) -> None:
        """As another process left it. Raises: StateError for a text that was changed."""
        if self.run is not None:
            return
        if self.seal != digest(self.text, self.held):
            raise StateError("a kept graph was changed", code="E391")
        with unset_fake_temporarily():
            gm = read(self.text, self.held)
        reasons = {n: self.names[n.name] for n in gm.graph.nodes if n.name in self.names}
        steps = _steps(gm)
        for one in self.left:
            log.info("torch.compile: PyTorch runs %s", one)
        self.run, shares = _runner(gm, self.settings, reasons)
        graph = Graph(self.kind, len(steps), len(steps) - len(reasons), self.run.reason)
        RECORD.note(graph, dict(zip(self.names, self.left, strict=True)), self.calls, shares)

    def set_triton_bundle(self, triton_bundle: Any) -> None:
        """There is none."""


def compiled(gm: Any, settings: Settings, kind: str, kept: bool = False) -> Any:
    """A graph as a boxed function; `kept`: one that PyTorch can keep.

    Raises: UnsupportedError where it needs a fallback and none is allowed.
    """
    with_own_tokens(gm)
    settled(gm)
    if not settings.fallback_random:
        seeded(gm)
    steps = _steps(gm)
    lack = {n: why for n in steps if (why := lacking(n)) is not None}
    failed, hosts = tried(gm, lack)
    reasons = _with_graphs_within(steps, lack | failed)
    left = [Fallback(str(n.target), why, _line(n)) for n, why in reasons.items()]
    if left and settings.fallback == "error":
        listed = "".join(f"\n  {one}" for one in left)
        what = f"{len(left)} of {len(steps)} operators have no place in a program:{listed}"
        help = ALLOW
        raise UnsupportedError(what, origin=caller(), help=help, code="E386")
    calls = _host_calls(hosts)
    for one in left:
        log.info("torch.compile: PyTorch runs %s", one)
    names = {n.name: why for n, why in reasons.items()}
    text, held, seal = _sealed(gm) if kept else ("", {}, "")
    run, shares = _runner(gm, settings, reasons)
    if settings.dynamic and run.reason:
        what = f"a graph with a program for each size: {run.reason}"
        help = 'options={"dynamic": None} lets it have one for each'
        raise UnsupportedError(what, origin=caller(), help=help, code="E402")
    graph = Graph(kind, len(steps), len(steps) - len(left), run.reason)
    RECORD.note(graph, dict(zip(names, left, strict=True)), calls, shares)
    noted = (tuple(left), tuple(calls))
    return Compiled(text, held, kind, settings, *noted, names, seal, run) if kept else run


def _with_graphs_within(steps: Sequence[Node], reasons: dict[Node, str]) -> dict[Node, str]:
    """With branches and loops, beside what else PyTorch runs: parts of a graph have no graphs."""
    within = [n for n in steps if n.target in WITHIN and n not in reasons]
    why = "a branch or a loop, in a graph of which PyTorch runs a part"
    return reasons | dict.fromkeys(within if reasons else (), why)


def _host_calls(hosts: Mapping[Node, str]) -> list[HostCall]:
    return [HostCall(str(n.target), library, _line(n)) for n, library in hosts.items()]


def _sealed(gm: Any) -> tuple[str, Constants, str]:
    """A graph as text, its tensors, and what tells that both are whole; nothing for one that
    text does not hold.
    """
    try:
        with unset_fake_temporarily():
            text, held = text_of(gm), constants(gm)
    except PullbackError as error:
        log.info("torch.compile: not kept for other processes: %s", error)
        return "", {}, ""
    return text, held, digest(text, held)


def _runner(gm: Any, settings: Settings, reasons: Reasons) -> tuple[Any, dict[str, float]]:
    """A graph as a function, and where it puts the shares of the time of what PyTorch runs."""
    shares: dict[str, float] = {}
    if reasons:
        return _parted(gm, settings, reasons, shares), shares
    return Native(gm, settings.program(), settings.dynamic is not False), shares


def _steps(gm: Any) -> list[Node]:
    """The operators of a graph."""
    ends = ("placeholder", "output", "get_attr")
    return [n for n in gm.graph.nodes if n.op not in ends and n.target != SEED]


class _Support(OperatorSupportBase):  # type: ignore[misc]  # PyTorch has no types here
    def __init__(self, reasons: Reasons) -> None:
        super().__init__()
        self._names = {n.name for n in reasons}

    def is_node_supported(self, submodules: Mapping[str, Any], node: Any) -> bool:
        own = node.name in self._names or node.target == SEED or graph_of(node) is not None
        return not own and lacking(node) is None


def _parted(gm: Any, settings: Settings, reasons: Reasons, shares: dict[str, float]) -> Any:
    """Parts that have rules as programs, the rest as PyTorch has it.

    Writes into arguments come last, in their order: parts do not say what they must come after.
    """
    placed = [n for n in gm.graph.nodes if n.op == "placeholder"]
    places = _without_copies(gm)
    apart = Apart(placed, [placed[n] for n in places])
    parts = CapabilityBasedPartitioner(gm, _Support(reasons), allows_single_node_partition=True)
    whole = parts.fuse_partitions(parts.propose_partitions(), prefix="pullback_")
    for name, child in list(whole.named_children()):
        if name.startswith("pullback_"):
            setattr(
                whole, name, _Part(Native(child, settings.program(), settings.dynamic is not False))
            )
    runs = itertools.count()

    def timed(*given: Any) -> Any:
        """The second run, for the report."""
        measured = Timed(whole)
        results = measured.run(*given)
        shares.update(measured.shares())
        for name in [n.name for n in reasons if n.name in shares]:
            log.info("torch.compile: %s took %.0f %% of its graph", name, 100 * shares[name])
        return results

    def run(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        if places:
            apart.check(given)
        results = list((timed if next(runs) == WARM else whole)(*given))
        if places:
            written(given, places, results[len(results) - len(places) :])
        return results[: len(results) - len(places)]

    run_boxed: Any = run
    run_boxed._boxed_call = True
    natives = [c.native for c in whole.children() if isinstance(c, _Part)]
    run_boxed.reason = next((n.reason for n in natives if n.reason), "")
    return run_boxed


def _without_copies(gm: Any) -> list[int]:
    """The graph with what it writes as results at the end: into which argument each goes."""
    nodes = list(gm.graph.nodes)
    given = [n for n in nodes if n.op == "placeholder"]
    copies = [n for n in nodes if n.target == COPY and n.args[0] in given]
    last = nodes[-1]
    last.args = ((*last.args[0], *(n.args[1] for n in copies)),)
    places = [given.index(n.args[0]) for n in copies]
    for node in copies:
        node.replace_all_uses_with(node.args[1])
        gm.graph.erase_node(node)
    gm.recompile()
    return places


class _Part(torch.nn.Module):  # type: ignore[misc]  # PyTorch has no types here
    """A part of a graph, as a module of the rest."""

    def __init__(self, native: Native) -> None:
        super().__init__()
        self.native = native

    def forward(self, *args: Any) -> Any:
        return self.native(list(args))


def _line(node: Any) -> str:
    """The user's line, as PyTorch noted it."""
    trace = [s.strip() for s in (node.meta.get("stack_trace") or "").splitlines() if s.strip()]
    where = [s for s in trace if s.startswith("File ")]
    return where[-1] if where else ""
