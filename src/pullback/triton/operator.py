"""`pb.triton.op`: a whole `@triton.jit` kernel as a differentiable operator of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pullback.config import Options, frozen
from pullback.errors import ArgumentError, DeviceError, GradientError, UnsupportedError
from pullback.triton.adjoint import Wanted
from pullback.triton.contracted import gradients as contracted
from pullback.triton.contracted import within
from pullback.triton.counts import counted
from pullback.triton.derive import Derived, derived, loaded, watching
from pullback.triton.descriptors import by_pointers
from pullback.triton.facts import Facts
from pullback.triton.frontend import function_of, interpreted, jitted
from pullback.triton.judged import products, unjudged
from pullback.triton.nodes import Function
from pullback.triton.products import Factor, Product, Tiled, tiled
from pullback.triton.sharing import Reach
from pullback.triton.watched import NEVER

Grid = Sequence[int] | Callable[[Mapping[str, Any]], Sequence[int]]
Outputs = str | Sequence[str] | Mapping[str, Any]

TYPES = {
    torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64",
    torch.bool: "i1", torch.int8: "i8", torch.int16: "i16", torch.int32: "i32",
    torch.int64: "i64", torch.uint8: "u8", torch.uint16: "u16", torch.uint32: "u32",
    torch.uint64: "u64", torch.float8_e5m2: "fp8e5", torch.float8_e4m3fn: "fp8e4nv",
}  # fmt: skip
TAPES = {
    "f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64,
    "i1": torch.int8, "i8": torch.int8, "i16": torch.int16, "i32": torch.int32,
    "i64": torch.int64,
}  # fmt: skip
HALF = (torch.float16, torch.bfloat16)
EIGHTH = (torch.float8_e5m2, torch.float8_e4m3fn)


@frozen
class Call:
    """The arguments of one call, outputs too, and the grid it runs on."""

    arguments: Mapping[str, Any]
    grid: tuple[int, int, int]
    before: Mapping[str, Any]  # what the arguments held that the kernel reads and then writes
    replaced: frozenset[str] | None = None  # of those the ones that are read first, once known

    @property
    def tensors(self) -> dict[str, Any]:
        """The arguments that are tensors."""
        return {n: v for n, v in self.arguments.items() if isinstance(v, torch.Tensor)}


@dataclass(frozen=True, eq=False)
class Backward:
    """A derivative that is made to run: its kernels, and which gradients it stores."""

    derived: Derived
    kernel: Any
    counter: Any
    stored: frozenset[str]


class Operator:
    """A kernel with its derivative. Called with all arguments of the kernel but its outputs."""

    def __init__(
        self, kernel: Any, grid: Grid, outputs: Outputs, backward: Any, options: Mapping[str, Any]
    ) -> None:
        self.kernel = kernel
        self.jit = jitted(kernel, "pb.triton.op")
        self.grid = grid
        self.outputs = _named(outputs)
        self.given = backward
        self.options = dict(options)
        names = list(self.jit.arg_names)
        if wrong := [n for n in self.outputs if n not in names]:
            what = f"pb.triton.op: {self.jit.__name__} takes no {wrong[0]!r}: {', '.join(names)}"
            raise ArgumentError(what, code="E425")
        self.replaced = [n for n, how in self.outputs.items() if how == n]
        self.takes = [n for n in names if n not in self.outputs or n in self.replaced]
        self.constants = {p.name for p in self.jit.params if p.is_constexpr}
        self.made: dict[Any, Backward] = {}
        self.read: dict[Any, Function] = {}
        self.watching: dict[Any, tuple[Any, tuple[str, ...], tuple[str, ...]]] = {}
        self.products: dict[Any, Tiled] = {}
        self.apart: set[Any] = set()  # numbers and grids for which stores are apart
        self.second: dict[Backward, Operator] = {}

    def __call__(self, *values: Any, **named: Any) -> Any:
        """The outputs of the kernel; of several a tuple."""
        call = self.call(values, named)
        inputs = {n: v for n, v in call.tensors.items() if n in self.takes}
        inputs |= call.before
        grown = [n for n, v in inputs.items() if v.requires_grad]
        if grown and torch.is_grad_enabled():  # what is wrong is said here, and not in a backward
            for name in grown:
                _apart(inputs[name])
            if self.given is None:
                call = replace(call, replaced=self.sound(call))
                self.backward(call, tuple(grown))
        made = _Run.apply(self, call, tuple(inputs), *inputs.values())
        return made[0] if len(made) == 1 else made

    def call(self, values: Sequence[Any], named: Mapping[str, Any]) -> Call:
        """All arguments by name, outputs made new.

        Raises: ArgumentError (E425) for one that is missing, twice given or not known.
        """
        who = f"pb.triton.op: {self.jit.__name__}"
        given = dict(zip(self.takes, values, strict=False))
        if len(values) > len(self.takes) or given.keys() & named.keys():
            raise ArgumentError(f"{who} takes {', '.join(self.takes)}", code="E425")
        given |= named
        for parameter in self.jit.params:
            if parameter.has_default and parameter.name in self.takes:
                given.setdefault(parameter.name, parameter.default)
        missing, more = set(self.takes) - given.keys(), given.keys() - set(self.takes)
        if missing or more:
            word = "needs" if missing else "takes no"
            raise ArgumentError(f"{who} {word} {sorted(missing or more)[0]!r}", code="E425")
        for value in given.values():
            if isinstance(value, torch.Tensor):
                _placed(who, value)
        made = {n: self.output(how, given, who) for n, how in self.outputs.items()}
        before = {n: given[n] for n in self.replaced}
        every = {n: (given | made)[n] for n in self.jit.arg_names}
        grid = tuple(self.grid(every) if callable(self.grid) else self.grid)
        one, two, three = (*grid, 1, 1, 1)[:3]
        return Call(every, (one, two, three), before)

    def output(self, how: Any, given: Mapping[str, Any], who: str) -> Any:
        """A new tensor: like an argument, or what a function of all arguments gives."""
        if callable(how):
            return how(given)
        like = given.get(how) if how else next(
            (v for v in given.values() if isinstance(v, torch.Tensor)), None
        )  # fmt: skip
        if not isinstance(like, torch.Tensor):
            raise ArgumentError(f"{who}: an output like {how!r}, which is no tensor", code="E425")
        return _copied(like) if how in self.replaced else torch.empty_like(like)

    def launch(self, kernel: Any, call: Call, arguments: Mapping[str, Any]) -> None:
        """One launch on the grid of a call."""
        plain = {n: v.detach() if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
        kernel[call.grid](**plain, **self.options)

    # --- the derivative ---------------------------------------------------------------------------

    def source(self, *values: Any, wrt: Sequence[str] | None = None, **named: Any) -> str:
        """The text of the derivative's kernel for these arguments."""
        call = self.call(values, named)
        self.separated(call)
        chosen = tuple(wrt) if wrt is not None else self.floats(call)
        tiled = self.tiled(call, chosen, self.outputs)
        head = "".join(f"# {line}\n" for line in tiled.lines)
        rest = tuple(n for n in chosen if n not in tiled.targets)
        if tiled.targets and not rest and not tiled.factors:
            return head
        return head + self.backward(call, rest, factors=tiled.factors).derived.kernel.text

    def floats(self, call: Call) -> tuple[str, ...]:
        """The inputs that may have a gradient."""
        tensors = call.tensors.items()
        return tuple(n for n, v in tensors if is_float(v) and n in self.takes)

    def backward(
        self,
        call: Call,
        wrt: tuple[str, ...],
        behind: Iterable[str] | None = None,
        factors: tuple[Factor, ...] = (),
    ) -> Backward:
        """The derivative for arguments of these types, made once.

        `behind` are the outputs from which something comes from behind: all, if it is left out.
        `factors` are stored for products that are tiled again.

        Raises: UnsupportedError (E423, E430), GradientError (E424).
        """
        if eighth := [n for n in wrt if call.arguments[n].dtype in EIGHTH]:
            what = f"{self.jit.__name__}: the elements of {eighth[0]} have 8 bits and no derivative"
            raise UnsupportedError(what, code="E430")
        key, function = self.function(call)
        reach = _reach(function, call)
        replaced = self.read_first(call) if call.replaced is None else call.replaced
        stored = frozenset(n for n in wrt if n not in replaced and reach.owns(n))
        silent = frozenset(self.outputs) - frozenset(self.outputs if behind is None else behind)
        apart = _numbered(key, call) in self.apart  # what is replaced is read too, and not alone
        once = frozenset(n for n in self.outputs if reach.once(n) or (apart and reach.alone(n)))
        every = frozenset(n for n in once if reach.whole(n))
        lanes = counted(reach)
        whole = (key, wrt, silent, stored, replaced, once, every, lanes, factors)
        if whole not in self.made:
            wanted = Wanted(
                frozenset(wrt), frozenset(self.outputs), silent, stored, replaced, once, every,
                lanes, factors,
            )  # fmt: skip
            made = derived(function, wanted)
            folder = Options().cache
            counter = loaded(made.counter, folder) if made.counter else None
            self.made[whole] = Backward(made, loaded(made.kernel, folder), counter, stored)
        return self.made[whole]

    def function(self, call: Call) -> tuple[Any, Function]:
        """The kernel for arguments of these types, and by what it is known."""
        types = {n: _type(v) for n, v in call.arguments.items() if n not in self.constants}
        types = {n: t for n, t in types.items() if t}
        constants = {n: v for n, v in call.arguments.items() if n not in types}
        key = (tuple(types.items()), tuple((n, repr(v)) for n, v in constants.items()))
        if key not in self.read:
            self.read[key] = by_pointers(function_of(self.kernel, types, constants))
        return key, self.read[key]

    def sound(self, call: Call) -> frozenset[str]:
        """The arguments that are read first, of a call whose derivative a kernel computes.

        Raises: UnsupportedError (E429) for a product that the interpreter makes of bits,
        GradientError (E431) where an output has a place that is stored by several at once.
        """
        if interpreted and (product := products(self.function(call)[1])):
            raise unjudged(self.jit.__name__, product)
        self.separated(call)
        return self.read_first(call)

    def separated(self, call: Call) -> None:
        """Raises: GradientError (E431) where an output has a place that several store at once."""
        key, function = self.function(call)
        whole = _numbered(key, call)
        if whole not in self.apart and self.stored_apart(call, key, _reach(function, call)):
            self.apart.add(whole)

    def stored_apart(self, call: Call, key: Any, reach: Reach) -> bool:
        """Each place of an output is stored by one program, and by one lane at a time.

        It is proved for the numbers and the grid of a call, or found out: for those too, where no
        place depends on an element of an array, and else for this call alone, which gives False.

        Raises: GradientError (E431).
        """
        floats = [n for n, v in call.tensors.items() if n in self.outputs and is_float(v)]
        fresh = [n for n in floats if n not in self.replaced and reach.stores(n)]
        names = tuple(n for n in fresh if not reach.separate(n))
        if not names:
            return True
        shared, moves = self.shared(call, key, reach, names)
        if shared:
            what = f"{self.jit.__name__} stores a place of {shared[0]} several times at once"
            raise GradientError(what, code="E431")
        return not moves

    def read_first(self, call: Call) -> frozenset[str]:
        """The arguments of which no element is read after it is written.

        It is proved for the numbers and the grid of a call, or found out for its elements.
        """
        if not self.replaced:
            return frozenset()
        key, function = self.function(call)
        reach = _reach(function, call)
        proved = frozenset(n for n in self.replaced if reach.replaces(n))
        return proved | self.watched(call, key, reach, proved)

    def watched(self, call: Call, key: Any, reach: Reach, proved: frozenset[str]) -> frozenset[str]:
        """Of the rest those for which a kernel finds no element that is read too late."""
        kinds = {n: {o.name for o in reach.touching(n)} for n in self.replaced if n not in proved}
        names = tuple(n for n, own in kinds.items() if own == {"tt.load", "tt.store"})
        if not names:
            return frozenset()
        wrong, _ = self.shared(call, key, reach, names)
        return frozenset(names) - {*wrong}

    def shared(
        self, call: Call, key: Any, reach: Reach, names: tuple[str, ...]
    ) -> tuple[list[str], bool]:
        """Those in which a kernel finds an element that is read too late, or stored by several.

        With it, whether the places depend on any element of an array.
        """
        if (key, names) not in self.watching:
            source, takes = watching(reach.facts.function, names)
            kernel = loaded(source, Options().cache)
            self.watching[key, names] = kernel, source.arguments, takes
        kernel, arguments, takes = self.watching[key, names]
        like = [_alike(call.before.get(n, call.arguments[n]), torch.int32) for n in names]
        marks = [t for own in like for t in (own, torch.full_like(own, NEVER), own - 1)]
        late = torch.zeros(len(names), dtype=torch.int32, device=like[0].device)
        given = {**call.arguments, **call.before, **dict(zip(takes, [*marks, late], strict=True))}
        self.launch(kernel, call, {n: given[n] for n in arguments})
        shared = [
            ((least != most) & (stored != 0)).any()
            for stored, least, most in zip(*(iter(marks),) * 3, strict=True)
        ]
        wrong = (torch.stack(shared) | (late != 0)).tolist()
        moves = any(n in call.tensors for n in arguments if n not in takes)
        return [n for n, late in zip(names, wrong, strict=True) if late], moves

    def tiled(self, call: Call, wrt: tuple[str, ...], behind: Iterable[str]) -> Tiled:
        """The products of a call's derivative that are tiled again, for its numbers and grid."""
        key, function = self.function(call)
        numbers, outputs = _numbers(call), frozenset(behind)
        whole = (key, tuple(numbers.items()), call.grid, wrt, outputs)
        if whole not in self.products:
            self.products[whole] = tiled(
                Facts.of(function), numbers, call.grid, wrt, outputs, frozenset(self.replaced)
            )
        return within(self.products[whole], {**call.arguments, **call.before})

    def gradients(
        self, call: Call, wrt: tuple[str, ...], cotangents: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The gradients of inputs, of what comes from behind for outputs: of others nothing."""
        if self.given is not None:
            made_of = {n: torch.zeros_like(call.arguments[n]) for n in self.outputs}
            return dict(self.given(call.arguments, made_of | dict(cotangents)))
        if call.replaced is None:
            call = replace(call, replaced=self.sound(call))
        again = self.tiled(call, wrt, cotangents)
        rest = tuple(n for n in wrt if n not in again.targets)
        factors = {p.factor.total.name: self.factor(call, p, cotangents) for p, _ in again.products}
        grown = {}
        if rest or again.factors:
            grown = self.launched(call, rest, cotangents, again.factors, factors)
        return grown | contracted(again, {**call.arguments, **call.before}, factors)

    def factor(self, call: Call, product: Product, cotangents: Mapping[str, Any]) -> Any:
        """What comes from behind a sum of products, or an array for it: it lies as its output."""
        like = call.arguments[product.arrays[2]]
        if not product.behind:
            return _alike(like, TAPES[product.factor.element])
        behind = cotangents[product.behind]
        same = behind.stride() == like.stride() and behind.dtype == like.dtype
        return behind.detach() if same else _alike(like, like.dtype).copy_(behind)

    def launched(
        self,
        call: Call,
        wrt: tuple[str, ...],
        cotangents: Mapping[str, Any],
        factors: tuple[Factor, ...],
        behind: Mapping[str, Any],
    ) -> dict[str, Any]:
        """The gradients that a kernel gives, which stores the factors of products."""
        backward = self.backward(call, wrt, cotangents, factors)
        made = backward.derived
        arguments = {**call.arguments, **call.before}
        arguments |= {name: behind[total] for total, name in made.factors.items()}
        grown = {}
        for of, name in made.gradients.items():
            like = call.arguments[of]
            if of in self.outputs:
                arguments[name] = _alike(like, like.dtype)
                if of in cotangents:
                    arguments[name].copy_(cotangents[of])
                if of in wrt:
                    grown[of] = arguments[name]
                continue
            exact = of in backward.stored or like.dtype not in HALF
            grown[of] = arguments[name] = _alike(like, like.dtype if exact else torch.float32)
        if made.tapes:
            arguments |= self.tapes(call, backward)
        self.launch(backward.kernel, call, {n: arguments[n] for n in made.kernel.arguments})
        zeros = {n: torch.zeros_like(call.arguments[n]) for n in wrt if n not in grown}
        return zeros | {n: v.to(call.arguments[n].dtype) for n, v in grown.items()}

    def differentiable(
        self, call: Call, wrt: tuple[str, ...], cotangents: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The gradients as results of an operator: the kernel that gives them has a derivative too.

        Raises: UnsupportedError (E423) where that kernel keeps what it needs on a tape, or writes
        over what it reads; what the derivative of a kernel raises.
        """
        if self.given is not None:
            return self.ended(call, self.gradients(call, wrt, cotangents))
        backward = self.backward(call, wrt, cotangents)
        made, who = backward.derived, self.jit.__name__
        both = [n for n in made.gradients if n in self.replaced]
        if made.tapes or both:
            why = f"{both[0]} is written over" if both else "it keeps steps of loops on a tape"
            raise UnsupportedError(f"no second derivative of {who}: {why}", code="E423")
        arguments = {**call.arguments, **call.before}
        given = {n: arguments[n] for n in made.kernel.arguments if n in arguments}
        outputs: dict[str, Any] = {}
        for of, name in made.gradients.items():
            like = call.arguments[of]
            if of in self.outputs:
                given[name] = _alike(like, like.dtype).copy_(cotangents[of])
            else:
                exact = of in backward.stored or like.dtype not in HALF
                kind = like.dtype if exact else torch.float32
                outputs[name] = lambda _, like=like, kind=kind: _alike(like, kind)
        if backward not in self.second:
            self.second[backward] = Operator(
                backward.kernel, call.grid, outputs, None, self.options
            )
        operator = self.second[backward]
        operator.grid, operator.outputs = call.grid, outputs
        results = operator(**given)
        results = (results,) if len(outputs) == 1 else results
        grown = dict(zip(outputs, results, strict=True))
        types = {of: call.arguments[of].dtype for of in wrt}
        names = {of: made.gradients.get(of) for of in wrt}
        return {of: grown[n].to(types[of]) for of, n in names.items() if n is not None}

    def ended(self, call: Call, grown: Mapping[str, Any]) -> dict[str, Any]:
        """Gradients; one that a backward gave without a derivative of its own says so, if asked."""
        tensors = [*call.tensors.values(), *(v for v in call.before.values())]
        anchor = next((v for v in tensors if v.requires_grad), None)
        who = self.jit.__name__
        return {
            n: v if v is None or v.requires_grad or anchor is None else _Ended.apply(who, anchor, v)
            for n, v in grown.items()
        }

    def tapes(self, call: Call, backward: Backward) -> dict[str, Any]:
        """What loops carried is kept here: first it is counted how often they run."""
        made = backward.derived
        assert made.counter is not None, "tapes have a length"
        device = next(iter(call.tensors.values())).device
        trips = torch.zeros(1, dtype=torch.int32, device=device)
        arguments = {**call.arguments, "trips": trips}
        self.launch(backward.counter, call, {n: arguments[n] for n in made.counter.arguments})
        length = max(1, int(trips.item()))
        programs = call.grid[0] * call.grid[1] * call.grid[2]
        tapes: dict[str, Any] = {
            name: torch.empty(programs * length * size, dtype=TAPES[element], device=device)
            for name, (size, element) in made.tapes.items()
        }
        return tapes | {"tape_length": length}


class _Run(torch.autograd.Function):  # type: ignore[misc]
    """One call, for PyTorch's autograd."""

    @staticmethod
    def forward(ctx: Any, operator: Operator, call: Call, names: tuple[str, ...], *_: Any) -> Any:
        ctx.operator, ctx.call, ctx.names = operator, call, names
        operator.launch(operator.kernel, call, call.arguments)
        made = tuple(call.arguments[n] for n in operator.outputs)
        given = {**call.arguments, **call.before}
        ctx.save_for_backward(*made, *(given[n] for n in names))
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(t for t in made if not t.is_floating_point()))
        return made

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        operator, call = ctx.operator, ctx.call
        kept = dict(zip([*operator.outputs, *ctx.names], ctx.saved_tensors, strict=True))
        before = {n: kept[n] for n in call.before}
        arguments = {n: kept.get(n, v) for n, v in call.arguments.items()}
        call = replace(call, arguments=arguments, before=before)
        wrt = tuple(n for n, need in zip(ctx.names, ctx.needs_input_grad[3:], strict=True) if need)
        pairs = zip(operator.outputs, cotangents, strict=True)
        behind = {n: t for n, t in pairs if t is not None}
        twice = torch.is_grad_enabled()  # a derivative of the derivative may be asked for
        grown = (operator.differentiable if twice else operator.gradients)(call, wrt, behind)
        return (None, None, None, *(grown.get(n) for n in ctx.names))


