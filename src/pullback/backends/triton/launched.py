"""The backend that launches Triton's kernels on a device: cubins, by libcuda."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from importlib.metadata import version
from math import prod

from pullback.backends.base import Code, Device, Job, Launched, Stored, Text, Values, Work
from pullback.backends.cuda.backend import OnDevice
from pullback.backends.cuda.code import ELSEWHERE, NOTHING, CudaCode, Entry, Grid
from pullback.backends.cuda.driver import driver
from pullback.backends.host.exchange import box
from pullback.backends.triton import device as package
from pullback.backends.triton import machine, offline, plan, tune
from pullback.backends.triton.backend import aligned, chooser, orders, target_of, texts, types
from pullback.backends.triton.function import Launch
from pullback.backends.triton.offline import HIDDEN, Binary
from pullback.config import Ints, Options
from pullback.ir.expr import Dim, Shape, upper
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.ir.signature import digest
from pullback.ir.target import Target
from pullback.machine.machine import LINE


class TritonCuda(OnDevice):
    """Kernels as Triton's source, compiled for the device that runs them."""

    name = "triton-cuda"

    def host(self) -> str:
        """The device. Raises: DeviceError."""
        on = driver()
        gpu = machine.of_device(on.capability, on.name)
        where = f"{self.name}: Triton {_version()} on {on.name}, {gpu.target}"
        return f"{where} by the numbers of {gpu.name}, {on.bytes >> 20} MiB, driver {on.version}"

    def machine(self, options: Options) -> Target:
        """A device, by the numbers of `options.machine` or of its own kind; `+tf32` after its name
        in `options.target` multiplies float32 as tf32.

        Raises: DeviceError, OptionError, UnsupportedError for what runs on the host alone.
        """
        self.unwatched(options)
        ordinal = self.ordinal(options.target)
        on = driver(ordinal)
        gpu = machine.of_device(on.capability, on.name, options.machine)
        return target_of(gpu, options, ordinal)

    def ordinal(self, named: str | None) -> int:
        return super().ordinal(named.removesuffix(machine.TF32) or None if named else None)

    def identity(self, target: Target) -> str:
        return f"{_version()} {target.name} {target.cpu}"

    def compile(self, work: Iterable[Work], job: Job) -> list[Code]:
        """Code of each kernel; those that the store lacks are compiled side by side.

        Raises: DeviceError.
        """
        choose = chooser(job.target)
        made = [(kernel, plan.launches(kernel, choose)) for kernel, _ in work]
        job.report.lap("lower")
        keys = [self._key(*pair, job.target) for pair in made]
        codes = {key: job.store and job.store.get(key) for key in keys}
        wanted = {k: pair for k, pair in zip(keys, made, strict=True) if codes[k] is None}
        every = [order for _, launches in wanted.values() for order in orders(launches)]
        capability = machine.named(job.target.cpu).capability
        binaries = iter(offline.compiled(every, capability) if every else ())
        for key, (kernel, launches) in wanted.items():
            code = _code(kernel, launches, [next(binaries) for _ in launches])
            codes[key] = code.packed
            if job.store is not None:
                job.store.put(key, code.packed)
        job.stats.compiled += len(wanted)
        job.stats.loaded += len(codes) - len(wanted)
        job.report.lap("emit")
        return [_facts(*pair, key, codes[key] or b"") for key, pair in zip(keys, made, strict=True)]

    def device(self, target: Target) -> Device:
        """A device by its name, the code and the version of Triton that makes it."""
        gpu, (name, ordinal) = machine.named(target.cpu), _device(target)
        file = machine.HERE / f"{gpu.name}.json"
        return Device(driver(ordinal).name, f"{name} Triton {_version()}", file)

    def measured(
        self,
        kernel: Kernel,
        given: Callable[[], Values],
        target: Target,
        known: Container[str],
        seconds: float,
    ) -> list[Launched]:
        _, ordinal = _device(target)
        maker = tune.Maker(chooser(target), driver(ordinal), _coded)
        return tune.measured(kernel, given, maker, known, seconds)

    def texts(self) -> Mapping[str, Text]:
        """What the interpreter shows of kernels: it runs the same source."""
        return texts(self.name)

    def _key(self, kernel: Kernel, made: list[Launch], target: Target) -> str:
        """What code of launches depends on: their source but for what it says to people, how it is
        compiled, and where their parameters stand.
        """
        facts = [(types(m), aligned(m), m.grid, m.warps, m.stages) for m in made]
        rows = [_silent(m.source) for m in made]
        return digest(*rows, repr(facts), repr(_places(kernel, made)), self.identity(target))


