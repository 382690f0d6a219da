"""What each stage of the compiler made of a program, as text."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.backends.registry import by_nests, of_nests, texts
from pullback.cli.adjoints import adjoints_text
from pullback.cli.command import Misuse
from pullback.ir.graph import Value
from pullback.ir.kernel import Kernel
from pullback.ir.program import Compute
from pullback.ir.target import Target
from pullback.ir.text import placed, show
from pullback.lower.kernel import lower
from pullback.runtime.executable import Executable
from pullback.runtime.image import fact
from pullback.schedule.text import schedule_text
from pullback.tensor.run.images import packed

WHOLE = "program"
SHORT = {"asm": "assembly"}
FILES = frozenset(n for n, backend in by_nests().items() if backend.sources((), Target()))
SCHEDULE = "schedule"
CODE = [next((s for s, name in SHORT.items() if name == t), t) for t in texts() if t != SCHEDULE]
STAGES = (WHOLE, "definitions", "adjoint", "kernels", SCHEDULE, *CODE, "image")

Part = tuple[str, str]  # the name of a kernel, or of the stage, and its text


def parts(program: Executable, stage: str, wrt: Sequence[str] = ()) -> list[Part]:
    """A stage of a program, one part for each kernel structure where it is of kernels, in one file
    where a backend compiles files.

    Raises: Misuse where the stage does not exist for this program.
    """
    if stage == WHOLE:
        return [(stage, program.explain())]
    if stage == "definitions":
        return [(stage, show(program.program))]
    if stage == "adjoint":
        return [(stage, _adjoints(program, wrt))]
    target = program.target
    if target is None:
        raise Misuse(f"the reference backend interprets definitions: it has no {stage}")
    if stage == "image":
        text, objects = packed(program)
        return [(stage, text + "\n".join(fact("object", k, len(d)) for k, d in objects.items()))]
    if stage in FILES:
        return [(stage, _file(program, stage, target))]
    return [(k.name, _text(program, k, stage, target)) for k in program.distinct()]


def _file(program: Executable, backend: str, target: Target) -> str:
    """All kernels as one text that compiles by itself, each below its name."""
    kernels = program.distinct()
    nests = [lower(k, program.chosen(k, target), marks=True) for k in kernels]
    shared, *written = of_nests(backend).sources(nests, target)
    own = [f"/* {k.name} */\n{placed(t, k)}" for k, t in zip(kernels, written, strict=True)]
    return "\n".join([shared, *own])


def _text(program: Executable, kernel: Kernel, stage: str, target: Target) -> str:
    if stage == "kernels":
        return show(kernel)
    schedule = program.chosen(kernel, target)
    if stage == SCHEDULE and stage not in program.texts:
        return schedule_text(schedule)
    made = {**texts(), **program.texts}[SHORT.get(stage, stage)]
    return placed(made(kernel, schedule, target), kernel)


def _adjoints(program: Executable, wrt: Sequence[str]) -> str:
    """The adjoints of all floating results by the floating inputs named in `wrt` (none: by all).

    Raises: Misuse for a program of more than definitions, or a name that is no input.
    """
    body = program.program.body
    if len(body) != 1 or not isinstance(body[0], Compute):
        raise Misuse("a program with loops, branches or feeds is more than adjoints of definitions")
    graph = body[0].graph
    outputs = [value for _, value in graph.assigns if value.dtype.is_float]
    return adjoints_text(outputs, chosen(graph.inputs, wrt))


def chosen(inputs: Sequence[Value], wrt: Sequence[str]) -> list[Value]:
    """The inputs that are named, or all floating ones. Raises: Misuse."""
    floats = {repr(x): x for x in inputs if x.dtype.is_float}
    unknown = [name for name in wrt if name not in floats]
    if unknown:
        raise Misuse(f"no floating input {unknown[0]!r}: there are {', '.join(floats) or 'none'}")
    return [floats[name] for name in wrt] if wrt else list(floats.values())
