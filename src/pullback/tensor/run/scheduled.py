"""`pb.schedule`: the schedule of one kernel of a function, to be changed by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.errors import OptionError
from pullback.ir.kernel import Kernel
from pullback.runtime.executable import Executable
from pullback.tensor.run.program import Jit
from pullback.tensor.run.schedules import UserSchedule


def schedule(
    function: Callable[..., Any] | Executable, /, *arguments: Any, kernel: str | int | None = None
) -> UserSchedule:
    """How a kernel of `function` runs, as the compiler finds best; its moves change that.

    With `arguments` the function is compiled for them; without, it is a jitted one whose last
    program is looked at, or such a program. `kernel`: which of several, by name or number.
    ``pb.jit(function, schedules=[..])`` runs by what is chosen.

    Raises: OptionError where there is no such kernel, or none that is compiled.

    Example:
        >>> x = pb.ones((64, 64))
        >>> f = pb.jit(lambda x: x @ x, options=pb.Options(backend="llvm", cache=None))
        >>> s = pb.schedule(f, x)
        >>> s.tile(i=16, j=32).parallel(2)
        <schedule of kernel matmul: tasks = 2, tile.0 = 16, tile.1 = 32>
    """
    program = _program(function, arguments)
    if program.target is None or program.plan is None:
        what = f"backend {program.options.backend!r} runs no schedules"
        raise OptionError(what, code="E384")
    chosen = _kernel(program.distinct(), kernel)
    if chosen.tiling is not None:
        raise OptionError(f"kernel {chosen.name} was cut for a memory budget", code="E384")
    return UserSchedule(chosen, program.target, (), program.options)


def _program(function: Callable[..., Any] | Executable, arguments: tuple[Any, ...]) -> Executable:
    if isinstance(function, Executable):
        return function
    compiled = function if isinstance(function, Jit) else Jit(function)
    if arguments:
        compiled(*arguments)
    if compiled.last is None:
        what = f"{compiled.__name__} has no program yet"
        raise OptionError(what, help="call it, or give arguments: schedule(f, x, y)", code="E380")
    return compiled.program


def _kernel(kernels: list[Kernel], wanted: str | int | None) -> Kernel:
    """One of several. Raises: OptionError."""
    names = [k.name for k in kernels]
    if wanted is None and len(kernels) == 1:
        return kernels[0]
    if isinstance(wanted, str) and names.count(wanted) == 1:
        return kernels[names.index(wanted)]
    if isinstance(wanted, int) and not isinstance(wanted, bool) and 0 <= wanted < len(kernels):
        return kernels[wanted]
    known = ", ".join(f"{n} {name}" for n, name in enumerate(names)) or "none"
    what = "which kernel?" if wanted is None or wanted in names else f"no kernel {wanted!r}"
    raise OptionError(what, help=f"kernel= a name or number of: {known}", code="E380")
