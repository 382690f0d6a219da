"""A GPU as fusion asks a machine: what its launches cost decides which definitions share a kernel.

``join a and b where ns(launches of both) <= ns(launches of a) + ns(launches of b)``
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

from pullback.backends.triton.choose import LEAST
from pullback.backends.triton.machine import Gpu
from pullback.backends.triton.plan import Chooser, scheduled
from pullback.backends.triton.price import SECTOR, SPLIT, WORD, Work
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.machine.machine import Level, Machine, Memory

LITTLE = 1e-6  # ns: what is divided by is not 0
# ns: of kernels that are cut into the same launches, the larger one leaves more to choose.
KERNEL = 2.0


def fusing(target: Target, choose: Chooser) -> Target:
    """A target whose machine is a GPU. Kernels have the prices of their launches; for what is
    decided before there are kernels, a multiprocessor stands where a processor has a thread: what a
    tile keeps lies in its registers and shared memory, near is its share of the second cache.
    """
    gpu, usual = choose.gpu, target.profile
    count = gpu.count("processors")
    shared, second, far = gpu.memories
    kept = gpu.count("registers") * WORD + gpu.count("shared")
    rows = [("kept", kept, shared), ("near", second.bytes / count, second)]
    rows += [(second.name, second.bytes, second), (far.name, 0, far)]
    own = tuple(
        Memory(name, int(b), m.rate / count, m.rate / count, m.latency, "processor", count)
        for name, b, m in rows
    )
    levels = (Level("thread", count), *(x for x in usual.levels if x.name != "thread"))
    tables = MappingProxyType(dict(usual.tables) | _tables(gpu, usual))
    facts = sorted((name, sorted(table.items())) for name, table in gpu.tables.items())
    text = f"{usual.text}\n{choose.precision.value} {choose.deterministic} {gpu!r} {facts}"
    head = gpu.name, gpu.about, gpu.target, ()
    priced = _Priced(choose)
    return replace(
        target.on(Machine(*head, levels, own, usual.tiles, tables, text, priced)), scratch=kept
    )


def _tables(gpu: Gpu, usual: Machine) -> dict[str, Mapping[str, float]]:
    """What fusion asks of one multiprocessor; products are those of float32. `work` is the rate of
    the slow unit: what is computed again could have stayed in registers.
    """
    count = gpu.count("processors")
    launch = gpu.rate("launch", "launch")
    _, second, far = (m.rate / count for m in gpu.memories)
    lanes, function = (gpu.rate("lanes", name) / count for name in ("float32", "function"))
    tensor = gpu.rate("tensor", "tf32") / SPLIT / count
    whole = dict.fromkeys(("exp", "log", "sin", "root", "divide"), function)
    whole |= {"product_flops": 2 * tensor, "multiply_add": 1 / tensor, "work": function}
    whole |= {"near": second, "cache": second, "cache_sweep": second}
    whole |= {"memory": far, "memory_sweep": far, "scalar": 1 / lanes}
    whole |= {"first_level": float(gpu.count("registers") * WORD), "run": float(SECTOR)}
    # All multiprocessors run a launch; a guard is the mask of a load; products read their factors
    # where they lie.
    whole |= dict.fromkeys(("plain", "parallel", "parallel_sweep", "task", "step"), LITTLE)
    whole |= {"pack": 0.0}
    begun = {"launch": launch, "fork": launch, "task": LITTLE, "threads": float(count)}
    narrow, tall = gpu.rate("instruction", "narrow"), int(gpu.rate("instruction", "rows"))
    shares = {str(n): narrow * n / LEAST for n in (1, 2, 4, 8)}
    shares |= {str(LEAST): narrow} if tall > LEAST else {}
    shares[str(tall)] = 1.0
    made = {"whole": whole, "launch": dict(usual.tables["launch"]) | begun, "joined": shares}
    return {name: MappingProxyType(table) for name, table in made.items()}


class _Priced:
    """What the launches of a kernel cost, ns."""

    def __init__(self, choose: Chooser) -> None:
        self.choose = choose

    def __call__(self, kernel: Kernel) -> float:
        pairs = scheduled(kernel, self.choose)
        return KERNEL + sum(Work.of(g, self.choose.gpu).price(s).ns for g, s in pairs)
