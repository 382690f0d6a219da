"""Everything that wants an NVIDIA GPU, by one command: under ten minutes, without a network.

`python scripts/gpu_check.py [SECTION ..] [--fake] [-o STEM]`

Each section runs in a process of its own, so that one that crashes ends no other; what came out is
written to STEM.json and STEM.md after each, and what a section told before it was ended for its
time stays. Sections that come when the ten minutes are over are left out. Exit code 0: all is
right; 1: something is not; 3: there is no device. `--fake` runs it on none: kernels of `nvptx`
thread by thread on this processor (tests/fake_warps.py), those of Triton as launches alone; its
times say nothing.

Sections, what is worth most first: driver, triton, speed, nvptx, bandwidth, products, attention,
graphs, feeders, assembled.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np

import pullback as pb
from pullback.backends.cuda.code import COUNT, COUNTING, CudaCode
from pullback.backends.cuda.driver import Driver, Launching, driver
from pullback.backends.cuda.runner import CudaRunner
from pullback.backends.nvptx import assemble, backend
from pullback.config import Options
from pullback.conformance.case import cells
from pullback.conformance.cases import SECTIONS as CASES
from pullback.conformance.run import conformance
from pullback.errors import DeviceError

NO_DEVICE = 3
OPTIONS = Options(backend="nvptx", cache=None)
SEED = 0
CELLS, CELLS_SECONDS = 100, 100  # of the suite at a time, and how long it may take
ALL_SECONDS = 585  # of all sections
Result = dict[str, Any]


class Room:
    """A device, or none: `small` sizes where it is none."""

    def __init__(self, fake: bool, path: Path | None = None) -> None:
        self.fake, self.path = fake, path
        self.facts: Result = {}
        self.warps: Any = None
        if fake:
            import pytest

            import fake_warps

            made, self.warps = fake_warps.device(pytest.MonkeyPatch())
        self.driver: Driver = made if fake else driver()
        self._context = self.driver.here()
        self._context.__enter__()  # for as long as the process lives

    def tell(self, name: str, value: Any) -> None:
        """A result, written at once: it stays where the section is ended for its time."""
        self.facts[name] = value
        if self.path is not None:
            state = {"state": "fail", "why": "it did not end", "facts": self.facts}
            self.path.write_text(json.dumps(state))

    def size(self, real: int, small: int) -> int:
        """A size by what runs it."""
        return small if self.fake else real

    def timed(self, made: Any, arguments: Sequence[Any], times: int) -> float:
        """Milliseconds of the launches of a program, which has run; copies are not counted."""
        made(*arguments)
        own = made.program.runner.own
        assert isinstance(own, CudaRunner)
        first, last = self.driver.event(timed=True), self.driver.event(timed=True)
        own._block(own.image.block, True)
        self.driver.mark(first, own.stream)
        for _ in range(times):
            own._block(own.image.block, True)
        self.driver.mark(last, own.stream)
        self.driver.wait(own.stream)
        return self.driver.between(first, last) / times


def rng() -> np.random.Generator:
    return np.random.default_rng(SEED)


def normal(*shape: int) -> Any:
    return rng().standard_normal(shape).astype(np.float32)


def agree(function: Callable[..., Any], *arguments: Any, error: float = 1e-4) -> float:
    """The largest difference from the backend `llvm`. Raises: AssertionError."""
    got = pb.jit(function, options=OPTIONS)(*arguments).numpy()
    want = pb.jit(function, options=Options(backend="llvm"))(*arguments).numpy()
    np.testing.assert_allclose(got, want, rtol=error, atol=error)
    return float(np.abs(got.astype(np.float64) - want.astype(np.float64)).max(initial=0.0))


# --- sections ------------------------------------------------------------------------------------


def smoke(room: Room) -> Result:
    """Three kernels: one by hand, one of maps and one of sums; copies, events, a graph."""
    on = room.driver
    stream, event = on.stream(), on.event()
    place, host = on.allocate(8), np.array([40], np.int64)
    count = on.function(on.module(COUNTING), COUNT)
    given = [ctypes.c_uint64(place), ctypes.c_int64(1)]
    on.to_device(place, host.ctypes.data, 8, stream)
    on.launch(count, Launching(1, 1), given, stream)
    with on.capture(stream) as made:
        on.launch(count, Launching(1, 1), given, stream)
    on.replay(made[0], stream)
    on.mark(event, stream)
    on.reached(event)
    on.to_host(host.ctypes.data, place, 8, stream)
    on.wait(stream)
    assert host[0] == 42, f"a kernel, captured and not: {host[0]}, not 42"
    on.free(place)
    x = normal(33, 70)
    maps = agree(lambda x: pb.exp(x) * 2, x)
    sums = agree(lambda x: pb.nn.functional.softmax(x, dim=1), x)
    facts = {"name": on.name, "capability": on.capability, "driver": on.version}
    return {**facts, "MiB": on.bytes >> 20, "error of maps": maps, "error of sums": sums}


def executed(room: Room) -> Result:
    """The cells of the conformance suite, on the device."""
    chosen = cells(CASES)[:: room.size(1, 40)]
    verdicts = []
    began = time.monotonic()
    while len(verdicts) < len(chosen) and time.monotonic() - began < CELLS_SECONDS:
        verdicts += conformance("nvptx", chosen[len(verdicts) : len(verdicts) + CELLS])
    failed = [f"{v.cell.name}: {v.why}" for v in verdicts if v.state == "fail"]
    worst = max(verdicts, key=lambda v: v.error)
    assert not failed, f"{len(failed)} of {len(verdicts)} cells fail: " + "; ".join(failed[:20])
    counts = dict(Counter(v.state for v in verdicts))
    counts["cells"] = len(chosen)
    return {**counts, "largest error, ulp": f"{worst.error:.3g}, {worst.cell.name}"}


def tritons(room: Room) -> Result:
    """Kernels that Triton's compiler makes, launched by libcuda, beside the reference."""
    from pullback.backends.reference.kernels import run_kernel
    from pullback.backends.triton import backend as triton
    from small_programs import PROGRAMS

    names = ["softmax", "integers", "gather", "cumulative sum", "vector products"]
    worst, launched = 0.0, 0
    for name in names[: room.size(len(names), 2)]:
        function, arguments = PROGRAMS[name]("float32")
        made = pb.jit(function, options=Options(backend="llvm", cache=None))
        made(*arguments)
        for kernel in made.program.kernels:
            values = {v: _random(v) for v in kernel.reads}
            got = by_triton(room, triton, kernel, values)
            launched += 1
            for variable, want in run_kernel(kernel, values).items():
                if not room.fake:
                    np.testing.assert_allclose(got[variable], want, rtol=1e-4, atol=1e-4)
                    difference = got[variable].astype(np.float64) - want.astype(np.float64)
                    worst = max(worst, float(np.abs(difference).max(initial=0.0)))
    return {"kernels": launched, "largest difference": worst}


