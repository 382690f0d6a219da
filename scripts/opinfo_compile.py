"""PyTorch's own database of operators (OpInfo) through `torch.compile(backend="pullback")`.

`python scripts/opinfo_compile.py [--only NAME ..] [--every N] [--jobs N] [--samples N] [--type T]
[--check] [--write]`: two samples, or N, of every entry in float32, results and gradients beside
eager PyTorch's. An entry is
*right*, *fallback* (right, but PyTorch ran a part), *uncompiled* (PyTorch made no graph of it),
*wrong*, *crashed* or *slow*. The record is tests/opinfo_compile.txt: `--check` exits with 1 where
an entry got worse, `--write` writes it. Needs PyTorch and expecttest.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import warnings
from collections import Counter
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal import common_methods_invocations as database
from torch.utils._pytree import tree_leaves, tree_map

import pullback as pb

op_db = database.op_db
RECORD = Path(__file__).parent.parent / "tests" / "opinfo_compile.txt"
ORDER = ("right", "uncompiled", "fallback", "slow", "crashed", "wrong")
SECONDS = 45  # for a sample of an entry
UNSET = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided")
DRAWN = {
    "_native_dropout", "bernoulli", "cauchy", "exponential", "geometric", "log_normal",
    "multinomial", "nn.functional.alpha_dropout", "nn.functional.dropout",
    "nn.functional.dropout2d", "nn.functional.dropout3d", "nn.functional.feature_alpha_dropout",
    "nn.functional.fractional_max_pool2d", "nn.functional.fractional_max_pool3d",
    "nn.functional.rrelu", "normal", "rand_like", "randint", "randint_like", "randn", "randn_like",
    "uniform",
}  # fmt: skip
TIES = {"sort": 0, "argsort": 0, "topk": 1, "kthvalue": 1, "mode": 0}  # which argument is the axis
ORDERS = {*TIES, "msort"}
DRAWS, SIGMAS = 64, 6.0
FORWARD, BACKWARD = 1e-4, 1e-3
COARSE = {torch.float16: 2.0**-8, torch.bfloat16: 2.0**-5}  # eight units of the last place


def _plainly(op: Any, *args: Any, **kwargs: Any) -> Any:
    """What OpInfo calls with a seed of its own, which Dynamo does not trace; ours is set before."""
    return op(*args, **kwargs)


database.wrapper_set_seed = _plainly


def names(kind: str = "float32") -> list[str]:
    """The entries that have this type here."""
    return [_name(op) for op in op_db if getattr(torch, kind) in op.supported_dtypes("cpu")]


def _name(op: Any) -> str:
    return op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")


class Late(Exception):
    """An entry took too long."""


def _late(*_: Any) -> None:
    raise Late


def verdict(name: str, count: int = 2, kind: str = "float32") -> tuple[str, str, str]:
    """Of one entry, by `count` samples: its name, what it is, why."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS * count)
    try:
        return (name, *judged(name, count, kind))
    except Late:
        return name, "slow", ""
    except Exception as error:
        return name, "crashed", f"{type(error).__name__}: {error}".replace("\n", " ")[:200]
    finally:
        signal.alarm(0)


