"""How each system runs a workload at its best: one class each, with its modes.

`operation(workload, arrays)` and `training(workload, batch, weights)` give a `Ready`.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from suite.workload import Arrays, Operation, Training

FLUSH = 0x8040  # bits of the control register: flush results to zero, read denormals as zero
BETAS, EPS, DECAY = (0.9, 0.999), 1e-8, 0.01


@dataclass(frozen=True)
class Ready:
    """`first()`: the work once, with compilation; gives what is compared. `call()`: warm, once,
    or `steps` of it. `memory()`: the most bytes that a step holds, None where it is not known.
    """

    first: Callable[[], Arrays]
    call: Callable[[], Any]
    steps: int = 1
    memory: Callable[[], int] | None = None


class System:
    """What `s` in workloads is: `x` has the functions of arrays, `F` and `nn` those of nets."""

    modes: tuple[str, ...] = ("",)  # of operations
    training_modes: tuple[str, ...] = ("",)
    quick: tuple[str, ...] = ("",)  # of both, when there is little time

    def __init__(self, threads: int, mode: str) -> None:
        self.threads = threads
        self.mode = mode

    def join(self, parts: list[Any], axis: int) -> Any:
        return self.x.concatenate(parts, axis)

    def permuted(self, x: Any, axes: tuple[int, ...]) -> Any:
        return x.permute(axes)

    def function(self, w: Operation) -> Callable[..., Any]:
        text = getattr(w, type(self).__name__.lower())
        return lambda *xs: text(self, *xs)


class Pullback(System):
    def __init__(self, threads: int, mode: str) -> None:
        super().__init__(threads, mode)
        import pullback
        from pullback import nn, optim

        self.x, self.nn, self.F, self.optim = pullback, nn, nn.functional, optim

    def join(self, parts: list[Any], axis: int) -> Any:
        return self.x.concat(parts, axis=axis)

    def permuted(self, x: Any, axes: tuple[int, ...]) -> Any:
        return self.x.permute_dims(x, axes)

    def operation(self, w: Operation, arrays: Arrays) -> Ready:
        f = self.function(w)

        def both(head: Any, *xs: Any) -> Any:
            y = f(*xs)
            slopes = self.x.grad(y, [xs[n] for n in w.by], head=head)
            return slopes if w.part == "gradients" else [y, *slopes]

        inputs = [self.array(a, w.dtype) for a in arrays]
        given = getattr(w, "state", tuple)()
        if given:
            return self.replacing(f, inputs, given)
        if w.part:
            inputs.insert(0, self.array(head_of(self, f, inputs), w.dtype))
        run = self.x.jit(both if w.part else f)
        return Ready(
            lambda: [plain(y) for y in several(run(*inputs))], lambda: run(*inputs), 1, None
        )

    def replacing(self, f: Callable[..., Any], inputs: list[Any], given: tuple[int, ...]) -> Ready:
        """A step whose results replace the inputs `given`, in place, as state does."""
        held = {n: self.x.State(inputs[n]) for n in given}

        @self.x.jit
        def run(*xs: Any) -> None:
            found = f(*(held.get(n, x) for n, x in enumerate(xs)))
            for state, value in zip(held.values(), found, strict=True):
                state.assign(value)

        def first() -> Arrays:
            run(*inputs)
            return [state.numpy().copy() for state in held.values()]

        return Ready(first, lambda: run(*inputs), 1, None)

    def array(self, a: np.ndarray, dtype: str = "float32") -> Any:
        found = self.x.tensor(a)
        return found.astype(self.x.bfloat16) if dtype == "bfloat16" else found

    def training(self, w: Training, batch: Arrays, weights: dict[str, np.ndarray]) -> Ready:
        pb = self.x
        inputs = [pb.tensor(b) for b in batch]
        model = w.model(self)
        model.load_state_dict({k: pb.tensor(v) for k, v in weights.items()})
        opt = optimiser(self.optim, w, model)
        last = pb.State(pb.zeros(()))

        def step() -> None:
            opt.zero_grad()
            loss = w.loss(self, model, *inputs)
            loss.backward()
            opt.step()
            last.assign(loss)

        @pb.jit
        def one() -> None:
            pb.loop(range(1), step)

        @pb.jit
        def many() -> None:
            pb.loop(range(w.steps), step)

        def first() -> Arrays:
            one()
            return [last.numpy().copy()]

        def memory() -> int:
            held = [*model.state_dict().values(), *opt.state_dict().values(), *inputs]
            return one.program.memory.arena_bytes + sum(np.asarray(h).nbytes for h in held)

        return Ready(first, many if w.steps > 1 else one, w.steps, memory)


class Torch(System):
    """PyTorch, eager or compiled. Compiled steps are one graph: forward, backward and update."""

    modes = ("eager", "compile", "compile max-autotune")
    training_modes = ("eager", "compile", "compile max-autotune", "compile loss")
    quick = ("eager", "compile")

    def __init__(self, threads: int, mode: str) -> None:
        super().__init__(threads, mode)
        import torch

        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        self.x, self.nn, self.F, self.optim = torch, torch.nn, torch.nn.functional, torch.optim

    def join(self, parts: list[Any], axis: int) -> Any:
        return self.x.cat(parts, axis)

    def function(self, w: Operation) -> Callable[..., Any]:
        text = w.torch if self.mode == "eager" else getattr(w, "compile", w.torch)
        return lambda *xs: text(self, *xs)

    def compiled(self, f: Callable[..., Any]) -> Callable[..., Any]:
        if self.mode == "eager":
            return f
        functorch = importlib.import_module("torch._functorch.config")
        functorch.donated_buffer = False  # a backward may run again on the same forward
        chosen = "max-autotune" if self.mode.endswith("max-autotune") else "default"
        return self.x.compile(f, mode=chosen)

    def operation(self, w: Operation, arrays: Arrays) -> Ready:
        torch = self.x
        f = self.function(w)
        inputs = [self.array(a, w.dtype) for a in arrays]
        if not w.part:
            run = self.compiled(f)

            def forward() -> Any:
                with torch.no_grad():
                    return run(*inputs)

            return Ready(lambda: [plain(y) for y in several(forward())], forward)
        head = self.array(head_of(self, f, inputs), w.dtype)
        for n in w.by:
            inputs[n].requires_grad_()
        run = self.compiled(f)
        by = [inputs[n] for n in w.by]

        def both() -> Any:
            y = run(*inputs)
            return [y.detach(), *torch.autograd.grad(y, by, head)]

        if w.part == "both":
            return Ready(lambda: [plain(y) for y in both()], both)
        kept: list[Any] = []

        def gradients() -> Any:
            """The backward alone, of a forward that ran once."""
            kept.extend([] if kept else [run(*inputs)])
            return torch.autograd.grad(kept[0], by, head, retain_graph=True)

        return Ready(lambda: [plain(g) for g in gradients()], gradients)

    def array(self, a: np.ndarray, dtype: str = "float32") -> Any:
        found = self.x.from_numpy(a.copy())
        return found.to(self.x.bfloat16) if dtype == "bfloat16" else found

    def training(self, w: Training, batch: Arrays, weights: dict[str, np.ndarray]) -> Ready:
        torch = self.x
        model = w.model(self)
        model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})
        inputs = [self.array(b) for b in batch]
        whole = self.mode in ("compile", "compile max-autotune")
        step = self._whole(w, model, inputs) if whole else self._fused(w, model, inputs)

        def call() -> None:
            for _ in range(w.steps):
                step()

        def memory() -> int:
            states = w.moments * sum(v.nbytes for v in weights.values())
            return peak_of(torch, step, states + sum(b.nbytes for b in batch))

        return Ready(lambda: [plain(step())], call, w.steps, memory)

    def _fused(self, w: Training, model: Any, inputs: list[Any]) -> Callable[[], Any]:
        """The loss, eager or compiled, its backward, and the fused optimiser."""
        opt = optimiser(self.optim, w, model, fused=True)
        loss_of = self.compiled(lambda *xs: w.loss(self, model, *xs))

        def step() -> Any:
            opt.zero_grad(set_to_none=True)
            loss = loss_of(*inputs)
            loss.backward()
            opt.step()
            return loss.detach()

        return step

    def _whole(self, w: Training, model: Any, inputs: list[Any]) -> Callable[[], Any]:
        """One compiled graph that overwrites the weights: no autograd at run time."""
        torch = self.x
        held = {k: p.detach().clone() for k, p in model.named_parameters()}
        count = torch.zeros(())
        zeros = [{k: torch.zeros_like(p) for k, p in held.items()} for _ in range(2)]
        moments = zeros if w.optimiser == "adamw" else []

        def loss_of(p: Any, *xs: Any) -> Any:
            return w.loss(self, lambda *a: torch.func.functional_call(model, p, a), *xs)

        def step(*xs: Any) -> Any:
            slopes, loss = torch.func.grad_and_value(loss_of)(held, *xs)
            count.add_(1)
            for name, p in held.items():
                states = [m[name] for m in moments]
                new = updated(torch, w, p, slopes[name], states, count)
                for old, value in zip([p, *states], new, strict=True):
                    old.copy_(value)
            return loss

        fast = self.compiled(step)

        def run() -> Any:
            with torch.no_grad():
                return fast(*inputs)

        return run


class Jax(System):
    """jax.jit; steps with their state given away, one by one or scanned in one program."""

    training_modes = ("step", "scan")
    quick = ("", "step", "scan")  # convolutions are slow in a scan, all else is slow out of it

    def __init__(self, threads: int, mode: str) -> None:
        super().__init__(threads, mode)
        import jax

        jax.config.update("jax_default_prng_impl", "rbg")  # its faster random numbers
        self.jax, self.x = jax, jax.numpy

    def array(self, a: np.ndarray, dtype: str = "float32") -> Any:
        return self.x.asarray(a, dtype="bfloat16" if dtype == "bfloat16" else None)

    def operation(self, w: Operation, arrays: Arrays) -> Ready:
        jax = self.jax
        f = self.function(w)

        def both(head: Any, *xs: Any) -> Any:
            def by(*free: Any) -> Any:
                known = dict(zip(w.by, free, strict=True))
                return f(*(known.get(n, x) for n, x in enumerate(xs)))

            y, back = jax.vjp(by, *(xs[n] for n in w.by))
            slopes = back(head)
            return slopes if w.part == "gradients" else [y, *slopes]

        inputs = [self.array(a, w.dtype) for a in arrays]
        if w.part:
            inputs.insert(0, self.array(head_of(self, f, inputs), w.dtype))
        given = getattr(w, "state", tuple)()
        run = jax.jit(both if w.part else f, donate_argnums=given)

        def call() -> Any:
            found = jax.block_until_ready(run(*inputs))
            for n, value in zip(given, found if given else (), strict=True):
                inputs[n] = value
            return found

        return Ready(lambda: [plain(y) for y in several(call())], call)

    def training(self, w: Training, batch: Arrays, weights: dict[str, np.ndarray]) -> Ready:
        jax, jnp = self.jax, self.x
        inputs = [jnp.asarray(b) for b in batch]

        def step(state: Any, *xs: Any) -> Any:
            p, m, count = state
            key = [jax.random.key(count.astype("int32"))] if getattr(w, "dropout", 0.0) else []
            loss, slopes = jax.value_and_grad(lambda q: w.jax(self, q, *xs, *key))(p)
            count = count + 1
            new = {k: updated(jnp, w, v, slopes[k], [n[k] for n in m], count) for k, v in p.items()}
            parts = [{k: v[n] for k, v in new.items()} for n in range(1 + len(m))]
            return (parts[0], parts[1:], count), loss

        def scanned(state: Any, *xs: Any) -> Any:
            return jax.lax.scan(lambda s, _: step(s, *xs), state, length=w.steps)

        one = jax.jit(step, donate_argnums=0)
        many = jax.jit(scanned, donate_argnums=0)
        zeros = [{k: jnp.zeros_like(v) for k, v in weights.items()} for _ in range(2)]
        moments = zeros if w.optimiser == "adamw" else []
        box = [({k: jnp.array(v) for k, v in weights.items()}, moments, jnp.zeros(()))]

        def first() -> Arrays:
            box[0], loss = jax.block_until_ready(one(box[0], *inputs))
            return [plain(loss)]

        def call() -> None:
            if self.mode == "scan":
                box[0], _ = jax.block_until_ready(many(box[0], *inputs))
                return
            for _ in range(w.steps):
                box[0], _ = jax.block_until_ready(one(box[0], *inputs))

        def memory() -> int:
            found = one.lower(box[0], *inputs).compile().memory_analysis()
            given = found.argument_size_in_bytes + found.output_size_in_bytes
            return int(given + found.temp_size_in_bytes - found.alias_size_in_bytes)

        return Ready(first, call, w.steps, memory)


class Numpy(System):
    def __init__(self, threads: int, mode: str) -> None:
        super().__init__(threads, mode)
        self.x = np

    def operation(self, w: Operation, arrays: Arrays) -> Ready:
        f = self.function(w)
        return Ready(lambda: several(f(*arrays)), lambda: f(*arrays))


SYSTEMS = {"pullback": Pullback, "torch": Torch, "jax": Jax, "numpy": Numpy}


def optimiser(optim: Any, w: Training, model: Any, **options: Any) -> Any:
    if w.optimiser == "sgd":
        return optim.SGD(model.parameters(), lr=w.rate, **options)
    own = {"lr": w.rate, "betas": BETAS, "eps": EPS, "weight_decay": DECAY}
    return optim.AdamW(model.parameters(), **own, **options)


def updated(x: Any, w: Training, p: Any, g: Any, moments: Any, count: Any) -> list[Any]:
    """The parameter after a step, and its moments."""
    if w.optimiser == "sgd":
        return [p - w.rate * g]
    first, second = BETAS
    m = first * moments[0] + (1 - first) * g
    v = second * moments[1] + (1 - second) * (g * g)
    size = x.sqrt(v) / x.sqrt(1 - second**count) + EPS
    return [p * (1 - w.rate * DECAY) - w.rate / (1 - first**count) * m / size, m, v]


def head_of(s: System, f: Callable[..., Any], inputs: list[Any]) -> np.ndarray:
    """What the result's gradient is asked along: ones for a number, else numbers of one seed."""
    shape = tuple(f(*inputs).shape) if not hasattr(s, "jax") else s.jax.eval_shape(f, *inputs).shape
    if shape == ():
        return np.ones((), np.float32)
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def several(found: Any) -> list[Any]:
    return list(found) if isinstance(found, list | tuple) else [found]


