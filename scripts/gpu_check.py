"""Everything that wants an NVIDIA GPU, by one command: under ten minutes, without a network.

`python scripts/gpu_check.py [SECTION ..] [--fake] [-o STEM]`

Each section runs in a process of its own, so that one that crashes ends no other; what came out is
written to STEM.json and STEM.md after each, and what a section told before it was ended for its
time stays; so does STEM.schedules.json, what `tuning` measured, a file for the package. Sections
that come when the ten minutes are over are left out. Exit code 0: all is right; 1: something is
not; 3: there is no device. `--fake` runs it on none: kernels of `nvptx` thread by thread on this
processor (tests/fake_warps.py), those of Triton by its interpreter (tests/fake_triton.py); its
times say nothing.

Sections, what is worth most first: driver, programs, speed, tuning, training, sizes, triton, nvptx,
bandwidth, products, attention, graphs, feeders, assembled. Those up to `triton` are programs of the
backend `triton-cuda`, the others are of `nvptx`.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np

import pullback as pb
from pullback.backends.base import Launched
from pullback.backends.cuda.code import COUNT, COUNTING, CudaCode
from pullback.backends.cuda.driver import Driver, Launching, driver
from pullback.backends.cuda.runner import CudaRunner
from pullback.backends.nvptx import assemble, backend
from pullback.backends.registry import compiler
from pullback.config import Options
from pullback.conformance.case import cells
from pullback.conformance.cases import SECTIONS as CASES
from pullback.conformance.run import conformance
from pullback.errors import DeviceError
from pullback.runtime.tuned import Records, write
from pullback.tensor.run.tune import kernels_of
from pullback.tensor.run.tuning import launches, origin

NO_DEVICE = 3
OPTIONS, TRITON, LLVM = (Options(backend=n, cache=None) for n in ("nvptx", "triton-cuda", "llvm"))
SEED = 0
CELLS, CELLS_SECONDS = 60, 75  # of the suite at a time, and how long it may take
ALL_SECONDS = 585  # of all sections
TUNED = "bf16 product", "causal bf16 attention", "its slopes", "float32 product"
TUNING_SECONDS = 60  # of all of these
SCHEDULES = "schedules.json"
Result = dict[str, Any]


class Room:
    """A device, or none: `small` sizes where it is none."""

    def __init__(self, fake: bool, path: Path | None = None) -> None:
        self.fake, self.path = fake, path
        self.facts: Result = {}
        self.driver: Driver = faked() if fake else driver()
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
        kept = made(*arguments)  # where its launches write
        own = made.program.runner.own
        assert isinstance(own, CudaRunner)
        first, last = self.driver.event(timed=True), self.driver.event(timed=True)
        own._block(own.image.block, True)
        self.driver.mark(first, own.stream)
        for _ in range(times):
            own._block(own.image.block, True)
        self.driver.mark(last, own.stream)
        self.driver.wait(own.stream)
        del kept
        return self.driver.between(first, last) / times


def faked() -> Driver:
    """A device that is none, for both backends."""
    import pytest

    import fake_warps

    made, warps = fake_warps.device(pytest.MonkeyPatch())
    if find_spec("triton") is not None:
        import fake_triton

        fake_triton.device(pytest.MonkeyPatch(), warps.fake)
    return made


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


def warps(room: Room) -> Result:
    """The cells of the conformance suite by LLVM's kernels."""
    return executed(room, OPTIONS.backend, room.size(1, 40))


def executed(room: Room, name: str, every: int) -> Result:
    """Cells of the conformance suite, on the device."""
    chosen = cells(CASES)[::every]
    verdicts = []
    began = time.monotonic()
    while len(verdicts) < len(chosen) and time.monotonic() - began < CELLS_SECONDS:
        verdicts += conformance(name, chosen[len(verdicts) : len(verdicts) + CELLS])
    failed = [f"{v.cell.name}: {v.why}" for v in verdicts if v.state == "fail"]
    worst = max(verdicts, key=lambda v: v.error)
    assert not failed, f"{len(failed)} of {len(verdicts)} cells fail: " + "; ".join(failed[:20])
    counts = dict(Counter(v.state for v in verdicts))
    counts["cells"] = len(chosen)
    return {**counts, "largest error, ulp": f"{worst.error:.3g}, {worst.cell.name}"}