def _random(variable: Any) -> Any:
    kind = variable.dtype
    if kind.is_float:
        return rng().standard_normal(variable.shape).astype(kind.numpy)
    return rng().integers(0, 2, variable.shape).astype(kind.numpy)


def by_triton(room: Room, triton: Any, kernel: Any, values: Any) -> dict[Any, Any]:
    """What the launches of a kernel write, by way of cubins."""
    made = Launched(room, triton, [kernel], values)
    made.run()
    return made.read()


class Launched:
    """Kernels by way of cubins, their arrays on the device; `binaries` say what they use."""

    def __init__(self, room: Room, triton: Any, kernels: Sequence[Any], values: Any) -> None:
        from pullback.backends.triton import machine, offline, plan

        self.on, self.stream = room.driver, room.driver.stream()
        self.gpu = machine.chosen(Options(target=f"sm_{self.on.capability}"))
        made = [launch for k in kernels for launch in plan.launches(k, plan.chooser(self.gpu))]
        orders = [
            o for k in kernels for o in triton.orders(plan.launches(k, plan.chooser(self.gpu)))
        ]
        self.binaries = offline.compiled(orders, self.on.capability)
        variables = dict.fromkeys(v for launch in made for v in launch.arguments)
        nothing = {v: np.zeros(v.shape, v.dtype.numpy) for v in variables if v not in values}
        self.arrays = {v: np.array(values.get(v, nothing.get(v))) for v in variables}
        self.places = {v: self.on.allocate(a.nbytes) for v, a in self.arrays.items()}
        errors = self.on.allocate(1 << 12)
        self.on.fill(errors, 0, 1 << 12, self.stream)
        for variable, array in self.arrays.items():
            place = self.places[variable]
            self.on.to_device(place, array.ctypes.data, array.nbytes, self.stream)
        self.calls = []
        for launch, binary in zip(made, self.binaries, strict=True):
            if room.fake:
                register(room, binary.name)
            function = self.on.function(self.on.module(binary.cubin), binary.name, binary.shared)
            programs = prod(-(-prod(extents) // block) for extents, block in launch.grid)
            scratch = self.on.allocate(binary.scratch * programs)
            words = [self.places[v] for v in launch.arguments] + [errors] * bool(launch.sites)
            words += [scratch] + [0] * (offline.HIDDEN - 1)
            how = Launching(programs, 32 * binary.warps, binary.shared)
            self.calls.append((function, how, [ctypes.c_uint64(w) for w in words]))

    def run(self) -> None:
        for function, how, words in self.calls:
            self.on.launch(function, how, words, self.stream)

    def read(self) -> dict[Any, Any]:
        """All arrays."""
        for variable, array in self.arrays.items():
            place = self.places[variable]
            self.on.to_host(array.ctypes.data, place, array.nbytes, self.stream)
        self.on.wait(self.stream)
        return self.arrays

    def ms(self, times: int) -> float:
        """Milliseconds of a run, launched one by one."""
        first, last = self.on.event(timed=True), self.on.event(timed=True)
        self.run()
        self.on.mark(first, self.stream)
        for _ in range(times):
            self.run()
        self.on.mark(last, self.stream)
        self.on.wait(self.stream)
        return self.on.between(first, last) / times


def fused(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Any]:
    """The kernels of a program for Triton; nothing is computed."""
    from pullback.backends.triton.backend import Triton

    def nothing(self: Any, target: Any, kernel: Any, values: Any) -> Any:
        return {v: np.zeros(v.shape, v.dtype.numpy) for v in kernel.writes}

    plain, Triton.run_for = Triton.run_for, nothing  # type: ignore[method-assign]
    try:
        made = pb.jit(function, options=Options(backend="triton", cache=None))
        made(*arguments)
    finally:
        Triton.run_for = plain  # type: ignore[method-assign]
    return list(made.program.kernels)


def slopes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The value and the derivatives by all arguments but the first, which comes from behind."""

    def both(g: Any, *given: Any) -> Any:
        y = function(*given)
        return [y, *pb.grad(pb.sum(y * g), list(given))]

    return both


def speed_cases(room: Room) -> Iterator[tuple[str, Any, list[Any], float, str, Any]]:
    """Name, function, arguments, what it does of a unit (a GFLOP or GB), PyTorch's function."""
    n, heads, rows = room.size(4096, 16), room.size(16, 1), room.size(2048, 16)
    functional = pb.nn.functional
    half = pb.bfloat16.numpy if hasattr(pb.bfloat16, "numpy") else np.float16
    a = normal(n, n)
    halves = a.astype(half)
    q = normal(heads, rows, 64).astype(half)

    def attention(q: Any, k: Any, v: Any) -> Any:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def theirs(t: Any, x: Any) -> Any:
        return t.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)

    flops = 2 * n**3 / 1e9
    seen = 4 * heads * rows**2 * 64 / 2 / 1e9
    yield "bf16 product", lambda x, w: x @ w, [halves, halves], flops, "TFLOP/s", lambda t, x: x @ x
    yield "causal bf16 attention", attention, [q, q, q], seen, "TFLOP/s", theirs
    yield (
        "softmax",
        lambda x: functional.softmax(x, dim=1),
        [a],
        8 * n * n / 1e9,
        "TB/s",
        (lambda t, x: t.softmax(x, 1)),
    )
    yield "its slopes", slopes(attention), [q, q, q, q], 3.5 * seen, "TFLOP/s", None
    yield "float32 product", lambda x, w: x @ w, [a, a], flops, "TFLOP/s", lambda t, x: x @ x
    norm = slopes(lambda x, w, b: functional.layer_norm(x, (n,), w, b))
    given = [a, a, normal(n), normal(n)]
    yield "layer norm and its slopes", norm, given, 16 * n * n / 1e9, "TB/s", None


def speed(room: Room) -> Result:
    """Triton's kernels at real sizes: time, what was priced, registers; PyTorch's time."""
    from pullback.backends.triton import backend as triton
    from pullback.backends.triton import plan
    from pullback.backends.triton.price import Work

    for name, function, given, work, unit, theirs in list(speed_cases(room))[: room.size(9, 1)]:
        kernels = fused(function, given)
        values = {v: _random(v) / 8 for k in kernels for v in k.reads if v.dtype.is_float}
        try:
            made = Launched(
                room, triton, kernels, {v: x.astype(v.dtype.numpy) for v, x in values.items()}
            )
            ms = made.ms(room.size(20, 1))
        except Exception as error:  # one that is not taken loses no other
            room.tell(name, f"{type(error).__name__}: {error}"[:300])
            continue
        pairs = [p for k in kernels for p in plan.scheduled(k, plan.chooser(made.gpu))]
        priced = sum(Work.of(g, made.gpu).price(s).ns for g, s in pairs) / 1e6
        told = f"{ms:.4g} ms ({priced:.4g} priced), {work / ms:.4g} {unit}, {len(pairs)} launches"
        told += f", registers {max(b.registers for b in made.binaries)}"
        told += f", stack {max(b.stack for b in made.binaries)}"
        other = None if theirs is None else by_torch(theirs, given[0])
        room.tell(name, told if other is None else f"{told}; PyTorch {other:.4g} ms")
    return room.facts


def register(room: Room, name: str) -> None:
    """A kernel that the fake launches and does nothing for."""
    from fake_cuda import Kernel

    room.warps.fake.kernels[name] = Kernel(lambda *_: None, lambda _: [])


def assembled(room: Room) -> Result:
    """Every kernel of the conformance suite, by ptxas where there is one, for three devices."""
    if assemble.ptxas() is None:
        return {"skipped": "there is no ptxas"}
    texts: dict[int, dict[str, None]] = {80: {}, 90: {}, 100: {}}
    plain = backend._code

    def code(routine: Any, key: str, job: Any) -> CudaCode:
        for capability, own in texts.items():
            target = backend._target(capability)
            own[backend._text(routine, target, "body", "finish")] = None
        return plain(routine, key, job)

    backend._code = code
    conformance("nvptx", cells(CASES)[:: room.size(8, 80)])
    registers = spilled = 0
    began = time.monotonic()
    for capability, own in texts.items():
        for text in own:
            made = assemble.assembled(assemble.ptx(text, capability), capability)
            registers, spilled = max(registers, made.registers), spilled + (made.spilled > 0)
    each = (time.monotonic() - began) / max(1, sum(map(len, texts.values())))
    counts = {f"kernels for sm_{c}": len(own) for c, own in texts.items()}
    facts = {"most registers": registers, "kernels that spill": spilled}
    return {**counts, **facts, "ms a kernel": round(1000 * each)}


def graphs(room: Room) -> Result:
    """A loop of two launches: replayed as a graph, and launched one by one."""
    count, size = room.size(1000, 20), 256

    def loop(x: Any) -> Any:
        return pb.loop(count, lambda i, h: pb.tanh(h @ h) * 0.5 + x, x)

    x = normal(size, size)[: room.size(size, 8), : room.size(size, 8)] / size
    error = agree(loop, x)
    made = pb.jit(loop, options=OPTIONS)
    with_graphs = room.timed(made, (x,), 1) / count
    own = made.program.runner.own
    assert own.replays, "the loop was captured"
    plain = own._launched
    own._launched = lambda row, again: plain(row, False)
    without = room.timed(made, (x,), 1) / count
    return {"us a turn, replayed": 1e3 * with_graphs, "us a turn, launched": 1e3 * without,
            "error": error}  # fmt: skip


def feeders(room: Room) -> Result:
    """Batches that are copied while others are computed with: seconds beside those of each."""
    turns, rows, size = room.size(50, 3), room.size(2048, 16), room.size(2048, 16)
    batch, weights = normal(rows, size), normal(size, size) / size

    def fed(w: Any) -> Any:
        def body(i: Any, total: Any) -> Any:
            x = pb.Feeder(lambda: batch, shape=(rows, size), dtype="float32")
            return total + pb.sum(pb.tanh(x @ w))

        return pb.loop(turns, body, pb.tensor(0.0))

    def kept(w: Any, x: Any) -> Any:
        return pb.loop(turns, lambda i, t: t + pb.sum(pb.tanh(x @ w) + t * 0), pb.tensor(0.0))

    def copied(w: Any) -> Any:
        def body(i: Any, total: Any) -> Any:
            x = pb.Feeder(lambda: batch, shape=(rows, size), dtype="float32")
            return total + x[0, 0]

        return pb.loop(turns, body, pb.tensor(0.0))

    seconds = {}
    runs = {"both": (fed, (weights,)), "kernels": (kept, (weights, batch)),
            "copies": (copied, (weights,))}  # fmt: skip
    for name, (function, given) in runs.items():
        made = pb.jit(function, options=OPTIONS)
        made(*given)
        began = time.monotonic()
        made(*given).numpy()
        seconds[name] = time.monotonic() - began
    least = min(seconds["kernels"], seconds["copies"])
    hidden = (seconds["kernels"] + seconds["copies"] - seconds["both"]) / max(least, 1e-9)
    return {**{f"ms, {n}": 1e3 * s for n, s in seconds.items()}, "share that overlaps": hidden}


def bandwidth(room: Room) -> Result:
    """Bytes a second of maps and sums beside those of a copy by the driver."""
    size = room.size(1 << 26, 1 << 10)
    x = normal(size // 1024, 1024) if size >= 1024 else normal(1, size)
    on, stream = room.driver, room.driver.stream()
    a, b = on.allocate(x.nbytes), on.allocate(x.nbytes)
    first, last = on.event(timed=True), on.event(timed=True)
    times = room.size(20, 1)
    on.fill(a, 0, x.nbytes, stream)
    on.within(b, a, x.nbytes, stream)
    on.mark(first, stream)
    for _ in range(times):
        on.within(b, a, x.nbytes, stream)
    on.mark(last, stream)
    on.wait(stream)
    copy = 2 * x.nbytes * times / on.between(first, last) / 1e6
    rows: Result = {"GB/s, copy": copy}
    programs = {"x + 1": (lambda x: x + 1, 2), "exp(x)": (pb.exp, 2),
                "softmax": (lambda x: pb.nn.functional.softmax(x, dim=1), 2),
                "sum": (lambda x: pb.sum(x, axis=1), 1)}  # fmt: skip
    for name, (function, passes) in programs.items():
        ms = room.timed(pb.jit(function, options=OPTIONS), (x,), times)
        rows[f"GB/s, {name}"] = passes * x.nbytes / ms / 1e6
    return rows


def products(room: Room) -> Result:
    """Products of float32 beside PyTorch's, where it is there with a device."""
    rows: Result = {}
    for size in (room.size(512, 16), room.size(2048, 24)):
        x = normal(size, size)
        ms = room.timed(pb.jit(lambda x: x @ x, options=OPTIONS), (x,), room.size(10, 1))
        rows[f"GFLOP/s, {size}"] = 2 * size**3 / ms / 1e6
        other = by_torch(lambda torch, x: x @ x, x)
        if other is not None:
            rows[f"GFLOP/s, {size}, PyTorch"] = 2 * size**3 / other / 1e6
    return rows


def attention(room: Room) -> Result:
    """Causal attention beside PyTorch's."""
    heads, size, width = room.size(16, 1), room.size(1024, 12), room.size(64, 8)
    q = normal(heads, size, width)

    def own(q: Any) -> Any:
        return pb.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)

    error = agree(own, q, error=1e-3)
    ms = room.timed(pb.jit(own, options=OPTIONS), (q,), room.size(10, 1))
    rows: Result = {"ms": ms, "error": error}
    other = by_torch(
        lambda torch, q: torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True),
        q,
    )
    return rows if other is None else {**rows, "ms, PyTorch": other}


