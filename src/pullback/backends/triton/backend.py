"""The backend that writes Triton: a function or more for each kernel, interpreted without a GPU."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from pullback.backends.base import Aimed, Explained, Text, Values
from pullback.backends.host.exchange import box
from pullback.backends.triton import device, machine, offline, plan, text
from pullback.backends.triton.function import Launch
from pullback.backends.triton.fusing import fusing
from pullback.backends.triton.language import PRELUDE, SIGNATURES
from pullback.backends.triton.offline import Binary, Order
from pullback.backends.triton.schedule import Precision, Reads
from pullback.config import Options, module_of
from pullback.errors import IndexRangeError
from pullback.ir.dtype import dtype, int64, is_extended
from pullback.ir.expr import Dim, Shape
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.ir.signature import digest
from pullback.ir.target import Target
from pullback.machine.machine import LINE
from pullback.schedule.schedule import Schedule

Array = np.ndarray[Any, Any]
CAPABILITY = 90  # Hopper: what texts are compiled for


class Triton(Aimed, Explained):
    """Kernels as Triton's source, run by its interpreter on arrays of this process."""

    name = "triton"

    def host(self) -> str:
        """What runs it. Raises: DeviceError."""
        return f"Triton {device.triton().__version__}, its interpreter (no GPU is asked)"

    def machine(self, options: Options) -> Target:
        """What kernels are fused and launches are scheduled for: a GPU, `options.machine` or the
        first that runs `options.target`.

        Raises: OptionError.
        """
        return target_of(machine.chosen(options), options)

    def run_kernel(self, kernel: Kernel, values: Mapping[Variable, Any]) -> Values:
        return interpreted(kernel, *_loaded(kernel), values)

    def run_for(self, target: Target, kernel: Kernel, values: Mapping[Variable, Any]) -> Values:
        return interpreted(kernel, *_loaded(kernel, chooser(target)), values)

    def alone(self, kernel: Kernel, target: Target) -> tuple[str, list[Launch]]:
        """What stands before the functions of a file that stands alone, and a kernel's launches, by
        pointers: who calls them says nothing of where arrays begin.
        """
        choose = chooser(target)
        by = replace(choose, by_hand=lambda g: replace(choose.best(g), reads=Reads.POINTERS))
        return PRELUDE, plan.launches(kernel, by)

    def texts(self) -> Mapping[str, Text]:
        return texts(self.name)


def texts(name: str) -> Mapping[str, Text]:
    """The source of a kernel's launches, what Triton compiles it to, their schedules and prices."""
    stages = {stage: partial(_made, stage) for stage in ("ttir", "ptx")}
    return {name: _text, **stages, "schedule": _schedule, "price": _price}


def target_of(gpu: machine.Gpu, options: Options, ordinal: int = 0) -> Target:
    """What kernels are fused and scheduled for: a GPU, of which there may be several, with float32
    as tf32 where the options' target ends so.
    """
    fast = machine.TF32 if (options.target or "").endswith(machine.TF32) else ""
    number = f":{ordinal}" if ordinal else ""
    usual = Target()
    own = replace(usual, name=f"{gpu.target}{number}{fast}", cpu=options.machine or gpu.name)
    own = replace(own, deterministic=options.deterministic)
    return fusing(replace(own, machine=usual.profile), chooser(own))


def _text(kernel: Kernel, schedule: Schedule, target: Target) -> str:
    made = plan.launches(kernel, chooser(target))
    return "\n\n".join(launch.source for launch in made)


def _made(stage: str, kernel: Kernel, schedule: Schedule, target: Target) -> str:
    gpu = machine.named(target.cpu)
    made = orders(plan.launches(kernel, chooser(target)))
    return "\n\n".join(b.texts[stage] for b in offline.compiled(made, gpu.capability))


def _schedule(kernel: Kernel, schedule: Schedule, target: Target) -> str:
    return text.schedules_text(kernel, chooser(target))


def _price(kernel: Kernel, schedule: Schedule, target: Target) -> str:
    return text.prices_text(kernel, chooser(target), machine.named(target.cpu))


def chooser(target: Target) -> plan.Chooser:
    """Who chooses schedules for a target."""
    fast = target.name.endswith(machine.TF32)
    precision = Precision.TF32 if fast else Precision.EXACT
    return plan.chooser(machine.named(target.cpu), precision, target.deterministic, target.blocks)


def interpreted(
    kernel: Kernel, made: Sequence[Launch], module: Any, values: Mapping[Variable, Any]
) -> Values:
    """What launches write, whose functions are those of a module."""
    sizes = _sizes(values)
    reads = {v for launch in made for v in launch.arguments}
    memory = {v: _array(v, values.get(v), sizes) for v in reads}
    for launch in made:
        _run(launch, getattr(module, launch.name), memory, sizes)
    return {v: memory[v][_part(v, sizes)].copy() for v in kernel.writes}