def programs(room: Room) -> Result:
    """Small programs of every kind by Triton's kernels, beside the backend `llvm`."""
    from small_programs import PROGRAMS

    chosen = list(PROGRAMS)[:: room.size(1, 20)]
    worst, launches = 0.0, 0
    for number, name in enumerate(chosen, 1):
        function, arguments = PROGRAMS[name]("float32")
        made = pb.jit(function, options=TRITON)
        got, want = (listed(m(*arguments)) for m in (made, pb.jit(function, options=LLVM)))
        for one, other in zip(got, want, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3, err_msg=name)
            difference = one.astype(np.float64) - other.astype(np.float64)
            worst = max(worst, float(np.abs(difference).max(initial=0.0)))
        launches += made.program.launches
        room.tell("programs", f"{number} of {len(chosen)}")
        room.tell("launches", launches)
        room.tell("largest difference", worst)
    room.tell("a large product by descriptors, by pointers", described(room))
    return room.facts


def described(room: Room) -> str:
    """The time of a product whose factors the copy engine reads, and of the same by pointers. Of
    whole numbers, which add up exactly: the bits are the same.
    """
    from pullback.backends.triton.machine import HERE, of_device

    gpu = of_device(room.driver.capability, room.driver.name)
    none = Path(tempfile.mkdtemp()) / "none.toml"  # this GPU as one that has no descriptors
    none.write_text((HERE / f"{gpu.name}.toml").read_text().replace("bytes = 128\n", "bytes = 0\n"))
    n = room.size(4096, 16)
    x = rng().integers(-4, 5, (n, n)).astype(pb.bfloat16.numpy)
    every = [TRITON, replace(TRITON, machine=str(none))]
    made = [pb.jit(lambda x: x @ x, options=own) for own in every]
    one, other = (m(x).numpy().astype(np.float32) for m in made)
    np.testing.assert_array_equal(one, other, err_msg="descriptors")
    return ", ".join(f"{room.timed(m, [x], room.size(20, 1)):.4g} ms" for m in made)


def listed(made: Any) -> list[Any]:
    """One result or several, as arrays."""
    every = made if isinstance(made, list | tuple) else [made]
    return [np.asarray(one) for one in every]


class Compiled:
    """What Triton's compiler says of the kernels that it makes from here on."""

    def __init__(self) -> None:
        from pullback.backends.triton import offline

        self.binaries: list[Any] = []
        plain = offline.compiled

        def noted(*given: Any) -> Any:
            made = plain(*given)
            self.binaries += made
            return made

        offline.compiled = noted

    def told(self) -> str:
        """Registers and stack of the worst of the kernels so far, which are forgotten."""
        every, self.binaries = self.binaries, []
        registers = max((b.registers for b in every), default=0)
        return f"{registers} registers, stack {max((b.stack for b in every), default=0)}"


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
    compiled, failed = Compiled(), []
    for name, function, given, work, unit, theirs in list(speed_cases(room))[: room.size(9, 1)]:
        try:
            made = pb.jit(function, options=TRITON)
            ms = room.timed(made, given, room.size(20, 1))
        except Exception as error:  # one that is not taken loses no other
            room.tell(name, f"{type(error).__name__}: {error}"[:300])
            failed.append(name)
            continue
        priced = priced_ms(made)
        told = f"{ms:.4g} ms ({priced:.4g} priced), {work / ms:.4g} {unit}"
        told += f", {made.program.launches} kernels, {compiled.told()}"
        other = None if theirs is None else by_torch(theirs, given[0])
        room.tell(name, told if other is None else f"{told}; PyTorch {other:.4g} ms")
    assert not failed, f"not run: {', '.join(failed)}"
    return room.facts