class _Ended(torch.autograd.Function):  # type: ignore[misc]
    """A gradient that has no derivative."""

    @staticmethod
    def forward(ctx: Any, who: str, _: Any, gradient: Any) -> Any:
        ctx.who = who
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        why = "its backward gives a gradient that has no derivative"
        raise UnsupportedError(f"no second derivative of {ctx.who}: {why}", code="E423")


def op(
    kernel: Any,
    *,
    grid: Grid,
    outputs: Outputs,
    backward: Callable[[Mapping[str, Any], Mapping[str, Any]], Mapping[str, Any]] | None = None,
    **options: Any,
) -> Operator:
    """A whole `@triton.jit` kernel as an operator of PyTorch's, which has its derivative.

    `outputs` names the pointers that the kernel writes: a name alone is a tensor like the first
    argument, `{"Y": "X"}` one like `X`, `{"Y": make}` what `make` gives of all arguments by name;
    `{"X": "X"}` is an argument that the kernel reads and then writes: it is left as it is, and a
    copy of it is written and given back.
    `grid` is a tuple, or a function of all arguments by name. `backward` stands in for the
    derivative: a function of all arguments, and of what comes from behind for each output, which
    gives the gradients by name. `options` go to each launch (`num_warps`).

    Raises: ArgumentError (E421, E425) for what does not fit; of the derivative, when it is asked
    for: UnsupportedError (E422, E423), GradientError (E424).

    Example:
        add = pb.triton.op(add_kernel, grid=lambda a: (triton.cdiv(a["n"], 128),), outputs="Y")
        y = add(x, z, n, BLOCK=128)
    """
    return Operator(kernel, grid, outputs, backward, options)


