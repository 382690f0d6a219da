"""Kernels of public libraries, differentiated: which are, which are refused and why, and the cost.

    python scripts/triton_corpus.py PLACE [--only NAME] [--json FILE]

`PLACE` is a checkout of attorch or of Liger-Kernel; nothing of it is copied. Its layers run on
Triton's interpreter; each kernel that they launch is taken as it was launched, with its arguments,
and differentiated: the derivative is certified by differences by all that the kernel reads
(`pb.triton.check`). Beside it stands the kernel that the library's authors wrote for the backward,
where the layer has one: operations of arithmetic, loads, stores and atomic additions, as Triton's
compiler counts them, of the derivative by what the layer is differentiated by, of what it gives.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import torch
import triton
from triton.runtime.interpreter import InterpretedFunction

import pullback as pb
from pullback.errors import PullbackError
from pullback.triton.facts import Facts
from pullback.triton.frontend import function_of
from pullback.triton.nodes import Function
from pullback.triton.operator import TAPES, _type

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from triton_library import on_the_interpreter

Case = tuple[str, Callable[[], Any]]
COUNTED = {"loads": "tt.load", "stores": "tt.store", "atomics": "tt.atomic_rmw"}


# --- what is launched -----------------------------------------------------------------------------


class _Number(float):
    """A number that a kernel may cast, as it may where it is compiled."""

    def to(self, _: Any) -> _Number:
        return self


class Launches:
    """The launches of kernels while layers run: each kernel, its grid and its arguments."""

    def __init__(self) -> None:
        self.made: dict[Any, tuple[tuple[int, ...], dict[str, Any]]] = {}
        self.rooms: dict[Any, dict[str, int]] = {}  # where the tensors of each launch are
        self.run = InterpretedFunction.run
        launches = self

        def run(kernel: Any, *args: Any, grid: Any, warmup: bool = False, **named: Any) -> Any:
            given = dict(zip(kernel.arg_names, args, strict=False)) | named
            given = {n: given[n] for n in kernel.arg_names if n in given}
            sizes = grid(given) if callable(grid) else grid
            kept = {n: _copy(v) for n, v in given.items()}
            launches.made[kernel] = (tuple(int(k) for k in sizes), kept)
            tensors = {n: v for n, v in given.items() if isinstance(v, torch.Tensor)}
            launches.rooms[kernel] = {n: _room(v) for n, v in tensors.items()}
            args = tuple(_Number(v) if type(v) is float else v for v in args)
            named = {n: _Number(v) if type(v) is float else v for n, v in named.items()}
            return launches.run(kernel, *args, grid=grid, warmup=warmup, **named)

        InterpretedFunction.run = run

    def of(self, act: Callable[[], Any]) -> tuple[Any, dict[Any, Any]]:
        """What `act` gives and the last launch of each kernel that it launches."""
        self.made = {}
        result = act()
        return result, self.made


def _room(tensor: Any) -> int:
    return int(tensor.untyped_storage().data_ptr())


def leaves(node: Any) -> Iterator[Any]:
    """The tensors that a graph of autograd's begins with."""
    if node is None:
        return
    if hasattr(node, "variable"):
        yield node.variable
    for other, _ in node.next_functions:
        yield from leaves(other)


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_like(value.detach()).copy_(value.detach())


def first_choice(configs: Any, key: Any, **_: Any) -> Callable[[Any], Any]:
    """In place of tuning: the first configuration."""

    def chosen(kernel: Any) -> Any:
        own = {n: lambda _, v=v: v for n, v in configs[0].kwargs.items()}
        made = triton.heuristics(own)(kernel)
        made.best_config = configs[0]
        return made

    return chosen


# --- one kernel -----------------------------------------------------------------------------------


