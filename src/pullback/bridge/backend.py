"""`torch.compile(model, backend="pullback")`: forward and backward graphs as programs.

What has no rule runs as PyTorch has it, between the parts that have, and is reported.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from pullback.bridge.aten import RULES
from pullback.bridge.graphs import Native, lacking
from pullback.config import Options
from pullback.errors import OptionError, UnsupportedError

log = logging.getLogger("pullback")


@dataclass(frozen=True, slots=True)
class Settings:
    """What ``torch.compile(.., options={..})`` may say.

    `fallback`: "allow", and what has no rule runs as PyTorch has it, or "error". `threads`: of a
    program; None: as many as PyTorch has. `memory`: bytes that the arena of a program may have.
    """

    fallback: str = "allow"
    threads: int | None = None
    memory: int | str | None = None

    @classmethod
    def of(cls, mode: str | None, options: Mapping[str, Any] | None) -> Settings:
        """Raises: OptionError for what is no option."""
        names = [f.name for f in fields(cls)]
        if mode not in (None, "default"):
            raise OptionError(f"mode={mode!r}", help="there is one: the default", code="E520")
        for name in options or {}:
            if name not in names:
                help = f"one of {', '.join(names)}"
                raise OptionError(f"no option {name!r}", help=help, code="E520")
        settings = cls(**(options or {}))
        if settings.fallback not in ("allow", "error"):
            what = f"fallback={settings.fallback!r}"
            raise OptionError(what, help='"allow" or "error"', code="E520")
        return settings

    def program(self) -> Options:
        """As programs take it."""
        threads = self.threads or torch.get_num_threads()
        return Options(threads=threads, memory=self.memory)


@dataclass(frozen=True, slots=True)
class Fallback:
    """An operator that ran as PyTorch has it: why, and the line of the user's."""

    operator: str
    reason: str
    line: str

    def __str__(self) -> str:
        return f"{self.operator}: {self.reason}" + (f" ({self.line})" if self.line else "")


_fallbacks: list[Fallback] = []
_graphs: list[int] = []


def fallbacks() -> tuple[Fallback, ...]:
    """Operators of compiled graphs that had no rule, in the order of their compilation."""
    return tuple(_fallbacks)


def graphs() -> int:
    """How many graphs became programs."""
    return len(_graphs)


def reset() -> None:
    """What `torch._dynamo.reset` forgets."""
    _fallbacks.clear()
    _graphs.clear()


def backend(gm: Any, inputs: Sequence[Any], *, mode: str | None = None, options: Any = None) -> Any:
    """What `torch.compile` asks: a function that runs `gm`.

    Raises: OptionError; UnsupportedError for what has no rule where no fallback is allowed.
    """
    settings = Settings.of(mode, options)

    def compiler(graph: Any, fakes: Sequence[Any]) -> Any:
        del fakes  # the types and sizes stand in the graph
        return compiled(graph, settings)

    return aot_autograd(
        fw_compiler=compiler,
        decompositions=_decompositions(),
        partition_fn=min_cut_rematerialization_partition,
        keep_inference_input_mutations=True,
    )(gm, inputs)


setattr(backend, "reset", reset)  # noqa: B010  # functions have none that mypy knows


def _decompositions() -> dict[Any, Any]:
    """PyTorch's own ways to write operators by others, but for those that have rules.

    Attention stays whole, forward and backward: written out, the one does not give what the other
    takes.
    """
    table = core_aten_decompositions()
    return {
        operator: way
        for operator, way in table.items()
        if operator not in RULES and "scaled_dot_product" not in str(operator)
    }


class _Support(OperatorSupportBase):
    def is_node_supported(self, submodules: Mapping[str, Any], node: Any) -> bool:
        return lacking(node) is None


def compiled(gm: Any, settings: Settings) -> Any:
    """A graph as a boxed function.

    Raises: UnsupportedError where it needs a fallback and none is allowed.
    """
    steps = [n for n in gm.graph.nodes if n.op not in ("placeholder", "output", "get_attr")]
    left = [Fallback(str(n.target), why, _line(n)) for n in steps if (why := lacking(n))]
    if left and settings.fallback == "error":
        listed = "\n".join(f"  {one}" for one in left)
        what = f"{len(left)} of {len(steps)} operators have no rule:\n{listed}"
        raise UnsupportedError(what, help='options={"fallback": "allow"}', code="E313")
    if not left:
        _graphs.append(len(steps))
        return Native(gm, settings.program())
    for one in left:
        log.info("torch.compile: PyTorch runs %s", one)
    _fallbacks.extend(left)
    return _parted(gm, settings)


def _parted(gm: Any, settings: Settings) -> Any:
    """Parts that have rules as programs, the rest as PyTorch has it."""
    parts = CapabilityBasedPartitioner(gm, _Support(), allows_single_node_partition=True)
    whole = parts.fuse_partitions(parts.propose_partitions(), prefix="pullback_")
    for name, child in list(whole.named_children()):
        if name.startswith("pullback_"):
            _graphs.append(len(child.graph.nodes))
            setattr(whole, name, _Part(Native(child, settings.program())))

    def run(args: list[Any]) -> Any:
        given = list(args)
        args.clear()
        return whole(*given)

    setattr(run, "_boxed_call", True)  # noqa: B010
    return run


class _Part(torch.nn.Module):
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