def by_torch(function: Callable[..., Any], x: Any) -> float | None:
    """Milliseconds by PyTorch on the device; None where it is not there."""
    if find_spec("torch") is None:
        return None
    import torch

    if not torch.cuda.is_available():
        return None
    half = x.dtype.name == "bfloat16"
    given = torch.from_numpy(x.astype(np.float32) if half else x).cuda()
    given = given.bfloat16() if half else given
    for _ in range(3):
        function(torch, given)
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(10):
        function(torch, given)
    last.record()
    torch.cuda.synchronize()
    return float(first.elapsed_time(last)) / 10


# What is done, and the most seconds that it may take.
SECTIONS: dict[str, tuple[Callable[[Room], Result], int]] = {
    "driver": (smoke, 45),
    "triton": (tritons, 60),
    "speed": (speed, 150),
    "nvptx": (executed, 140),
    "bandwidth": (bandwidth, 30),
    "products": (products, 30),
    "attention": (attention, 30),
    "graphs": (graphs, 30),
    "feeders": (feeders, 30),
    "assembled": (assembled, 40),
}


# --- processes -----------------------------------------------------------------------------------


def one(name: str, fake: bool, path: Path) -> None:
    """A section in this process; what came out is written to a file."""
    try:
        made = {"state": "pass", "facts": SECTIONS[name][0](Room(fake, path))}
    except Exception as error:
        made = {"state": "fail", "why": f"{type(error).__name__}: {error}"[:2000]}
    path.write_text(json.dumps(made))