def tuning(room: Room) -> Result:
    """Schedules of products and attention by measured time, beside what was priced; the file of
    them, which the package takes as it is.
    """
    cases = [case for case in speed_cases(room) if case[0] in TUNED][: room.size(9, 1)]
    device = compiler(TRITON.backend).device(compiler(TRITON.backend).machine(TRITON))
    room.tell("file", str(device.file.relative_to(ROOT)))
    records: Records = {}
    ends = time.monotonic() + room.size(TUNING_SECONDS, 4)
    for number, (name, function, given, *_) in enumerate(cases):
        made = pb.jit(function, options=TRITON)
        made(*given)
        told: list[str] = []
        share = (ends - time.monotonic()) / (len(cases) - number)
        kernels = kernels_of([made.program])
        records |= launches(kernels, TRITON, {}, share, lambda one, to=told: to.append(said(one)))
        room.tell(name, "; ".join(told))
        if room.path is not None and records:
            facts = origin(TRITON, commit=commit(), by="scripts/gpu_check.py")
            write(room.path.with_name(SCHEDULES), records, facts)
    assert records, "there was no time"
    return room.facts


def said(launch: Launched) -> str:
    """What was found of a launch."""
    times = f"{launch.default_us:.4g} us ({launch.price_us:.4g} priced), at best {launch.us:.4g}"
    tries = f"{launch.tries} tried, {launch.refused} refused"
    return f"{launch.name}: {times} by {launch.block or 'the same'}, {tries}"


def commit() -> str:
    """Of this tree."""
    line = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    done = subprocess.run(line, capture_output=True, text=True)
    return done.stdout.strip() or "not under git"


def priced_ms(made: Any) -> float:
    """What the kernels of a program were said to cost, ms."""
    return sum(made.program.target.machine.priced(k) for k in made.program.kernels) / 1e6


def training(room: Room) -> Result:
    """Steps of training of a small transformer in one program, captured: microseconds a step; the
    loss is that of the backend `llvm`.
    """
    from pullback import nn, optim

    width, heads, tokens = room.size(256, 8), room.size(4, 2), room.size(128, 4)
    layers, batch, words = room.size(4, 1), room.size(16, 2), room.size(96, 11)
    steps = room.size(50, 2)
    given = rng().integers(0, words, (batch, tokens + 1))

    def train(options: Options) -> tuple[Any, Any]:
        pb.random.manual_seed(SEED)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True)
        table, model = nn.Embedding(words, width), nn.TransformerEncoder(layer, layers)
        head = nn.Linear(width, words)
        every = [p for module in (table, model, head) for p in module.parameters()]
        own = optim.AdamW(every, lr=1e-3)

        def step(i: Any, loss: Any, x: Any, y: Any) -> Any:
            own.zero_grad()
            logits = head(model(table(x), is_causal=True))
            loss = nn.functional.cross_entropy(logits.reshape((-1, words)), y.reshape((-1,)))
            loss.backward()
            own.step()
            return loss

        @pb.jit(options=options)
        def run(x: Any, y: Any) -> Any:
            return pb.loop(steps, lambda i, loss: step(i, loss, x, y), pb.tensor(0.0))

        return run, float(np.asarray(run(given[:, :-1].copy(), given[:, 1:].copy())))

    want = train(LLVM)[1]
    for options in (TRITON, OPTIONS)[: room.size(2, 1)]:
        name = options.backend
        made, loss = train(options)
        assert abs(loss - want) < 2e-2 * abs(want), f"{name}: {loss}, not {want}"
        began = time.monotonic()
        made(given[:, :-1].copy(), given[:, 1:].copy()).numpy()
        us = 1e6 * (time.monotonic() - began) / steps
        launched = made.program.launches // steps
        room.tell(f"{name}, us a step", f"{us:.5g}, {launched} kernels")
    return room.facts