def is_float(value: Any) -> bool:
    """Whether elements may have a derivative."""
    is_tensor = isinstance(value, torch.Tensor)
    return is_tensor and value.is_floating_point() and value.dtype not in EIGHTH


def _named(outputs: Outputs) -> dict[str, Any]:
    if isinstance(outputs, str):
        return {outputs: ""}
    return dict(outputs) if isinstance(outputs, Mapping) else dict.fromkeys(outputs, "")


def _numbered(key: Any, call: Call) -> Any:
    """By what it is known whether the stores of a call are apart."""
    numbers = tuple((n, v) for n, v in call.arguments.items() if isinstance(v, int | float))
    return key, numbers, call.grid


def _reach(function: Function, call: Call) -> Reach:
    return Reach(Facts.of(function), _numbers(call), call.grid)


def _numbers(call: Call) -> dict[str, int]:
    return {n: v for n, v in call.arguments.items() if isinstance(v, int)}


def _placed(who: str, tensor: Any) -> None:
    """Raises: DeviceError (E427) where no kernel can reach the tensor."""
    kind = tensor.device.type
    if kind not in ("cpu", "cuda", "xpu") or (kind == "cpu" and not interpreted):
        raise DeviceError(f"{who}: a tensor on {kind}, where no kernel runs", code="E427")