def asked(name: str, fake: bool, left: float) -> Result:
    """A section in a process of its own, with its seconds; how that ended where it did not tell."""
    limit = min(SECTIONS[name][1], left)
    if limit < 5:
        return {"state": "fail", "why": "the ten minutes were over", "seconds": 0.0}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "made.json"
        line = [sys.executable, __file__, "--one", name, "-o", str(path), *["--fake"] * fake]
        began = time.monotonic()
        try:
            done = subprocess.run(line, capture_output=True, text=True, timeout=limit)
            ended = f"the process ended with {done.returncode}: {done.stderr.strip()[-1000:]}"
        except subprocess.TimeoutExpired as error:
            ended = f"the process took longer than {error.timeout} s"
        made: Result = {"state": "fail", "why": ended}
        with contextlib.suppress(OSError, ValueError):
            told = json.loads(path.read_text())
            made = told if told.get("why") != "it did not end" else {**told, "why": ended}
        return {**made, "seconds": round(time.monotonic() - began, 1)}


def page(results: dict[str, Result], fake: bool) -> str:
    """The results as Markdown."""
    return "\n".join(_lines(results, fake)) + "\n"


def _lines(results: dict[str, Result], fake: bool) -> Iterator[str]:
    yield "# What ran on a device" if not fake else "# What ran on no device: times say nothing"
    yield ""
    yield "| section | | seconds | |"
    yield "|---|---|---|---|"
    for name, made in results.items():
        facts = made.get("facts", {})
        told = "; ".join(f"{k}: {v:.4g}" if isinstance(v, float) else f"{k}: {v}"
                         for k, v in facts.items())  # fmt: skip
        why = made.get("why", "").replace("\n", " ").replace("|", "\\|")
        said = "; ".join(part for part in (why, told) if part)
        yield f"| {name} | {made['state']} | {made['seconds']} | {said} |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--fake", action="store_true", help="on a device that is none")
    parser.add_argument("-o", "--output", default="gpu_check", help="where results go")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        one(given.one, given.fake, Path(given.output))
        return 0
    unknown = [name for name in given.sections if name not in SECTIONS]
    if unknown:
        parser.error(f"no section {unknown[0]}: they are {', '.join(SECTIONS)}")
    if not given.fake:
        try:
            print(f"on {driver().name}")
        except DeviceError as error:
            print(f"no device: {error}")
            return NO_DEVICE
    results: dict[str, Result] = {}
    began = time.monotonic()
    for name in given.sections or SECTIONS:
        results[name] = asked(name, given.fake, ALL_SECONDS - (time.monotonic() - began))
        print(f"{results[name]['state']} {results[name]['seconds']:6} s  {name}", flush=True)
        Path(f"{given.output}.json").write_text(json.dumps(results, indent=1))
        Path(f"{given.output}.md").write_text(page(results, given.fake))
    kept = f"{given.output}.json {given.output}.md"
    print(f"to keep them: git add -f {kept} && git commit -m 'What a device said' -- {kept}")
    return int(any(made["state"] != "pass" for made in results.values()))


if __name__ == "__main__":
    sys.exit(main())