def plain(found: Any) -> np.ndarray:
    """The values as float32."""
    if hasattr(found, "detach") and hasattr(found, "float"):
        return found.detach().float().numpy()
    return np.asarray(found).astype(np.float32)


def flush_denormals() -> None:
    """Denormals are zero in this thread and those that it starts, as PyTorch and JAX have it."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    text = """
    declare void @llvm.x86.sse.stmxcsr(ptr)
    declare void @llvm.x86.sse.ldmxcsr(ptr)
    define void @flush(i32 %bits) {
      %at = alloca i32
      call void @llvm.x86.sse.stmxcsr(ptr %at)
      %old = load i32, ptr %at
      %new = or i32 %old, %bits
      store i32 %new, ptr %at
      call void @llvm.x86.sse.ldmxcsr(ptr %at)
      ret void
    }"""
    machine = llvm.Target.from_default_triple().create_target_machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    engine.finalize_object()
    ctypes.CFUNCTYPE(None, ctypes.c_int)(engine.get_function_address("flush"))(FLUSH)


def peak_of(torch: Any, step: Callable[[], Any], held: int) -> int:
    """`held` bytes before the step, and the largest balance of allocations during it."""
    profiler = torch.profiler
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as p:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        p.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    found = sorted((e["ts"], e["args"]["Bytes"]) for e in events if e["name"] == "[memory]")
    balance = np.cumsum([b for _, b in found] or [0])
    return held + max(0, int(balance.max()))