def compiled(kernel: Kernel, capability: int = CAPABILITY) -> list[Binary]:
    """Code of each launch of a kernel (`plan.launches`) for a GPU, which need not be there.

    Raises: DeviceError.
    """
    gpu = machine.chosen(Options(target=f"sm_{capability}"))
    return offline.compiled(orders(plan.launches(kernel, plan.chooser(gpu))), capability)


def orders(made: Sequence[Launch]) -> list[Order]:
    """Launches as Triton's compiler takes them."""
    path = str(_file(made))
    return [Order(path, m.name, types(m), aligned(m), m.warps, m.stages) for m in made]


def aligned(launch: Launch) -> tuple[int, ...]:
    """The arguments that begin at multiples of 16 bytes: what is smaller than a line of a cache
    lies where it fits.
    """
    rows = enumerate(launch.arguments)
    large = [n for n, v in rows if prod(box(v)) * v.dtype.itemsize >= LINE]
    return (*large, *(len(launch.arguments) + len(launch.sizes) for _ in launch.sites[:1]))


def types(launch: Launch) -> tuple[str, ...]:
    """The signature of a launch, as Triton names types."""
    pointers = [f"*{SIGNATURES[v.dtype.name]}" for v in launch.arguments]
    return (*pointers, *("i64" for _ in launch.sizes), *("*i64" for _ in launch.sites[:1]))


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Where sources lie: Triton reads functions from files."""
    return tempfile.TemporaryDirectory(prefix="pullback_triton_")


@lru_cache(maxsize=256)
def _loaded(kernel: Kernel, choose: plan.Chooser | None = None) -> tuple[list[Launch], Any]:
    """The launches of a kernel, and the module of their functions."""
    made = plan.launches(kernel, choose)
    return made, loaded(made)


def loaded(made: Sequence[Launch]) -> Any:
    """The module of launches, to be interpreted. Raises: DeviceError."""
    device.triton()
    with device.interpreting():
        return module_of(_file(made))


def _file(made: Sequence[Launch]) -> Path:
    """The file of some launches."""
    text = plan.source(made)
    path = Path(_folder().name) / f"k{digest(text)[:24]}.py"
    path.write_text(text, encoding="utf-8")
    return path


def _sizes(values: Mapping[Variable, Any]) -> dict[Dim, int]:
    """Symbolic extents, read off the arrays."""
    pairs = [p for v, a in values.items() for p in zip(v.shape, np.shape(a), strict=True)]
    return {extent: size for extent, size in pairs if isinstance(extent, Dim)}


def _shape(shape: Shape, sizes: Mapping[Dim, int]) -> tuple[int, ...]:
    """The shape in this run."""
    return tuple(sizes[e] if isinstance(e, Dim) else e for e in shape)


def _part(variable: Variable, sizes: Mapping[Dim, int]) -> tuple[slice, ...]:
    """What of an array of upper bounds a variable is in this run."""
    return tuple(map(slice, _shape(variable.shape, sizes)))


def _array(variable: Variable, given: Any, sizes: Mapping[Dim, int]) -> Array:
    """Memory of a variable: a copy of what it is given, else numbers that show if they are read."""
    kind, part = variable.dtype, _part(variable, sizes)
    made = np.full(box(variable), np.nan if kind.is_float else kind.range()[1], kind.numpy)
    if given is not None:
        made[part] = np.asarray(given)[part]
    return made


def _run(
    launch: Launch, function: Any, memory: Mapping[Variable, Array], sizes: Mapping[Dim, int]
) -> None:
    """One launch. Raises: IndexRangeError for what its checks find."""
    arguments: list[Any] = [device.Memory(_bytes(memory[v]), v.dtype) for v in launch.arguments]
    arguments += [sizes[dim] for dim in launch.sizes]
    wrong = np.zeros(2 * len(launch.sites), np.int64)
    if launch.sites:
        arguments.append(device.Memory(wrong, int64))
    programs = prod(-(-prod(_shape(e, sizes)) // block) for e, block in launch.grid)
    if programs:
        device.call(function, programs, arguments)
    for site, where in enumerate(launch.sites):
        if wrong[2 * site]:
            raise IndexRangeError.checked(int(wrong[2 * site + 1]), where)


def _bytes(array: Array) -> Array:
    """Truth as bytes, bfloat16 and floats of 8 bits as their bits: what the interpreter takes."""
    bits = array.dtype == bool or is_extended(dtype(array.dtype))
    return array.view(f"u{array.itemsize}") if bits else array