def _type(value: Any) -> str:
    """The type of an argument in a signature; nothing of what is no tensor and no number."""
    if isinstance(value, torch.Tensor):
        if value.dtype not in TYPES:
            kind = str(value.dtype).removeprefix("torch.")
            raise ArgumentError(f"pb.triton.op: elements of {kind}: no type here", code="E425")
        return f"*{TYPES[value.dtype]}"
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32" if isinstance(value, float) else ""


def _apart(tensor: Any) -> int:
    """How far the elements of a tensor reach.

    Raises: GradientError (E428) where some share their places.
    """
    sizes, strides = tuple(tensor.shape), tuple(tensor.stride())
    reach = 0
    for stride, size in sorted(zip(strides, sizes, strict=True)):
        if size > 1 and stride <= reach:
            what = f"elements of a tensor of strides {strides} share their places"
            raise GradientError(what, code="E428")
        reach += stride * (max(size, 1) - 1)
    return reach


def _copied(tensor: Any) -> Any:
    return torch.empty_like(tensor.detach()).copy_(tensor.detach())


def _alike(tensor: Any, dtype: Any) -> Any:
    """Zeros that lie as a tensor does."""
    room = torch.zeros(_apart(tensor) + 1, dtype=dtype, device=tensor.device)
    return room.as_strided(tensor.shape, tensor.stride())