def judged(name: str, count: int = 2, kind: str = "float32") -> tuple[str, str]:
    """What an entry is, and why."""
    op = next(o for o in op_db if _name(o) == name)
    torch.manual_seed(0)
    element = getattr(torch, kind)
    slopes = op.supports_autograd and element in op.supported_backward_dtypes("cpu")
    samples = list(op.sample_inputs("cpu", element, requires_grad=slopes))
    picked = [samples[len(samples) * n // count] for n in range(count)]
    compiled, left = 0, set()
    for sample in picked:
        torch._dynamo.reset()
        wrong = _compared(op, sample, slopes)
        report = pb.torch.report()
        compiled += len(report.graphs)
        left |= {f"{one.operator}: {one.reason}" for one in report.fallbacks}
        if wrong:
            return "wrong", wrong
    if left:
        return "fallback", "; ".join(sorted(left))[:200]
    return ("right", "") if compiled else ("uncompiled", "")


def _compared(op: Any, sample: Any, slopes: bool) -> str:
    """What differs from eager, which writes into buffers of its own; or nothing."""

    def call(x: Any, rest: Any, named: Any) -> Any:
        return op.op(x, *rest, **named)

    given = sample.input, sample.args, sample.kwargs
    torch.manual_seed(0)
    eager = _tensors(call(*tree_map(_aside, given)))
    torch.manual_seed(0)
    run = torch.compile(call, backend=pb.torch.backend, dynamic=False)
    own = _tensors(run(*given))
    if op.name in DRAWN or _dropout(sample):
        return _drawn(own, eager, lambda: (_tensors(run(*given)), _tensors(call(*given))))
    if op.name in UNSET:
        return "" if [o.shape for o in own] == [e.shape for e in eager] else "shapes"
    pairs = zip(*(_untied(op, sample, row) for row in (own, eager)), strict=True)
    if not all(_near(o, e, FORWARD) for o, e in pairs):
        return "results"
    leaves = [t for t in _tensors((sample.input, sample.args)) if t.requires_grad]
    own, eager = ([r for r in row if r.requires_grad] for row in (own, eager))
    if not slopes or not eager or not leaves:
        return ""
    heads = [torch.randn_like(e) for e in eager]
    theirs = torch.autograd.grad(eager, leaves, heads, allow_unused=True)
    ours = torch.autograd.grad(own, leaves, heads, allow_unused=True)
    pairs = zip(ours, theirs, leaves, strict=True)
    if op.name in ORDERS and sample.input.unique().numel() < sample.input.numel():
        # which of equal elements has a head is promised as little as which comes first
        pairs = ((_sorted(o, x), _sorted(t, x), x) for o, t, x in pairs)
    same = [_near(_whole(o, x), _whole(t, x), BACKWARD) for o, t, x in pairs]
    return "" if all(same) else "gradients"


def _sorted(gradient: Any, x: Any) -> Any:
    return _whole(gradient, x).reshape(-1).sort().values.reshape(x.shape)


def _untied(op: Any, sample: Any, row: list[Any]) -> list[Any]:
    """What lies at places, where PyTorch promises no order of what is equal."""
    x, axis = sample.input, TIES.get(op.name)
    if axis is None or not x.ndim or sample.kwargs.get("stable"):
        return row
    dim = sample.kwargs.get("dim", sample.args[axis] if len(sample.args) > axis else -1)
    places = row[-1] if row[-1].ndim == x.ndim else row[-1].unsqueeze(dim)
    return [*row[:-1], x.detach().gather(dim, places)]


def _dropout(sample: Any) -> bool:
    """Whether attention drops: by name, or as the tenth argument of the function of many heads."""
    places = sample.args[9:10] if len(sample.args) > 10 else ()
    return any(isinstance(p, float) and p > 0 for p in (*places, sample.kwargs.get("dropout_p")))


def _drawn(own: list[Any], eager: list[Any], again: Any) -> str:
    """What differs in type, shape, mean or spread, over many calls."""
    if [(o.shape, o.dtype) for o in own] != [(e.shape, e.dtype) for e in eager]:
        return "shapes"
    rows = [again() for _ in range(DRAWS)]
    both = [torch.stack([_numbers(row[n]) for row in rows]) for n in (0, 1)]
    if not both[0].numel():
        return ""
    (a, spread), (b, other) = ((t.mean(), t.std()) for t in both)
    error = (spread + other) / both[0].numel() ** 0.5
    near = abs(float(a - b)) <= SIGMAS * float(error) + FORWARD * float(b.abs())
    return "" if near and float(spread) <= 2 * float(other) + FORWARD else "distribution"


def _numbers(tensors: list[Any]) -> Any:
    """All elements, bounded: some distributions have no mean."""
    flat = [t.detach().to(torch.float64).reshape(-1) for t in tensors]
    return torch.atan(torch.cat(flat) / 4) if flat else torch.zeros(0, dtype=torch.float64)


def _aside(value: Any) -> Any:
    """A copy of a buffer; what is differentiated is the same."""
    buffer = isinstance(value, torch.Tensor) and not value.requires_grad
    return value.clone() if buffer else value


def _tensors(tree: Any) -> list[Any]:
    return [t for t in tree_leaves(tree) if isinstance(t, torch.Tensor)]


def _whole(gradient: Any, x: Any) -> Any:
    return torch.zeros_like(x) if gradient is None else gradient


def _near(own: Any, eager: Any, tolerance: float) -> bool:
    if own.shape != eager.shape or own.dtype != eager.dtype:
        return False
    tolerance = max(tolerance, COARSE.get(eager.dtype, 0.0))
    kind = torch.complex128 if own.is_complex() else torch.float64
    a, b = (t.detach().to_dense().to(kind) for t in (own, eager))
    finite = b.abs()[b.abs().isfinite()]
    scale = max(1.0, float(finite.max()) if finite.numel() else 0.0)
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


def record() -> dict[str, str]:
    """What was recorded, by entry."""
    return {name: row.split("  ", 1)[0].split(" ")[1] for name, row in _rows()}


def _rows() -> list[tuple[str, str]]:
    """The rows of the record, by entry."""
    rows = RECORD.read_text(encoding="utf-8").splitlines() if RECORD.exists() else []
    return [(row.split(" ", 1)[0], row) for row in rows]


def _write(now: dict[str, tuple[str, str]]) -> None:
    """The record, with these entries anew."""
    rows = dict(_rows())
    rows.update({n: f"{n} {k}" + (f"  {why}" if why else "") for n, (k, why) in now.items()})
    RECORD.write_text("\n".join(rows[n] for n in sorted(rows)) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=2)
    parser.add_argument("--type", default="float32")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    asked = given.only or names(given.type)[:: given.every]
    before, now = record() if given.type == "float32" else {}, {}
    run = partial(verdict, count=given.samples, kind=given.type)
    with get_context("spawn").Pool(given.jobs, maxtasksperchild=40) as pool:
        for name, kind, why in pool.imap_unordered(run, asked):
            now[name] = (kind, why)
            if given.write and given.type == "float32":
                _write(now)
            if kind != "right":
                print(f"{name} {kind}  {why}".rstrip(), flush=True)
    print(dict(Counter(kind for kind, _ in now.values())))
    worse = [
        n for n, (k, _) in now.items() if n in before and ORDER.index(k) > ORDER.index(before[n])
    ]
    for name in worse:
        print(f"worse: {name} was {before[name]}, is {now[name][0]}")
    if given.check and worse:
        sys.exit(1)


if __name__ == "__main__":
    main()