def constants_of(kernel: Any, given: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    """The types of what a kernel takes, and its constants."""
    from pullback.triton.frontend import jitted

    fixed = {p.name for p in jitted(kernel, "corpus").params if p.is_constexpr}
    types = {n: _type(v) for n, v in given.items() if n not in fixed}
    types = {n: t for n, t in types.items() if t}
    return types, {n: v for n, v in given.items() if n not in types}


def counted(function: Function) -> collections.Counter[str]:
    """Operations of floats, and of memory."""
    count: collections.Counter[str] = collections.Counter()
    for o in function.block.walk():
        floats = any(v.type.is_float for v in o.results)
        if floats and (o.name.startswith(("arith.", "math.", "tt.precise", "tt.dot", "tt.extern"))):
            count["operations"] += o.name != "arith.constant"
        count["operations"] += o.name in ("tt.reduce", "tt.scan")
        for key, name in COUNTED.items():
            count[key] += o.name == name
    return count


def tried(
    kernel: Any, grid: tuple[int, ...], given: dict[str, Any], inner: set[str], outer: set[str]
) -> dict[str, Any]:
    """What becomes of one kernel; `inner` and `outer`: by what of its arguments and of which."""
    types, constants = constants_of(kernel, given)
    facts = Facts.of(function_of(kernel, types, constants))
    written: dict[str, None] = {}
    read = {
        facts.bases[o.operands[0]].name for o in facts.function.block.walk() if o.name == "tt.load"
    }
    for o in facts.function.block.walk():
        if o.name in ("tt.store", "tt.atomic_rmw"):
            written[facts.bases[o.operands[0]].name] = None
    inputs = {
        n for n, v in given.items()
        if isinstance(v, torch.Tensor) and v.is_floating_point() and (n not in written or n in read)
    }  # fmt: skip
    outputs = {n: n if n in read else lambda _, n=n: _copy(given[n]) for n in written}
    for name in given.keys() - read - written.keys():  # it may hold anything
        if isinstance(given[name], torch.Tensor):
            given[name].zero_()
    f = pb.triton.op(kernel, grid=grid, outputs=outputs)
    rest = {n: given[n] for n in f.takes}
    if not inputs or not any(given[n].is_floating_point() for n in written):
        return {"state": "nothing to derive"}
    report = pb.triton.check(f, *rest.values(), tolerance=2e-2)
    floats = f.floats(f.call((), rest))
    wrt = tuple(n for n in floats if n in inner) or floats
    backward = f.backward(f.call((), rest), wrt, outer & written.keys() or written)
    call = dict(given) | {"tape_length": 1}
    names = backward.derived.gradients
    call |= {name: given[of] for of, name in names.items()}
    kinds = {n: TAPES[element] for n, (_, element) in backward.derived.tapes.items()}
    call |= {n: torch.empty(1, dtype=kind) for n, kind in kinds.items()}
    call = {n: call[n] for n in backward.derived.kernel.arguments}
    own = counted(function_of(backward.kernel, *constants_of(backward.kernel, call)))
    return {"state": "derived", "error": max(report.differences.values(), default=0.0), **own}


def outcome(kernel: Any, launch: tuple[Any, ...], *between: set[str]) -> dict[str, Any]:
    try:
        return tried(kernel, *launch, *between)
    except PullbackError as error:
        state = "wrong" if error.code == "E426" else "refused"
        return {"state": state, "why": str(error).splitlines()[0]}


def layer(name: str, run: Callable[[], Any], launches: Launches) -> list[dict[str, Any]]:
    """A row for each kernel of a layer's forward; of its own backward the counts."""
    with on_the_interpreter():
        made, forward = launches.of(run)
        every = made if isinstance(made, tuple) else (made,)
        made, rooms = every[0], launches.rooms
        ends = {_room(t) for t in every if isinstance(t, torch.Tensor)}
        begins = {_room(t) for t in leaves(made.grad_fn)}
        inner = {k: {n for n, room in rooms[k].items() if room in begins} for k in forward}
        outer = {k: {n for n, room in rooms[k].items() if room in ends} for k in forward}
        hand: dict[str, int] | None = None
        try:
            _, backward = launches.of(made.sum().backward)
            own: collections.Counter[str] = collections.Counter()
            for kernel, (_, given) in backward.items():
                own += counted(function_of(kernel, *constants_of(kernel, given)))
            hand = dict(own)
        except Exception as error:  # the library's own, on this machine
            print(f"  {name}: its own backward: {type(error).__name__}: {error}"[:160])
        return [
            {"layer": name, "kernel": kernel.__name__, "hand": hand}
            | outcome(kernel, launch, inner[kernel], outer[kernel])
            for kernel, launch in forward.items()
        ]


# --- attorch --------------------------------------------------------------------------------------


def _input(*shape: int) -> Any:
    return torch.randn(shape, requires_grad=True)


def _anywhere(make: Callable[..., Any]) -> Callable[..., Any]:
    """A function of PyTorch's that makes tensors, on this machine whatever it is told."""

    def made(*args: Any, **named: Any) -> Any:
        return make(*args, **{n: v for n, v in named.items() if n != "device"})

    return made


def _apart() -> Any:
    """Elements that are not near the kinks of activations."""
    return torch.linspace(-2.9, 2.9, 60).reshape(3, 20).requires_grad_()


def attorch() -> list[Case]:
    torch.cuda.get_device_capability = lambda *_: (9, 0)  # type: ignore[assignment]
    for name in ("empty", "zeros", "ones", "full"):  # some layers name the device
        setattr(torch, name, _anywhere(getattr(torch, name)))
    nn = importlib.import_module("attorch")
    plain = ("Sigmoid", "LogSigmoid", "Tanh", "ReLU", "GELU", "SiLU", "ReLU6", "Hardsigmoid",
             "Hardtanh", "Hardswish", "SELU", "Mish", "Softplus", "Softsign", "Tanhshrink",
             "LeakyReLU", "ELU", "CELU", "Hardshrink", "Softshrink")  # fmt: skip
    cases: list[Case] = [
        (n, lambda n=n: getattr(nn, n)()(_apart())) for n in plain if hasattr(nn, n)
    ]
    target = torch.randint(0, 10, (6,))
    cases += [
        ("BatchNorm1d", lambda: nn.BatchNorm1d(4, device="cpu")(_input(6, 4))),
        ("BatchNorm2d", lambda: nn.BatchNorm2d(3, device="cpu")(_input(4, 3, 3, 3))),
        ("LayerNorm", lambda: nn.LayerNorm(300, device="cpu")(_input(5, 300))),
        ("RMSNorm", lambda: nn.RMSNorm(300, device="cpu")(_input(5, 300))),
        ("Linear", lambda: nn.Linear(20, 24, device="cpu")(_input(17, 20))),
        ("Linear, GELU", lambda: nn.Linear(20, 24, act_func="gelu", device="cpu")(_input(17, 20))),
        ("Conv2d", lambda: nn.Conv2d(2, 3, 3, device="cpu")(_input(2, 2, 6, 6))),
        ("AvgPool2d", lambda: nn.AvgPool2d(2)(_input(2, 2, 6, 6))),
        ("GLU", lambda: nn.GLU()(_input(4, 20))),
        ("Dropout", lambda: nn.Dropout(0.3)(_input(4, 20))),
        ("Softmax", lambda: nn.Softmax(dim=-1)(_input(4, 20))),
        ("LogSoftmax", lambda: nn.LogSoftmax(dim=-1)(_input(4, 20))),
        ("Softmin", lambda: nn.Softmin(dim=-1)(_input(4, 20))),
        ("CrossEntropyLoss", lambda: nn.CrossEntropyLoss()(_input(6, 10), target)),
        ("NLLLoss", lambda: nn.NLLLoss()(_input(6, 10), target)),
        ("L1Loss", lambda: nn.L1Loss()(_input(40), torch.randn(40) + 9)),
        ("MSELoss", lambda: nn.MSELoss()(_input(40), torch.randn(40))),
        ("SmoothL1Loss", lambda: nn.SmoothL1Loss()(_input(40), torch.randn(40))),
        ("HuberLoss", lambda: nn.HuberLoss()(_input(40), torch.randn(40))),
    ]
    return cases


# --- Liger-Kernel ---------------------------------------------------------------------------------

LIGER: dict[str, tuple[str, Callable[[], tuple[Any, ...]]]] = {
    "layer_norm": (
        "LigerLayerNormFunction",
        lambda: (_input(4, 300), _input(300), _input(300), 1e-5),
    ),
    "rms_norm": ("LigerRMSNormFunction", lambda: (_input(4, 300), _input(300), 1e-5)),
    "fused_add_rms_norm": (
        "LigerFusedAddRMSNormFunction",
        lambda: (_input(4, 20), _input(4, 20), _input(20), 1e-5),
    ),
    "group_norm": (
        "LigerGroupNormFunction",
        lambda: (_input(2, 4, 10), _input(4), _input(4), 4, 2, 1e-5),
    ),
    "swiglu": ("LigerSiLUMulFunction", lambda: (_input(4, 20), _input(4, 20))),
    "geglu": ("LigerGELUMulFunction", lambda: (_input(4, 20), _input(4, 20))),
    "relu_squared": ("LigerReLUSquaredFunction", lambda: (_input(4, 20),)),
    "softmax": ("LigerSoftmaxFunction", lambda: (_input(4, 20),)),
    "sparsemax": ("LigerSparsemaxFunction", lambda: (_input(4, 20), -1)),
    "dyt": ("LigerDyTFunction", lambda: (_input(4, 20), _input(1), _input(20), _input(20))),
    "poly_norm": ("LigerPolyNormFunction", lambda: (_input(4, 20), _input(3), _input(1))),
    "tvd": (
        "LigerTVDLossFunction",
        lambda: (_input(4, 20).sigmoid() + 1.5, torch.rand(4, 20)),
    ),
    "kl_div": (
        "LigerKLDivLossFunction",
        lambda: (_input(4, 20).log_softmax(-1), torch.rand(4, 20) + 0.5),
    ),
    "jsd": (
        "LigerJSDFunction",
        lambda: (_input(4, 20).log_softmax(-1), torch.randn(4, 20).log_softmax(-1)),
    ),
    "cross_entropy": (
        "LigerCrossEntropyFunction",
        lambda: (_input(4, 20), torch.randint(0, 20, (4,)), None, -100, 0.0, 0.0, "mean", None),
    ),
    "rope": (
        "LigerRopeFunction",
        lambda: (_input(1, 2, 6, 8), _input(1, 1, 6, 8), *torch.randn(2, 1, 6, 8)),
    ),
    "llama4_rope": (
        "LigerLlama4RopeFunction",
        lambda: (_input(1, 6, 2, 8), _input(1, 6, 1, 8), torch.randn(6, 4, dtype=torch.complex64)),
    ),
    "qwen2vl_mrope": (
        "LigerQwen2VLMRopeFunction",
        lambda: (
            _input(1, 2, 6, 16), _input(1, 1, 6, 16), torch.randn(3, 1, 6, 16),
            torch.randn(3, 1, 6, 16), [2, 3, 3],
        ),
    ),
}  # fmt: skip


def liger() -> list[Case]:
    def case(name: str) -> Any:
        function, make = LIGER[name]
        module = importlib.import_module(f"liger_kernel.ops.{name}")
        return getattr(module, function).apply(*make())

    return [(name, lambda name=name: case(name)) for name in LIGER]


# --- the page -------------------------------------------------------------------------------------


def cases_of(place: Path) -> list[Case]:
    if (place / "attorch").is_dir():
        sys.path.insert(0, str(place))
        return attorch()
    sys.path.insert(0, str(place / "src"))
    return liger()


def shown(row: dict[str, Any]) -> str:
    head = f"{row['layer']:20} {row['kernel'][:38]:38} {row['state']:18}"
    if row["state"] != "derived":
        return f"{head} {row.get('why', '')}"
    hand = row["hand"]
    counts = (
        f"{key} {row[key]}|{'-' if hand is None else hand.get(key, 0)}"
        for key in ("operations", *COUNTED)
    )
    return f"{head} {row['error']:.0e}  {'  '.join(counts)}"


def summary(rows: list[dict[str, Any]]) -> str:
    """Of the kernels that have a handwritten backward which computes: both counts together."""
    own = [
        r for r in rows if r["state"] == "derived" and (r["hand"] or {}).get("operations", 0) > 1
    ]
    if not own:
        return "no kernel has a handwritten backward beside it"
    ratios = [r["operations"] / r["hand"]["operations"] for r in own]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    counts = [
        f"{key} {sum(r[key] for r in own)} | {sum(r['hand'].get(key, 0) for r in own)}"
        for key in ("operations", *COUNTED)
    ]
    above = [r["layer"] for r, ratio in zip(own, ratios, strict=True) if ratio > 1.5]
    lines = [f"{len(own)} beside a handwritten one: {', '.join(counts)}"]
    lines.append(f"operations: geometric mean {mean:.2f}; above 1.5: {', '.join(above) or 'none'}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("place", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--trace", action="store_true")
    given = parser.parse_args()
    triton.autotune = first_choice
    launches, rows = Launches(), list[dict[str, Any]]()
    for name, run in cases_of(given.place):
        if given.only not in name:
            continue
        torch.manual_seed(0)
        try:
            made = layer(name, run, launches)
        except Exception as error:
            if given.trace:
                traceback.print_exc()
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            made = [{"layer": name, "kernel": "", "state": "does not run", "why": why}]
        for row in made:
            print(shown(row), flush=True)
        rows += made
    print(dict(collections.Counter(row["state"] for row in rows)), "derived | written by hand")
    print(summary(rows))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