def sizes(room: Room) -> Result:
    """One program for sizes in any order, on tensors that stay on the device, behind others too;
    PyTorch's, and `pb.torch.step`, where PyTorch has a device.
    """
    most, width = room.size(8192, 64), room.size(256, 8)
    n, w = pb.dim("n", 1, most), normal(width, width) / width

    def chain(x: Any) -> Any:
        y = pb.tanh(x @ w)
        return pb.tanh((y + pb.sum(y, axis=0)) @ w)

    shapes = {"rows": (n, width), "columns": (width, n)}
    for name, shape in shapes.items():
        by = chain if name == "rows" else lambda x: chain(x.T).T
        made = pb.jit(by, shapes=[shape], options=TRITON)
        for size in (most // 3, 5, most, 1, most // 2):
            x = normal(*(size if e is n else e for e in shape))
            got = made(pb.tensor(x).to("cuda")).numpy()
            want = pb.jit(by, options=LLVM)(x).numpy()
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3, err_msg=f"{name} {size}")
        assert made.traces == 1, f"{name}: {made.traces} programs"
        room.tell(name, "five sizes, one program")
    room.tell("PyTorch", stepped(room.size(256, 8)))
    return room.facts


def stepped(width: int) -> str:
    """Steps of training by `pb.torch.step` on CUDA tensors, of batches of several sizes, beside
    those of eager.
    """
    if find_spec("torch") is None:
        return "not installed"
    import torch

    if not torch.cuda.is_available():
        return "it has no device"
    losses = []
    for own in (True, False):
        torch.manual_seed(SEED)
        first, last = (torch.nn.Linear(width, width, device="cuda") for _ in range(2))
        model = torch.nn.Sequential(first, torch.nn.GELU(), last)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        step = pb.torch.step(model, torch.nn.functional.mse_loss, optimizer)
        for size in (64, 64, 33, 100, 64):
            x, y = (torch.randn(size, width, device="cuda") for _ in range(2))
            if own:
                losses.append(float(step(x, y)))
                continue
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            losses.append(float(loss))
    np.testing.assert_allclose(losses[:5], losses[5:], rtol=1e-2)
    return "five steps as eager's"


def tritons(room: Room) -> Result:
    """The cells of the conformance suite by Triton's kernels."""
    return executed(room, TRITON.backend, room.size(2, 60))


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
    "programs": (programs, 100),
    "speed": (speed, 120),
    "tuning": (tuning, 100),
    "training": (training, 60),
    "sizes": (sizes, 60),
    "triton": (tritons, 100),
    "nvptx": (warps, 100),
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


def asked(name: str, fake: bool, left: float, stem: str) -> Result:
    """A section in a process of its own, with its seconds; how that ended where it did not tell.
    Schedules that it measured stay beside the results.
    """
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
        if path.with_name(SCHEDULES).exists():
            shutil.copy(path.with_name(SCHEDULES), f"{stem}.{SCHEDULES}")
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
        left = ALL_SECONDS - (time.monotonic() - began)
        results[name] = asked(name, given.fake, left, given.output)
        print(f"{results[name]['state']} {results[name]['seconds']:6} s  {name}", flush=True)
        Path(f"{given.output}.json").write_text(json.dumps(results, indent=1))
        Path(f"{given.output}.md").write_text(page(results, given.fake))
    kept, before = f"{given.output}.json {given.output}.md", ""
    file = results.get("tuning", {}).get("facts", {}).get("file")
    schedules = Path(f"{given.output}.{SCHEDULES}")
    if file and schedules.exists() and not given.fake:
        kept, before = f"{kept} {file}", f"cp {schedules} {file} && "
    print(
        f"to keep them: {before}git add -f {kept} && git commit -m 'What a device said' -- {kept}"
    )
    return int(any(made["state"] != "pass" for made in results.values()))


if __name__ == "__main__":
    sys.exit(main())