def _device(target: Target) -> tuple[str, int]:
    """What code is made for, ``sm_90+tf32``, and the number of the device: ``sm_90:1+tf32``."""
    name, _, rest = target.name.partition(":")
    number, plus, fast = rest.partition("+")
    return f"{name}{plus}{fast}", int(number or 0)


def _version() -> str:
    """The version of Triton. Raises: DeviceError where it is not installed."""
    package.wanted(environment={package.INTERPRET: "1"})
    return version("triton")


def _silent(source: str) -> str:
    """A source without its comments, which have lines of the user's files."""
    return "\n".join(line for line in source.splitlines() if not line.strip().startswith("#"))


def _given(kernel: Kernel, made: list[Launch]) -> tuple[list[Variable], list[Dim]]:
    """What lies between the launches of a kernel, and its symbolic extents."""
    every = dict.fromkeys(v for launch in made for v in launch.arguments)
    shapes = [e for launch in made for extents, _ in launch.grid for e in extents]
    sizes = [s for launch in made for s in launch.sizes] + [e for e in shapes if isinstance(e, Dim)]
    return [v for v in every if v not in kernel.arguments], list(dict.fromkeys(sizes))


def _places(kernel: Kernel, made: list[Launch]) -> tuple[int, list[Ints]]:
    """Where the address of what checks write stands among the words of a kernel, and where the
    parameters of each launch do.
    """
    between, sizes = _given(kernel, made)
    words: list[object] = [*kernel.arguments, *between, *sizes]
    error, places = len(words), []
    for launch in made:
        own = [words.index(w) for w in (*launch.arguments, *launch.sizes)]
        own += [error] * bool(launch.sites)
        places.append((*own, error + 1, *(NOTHING for _ in range(HIDDEN - 1))))
    return error, places


def _code(kernel: Kernel, made: list[Launch], binaries: list[Binary]) -> CudaCode:
    """The launches of a kernel, with the code of each."""
    error, places = _places(kernel, made)
    entries, sites, scratch = [], 0, 0
    align = max(LINE, *(binary.align for binary in binaries))
    for number, (launch, binary) in enumerate(zip(made, binaries, strict=True)):
        how = _grid(launch), 32 * binary.warps, binary.shared
        entries.append(Entry(binary.name, *how, number, places[number], sites))
        sites += len(launch.sites)
        scratch = max(scratch, binary.scratch * _most(launch))
    scratch += (align - LINE) * bool(scratch)  # plans know lines
    images = tuple(binary.cubin for binary in binaries)
    return CudaCode(images, tuple(entries), error, sites, scratch, align)


def _grid(launch: Launch) -> Grid:
    return tuple((_named(extents), block) for extents, block in launch.grid)


def _named(extents: Shape) -> tuple[int | str, ...]:
    return tuple(e.name if isinstance(e, Dim) else e for e in extents)


def _most(launch: Launch) -> int:
    """Programs of a launch, at most."""
    return prod(-(-prod(map(upper, extents)) // block) for extents, block in launch.grid)


def _coded(kernel: Kernel, made: list[Launch], binaries: list[Binary]) -> Code:
    """A kernel of launches, with the code of each."""
    return _facts(kernel, made, "", _code(kernel, made, binaries).packed)


def _facts(kernel: Kernel, made: list[Launch], key: str, packed: bytes) -> Code:
    """A kernel as one task; what lies between its launches is shared."""
    code = CudaCode.read(packed)
    between, sizes = _given(kernel, made)
    shared = tuple(prod(box(v)) * v.dtype.itemsize for v in between)
    sites = (*(site for launch in made for site in launch.sites), ELSEWHERE)
    names = tuple(size.name for size in sizes)
    facts = Stored(kernel.name, key, False, code.scratch, shared, sites, 1, names)
    return Code(facts, code.body, 0, code)
