"""PyTorch's own database of operators (OpInfo) run through pullback's functions.

`python scripts/opinfo.py [--only NAME ..] [--samples N] [--jobs N] [--json FILE]`: for every entry,
its samples in float32: results and gradients against PyTorch's, and where they differ by more than
rounding, against PyTorch in float64. An entry is *right*, *refused* by a coded error, *wrong*,
*crashed* by any other error, or *absent*. Needs PyTorch and expecttest.
"""

from __future__ import annotations

import argparse
import json
import sys
import traceback
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import torch
from torch.testing._internal.common_methods_invocations import op_db

import opinfo_rules_more as more
import pullback as pb
from opinfo_rules import DRAWN, NO_SLOPE, RULES, LeftOut
from pullback.errors import InvalidIR, PullbackError

SAMPLES = 8  # of an entry, spread over all that it has
FORWARD, BACKWARD = 2e-4, 2e-3  # of the largest number, in float32


@dataclass(frozen=True)
class Verdict:
    """What became of an entry, and of which sample."""

    name: str
    what: str
    why: str = ""
    samples: int = 0


def entry_name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def mapped(value: Any, function: Any) -> Any:
    """`function` of every tensor in lists, tuples and mappings."""
    if isinstance(value, torch.Tensor):
        return function(value)
    if isinstance(value, dict):
        return {k: mapped(v, function) for k, v in value.items()}
    if isinstance(value, list | tuple) and not isinstance(value, torch.Size):
        return type(value)(mapped(v, function) for v in value)
    return tuple(value) if isinstance(value, torch.Size) else value


def ours(value: torch.Tensor) -> Any:
    plain = value.detach().resolve_conj().resolve_neg().contiguous()
    if plain.dtype == torch.bfloat16:
        return pb.tensor(plain.float().numpy()).astype("bfloat16")
    if plain.is_complex():
        return pb.Complex.of(plain.numpy())
    return pb.tensor(plain.numpy())


def flat(value: Any) -> list[Any]:
    """Results one after the other."""
    if isinstance(value, list | tuple):
        return [r for v in value for r in flat(v)]
    return [] if value is None else [value]


def array(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        value = value.detach().resolve_conj().resolve_neg()
        return (value.float() if value.dtype == torch.bfloat16 else value).numpy(force=True)
    if isinstance(value, pb.Tensor) and str(value.dtype) == "bfloat16":
        return value.astype("float32").numpy()
    return np.asarray(value.numpy() if hasattr(value, "numpy") else value)


def apart(got: Any, want: Any) -> float:
    """The largest difference, relative to the largest number above 1."""
    if got.shape != want.shape:
        return np.inf
    if not want.size:
        return 0.0
    if want.dtype.kind in "biu" or got.dtype.kind in "biu":
        return float(np.any(got != want)) * np.inf if np.any(got != want) else 0.0
    wide = "complex128" if want.dtype.kind == "c" or got.dtype.kind == "c" else "float64"
    got, want = got.astype(wide), want.astype(wide)
    same = (got == want) | (np.isnan(got) & np.isnan(want))
    if np.any(~same & ~(np.isfinite(got) & np.isfinite(want))):
        return np.inf
    away = np.abs(np.where(same, 0, got - np.where(same, got, want)))
    scale = np.max(np.abs(np.where(np.isfinite(want), want, 0)))
    return float(np.max(away) / max(1.0, float(scale)))


def leaves(sample: Any) -> list[torch.Tensor]:
    """Tensors of a sample that want a gradient."""
    listed: list[torch.Tensor] = []
    mapped([sample.input, list(sample.args), sample.kwargs], listed.append)
    unique = {id(t): t for t in listed if t.requires_grad and t.dtype.is_floating_point}
    return list(unique.values())


def process(name: str, sample: Any, out: Any) -> Any:
    function = getattr(more, "PROCESS", {}).get(name)
    return function(out) if function else out


def theirs(name: str, op: Any, sample: Any, wanted: list[torch.Tensor], heads: Any) -> Any:
    """PyTorch's results, and gradients by `wanted`; `heads` are made from the first results."""
    out = flat(process(name, sample, op(sample.input, *sample.args, **sample.kwargs)))
    tensors = [o for o in out if isinstance(o, torch.Tensor)]
    floats = [o for o in tensors if o.requires_grad]
    if not wanted or not floats:
        return out, None, None
    if heads is None:
        rng = np.random.default_rng(0)
        heads = [rng.uniform(-1, 1, tuple(o.shape)) for o in tensors]
    pairs = [
        (o, torch.tensor(h, dtype=o.dtype))
        for o, h in zip(tensors, heads, strict=True)
        if o.requires_grad and o.dtype.is_floating_point
    ]
    if not pairs:
        return out, None, None
    grads = torch.autograd.grad(
        [o for o, _ in pairs], wanted, [h for _, h in pairs], allow_unused=True
    )
    grads = [torch.zeros_like(w) if g is None else g for g, w in zip(grads, wanted, strict=True)]
    return out, grads, heads


def check(name: str, op: Any, sample: Any) -> str:
    """Raises: AssertionError where numbers differ, what ours raises, LeftOut to skip."""
    wanted = leaves(sample) if op.supports_autograd else []
    try:
        want, grads, heads = theirs(name, op, sample, wanted, None)
    except Exception as problem:
        raise LeftOut(str(problem)) from problem
    known: dict[int, Any] = {}

    def held(t: torch.Tensor) -> Any:
        return known.setdefault(id(t), ours(t))

    given = mapped([sample.input, list(sample.args), dict(sample.kwargs)], held)
    out = flat(process(name, sample, RULES[name](given[0], *given[1], **given[2])))
    got = [array(o) for o in out]
    plain = [array(w) for w in want]
    assert len(got) <= len(plain), f"{len(got)} results for {len(plain)}"
    if name in DRAWN:
        shapes = [g.shape for g in got], [w.shape for w in plain[: len(got)]]
        assert shapes[0] == shapes[1], f"shapes {shapes}"
        return ""
    worst = max((apart(g, w) for g, w in zip(got, plain, strict=False)), default=0.0)
    if worst > FORWARD:
        truth = exact(name, op, sample, wanted, heads)[0]
        worst = max(apart(g, w) for g, w in zip(got, truth, strict=False))
        assert worst <= FORWARD, f"values off by {worst:.1e}"
    if grads is None or name in NO_SLOPE:
        return ""
    weighed = [
        (o * pb.tensor(np.asarray(h, str(o.dtype)))).sum()
        for o, h in zip(out, heads, strict=False)
        if o.dtype.is_float
    ]
    total = sum(weighed, start=pb.zeros(()))
    made = [array(g) for g in pb.grad(total, [known[id(w)] for w in wanted])]
    worst = max(apart(g, array(w)) for g, w in zip(made, grads, strict=True))
    if worst > BACKWARD:
        truth = exact(name, op, sample, wanted, heads)[1]
        worst = max(apart(g, w) for g, w in zip(made, truth, strict=True))
        if worst > BACKWARD:
            worst = slope(name, op, sample, wanted, heads, made)
            DIFFERENT.add(name)
        assert worst <= BACKWARD, f"gradients off by {worst:.1e}"
    return ""


STEP = 1e-5  # of differences in float64
DIFFERENT: set[str] = set()  # where PyTorch's gradient is not the slope of its own values


def slope(name: str, op: Any, sample: Any, wanted: Any, heads: Any, made: list[Any]) -> float:
    """How far our gradient along a random direction is from differences of PyTorch's values."""
    rng = np.random.default_rng(1)
    along = [rng.uniform(-1, 1, tuple(w.shape)) for w in wanted]
    sums = []
    for step in (STEP, -STEP):
        moved = {
            id(w): torch.tensor(w.detach().double().numpy() + step * v)
            for w, v in zip(wanted, along, strict=True)
        }

        def wide(t: torch.Tensor, moved: Any = moved) -> torch.Tensor:
            made = moved.get(id(t), t.detach())
            return made.double() if made.dtype.is_floating_point else made

        again = SimpleNamespace(
            input=mapped(sample.input, wide),
            args=mapped(tuple(sample.args), wide),
            kwargs=mapped(dict(sample.kwargs), wide),
        )
        out = [array(o) for o in theirs(name, op, again, [], None)[0]]
        floats = [(o, h) for o, h in zip(out, heads, strict=False) if o.dtype.kind == "f"]
        sums.append(sum(float(np.sum(o * h)) for o, h in floats))
    want = (sums[0] - sums[1]) / (2 * STEP)
    got = sum(float(np.sum(g * v)) for g, v in zip(made, along, strict=True))
    return abs(got - want) / max(1.0, abs(want))


def exact(name: str, op: Any, sample: Any, wanted: Any, heads: Any) -> Any:
    """PyTorch in float64."""
    known: dict[int, torch.Tensor] = {}

    def wide(t: torch.Tensor) -> torch.Tensor:
        if not t.dtype.is_floating_point:
            return t
        made = t.detach().double().requires_grad_(t.requires_grad)
        return known.setdefault(id(t), made)

    again = SimpleNamespace(
        input=mapped(sample.input, wide),
        args=mapped(tuple(sample.args), wide),
        kwargs=mapped(dict(sample.kwargs), wide),
    )
    out, grads, _ = theirs(name, op, again, [known[id(w)] for w in wanted], heads)
    return [array(o) for o in out], None if grads is None else [array(g) for g in grads]


def spread(samples: Any, count: int) -> list[Any]:
    """At most `count` of the samples, from first to last."""
    listed = list(islice(samples, 400))
    if len(listed) <= count:
        return listed
    return [listed[round(n * (len(listed) - 1) / (count - 1))] for n in range(count)]


def judged(number: int, count: int) -> Verdict:
    """What becomes of one entry."""
    warnings.simplefilter("ignore")
    op = op_db[number]
    name = entry_name(op)
    if name not in RULES:
        return Verdict(name, "absent")
    torch.manual_seed(0)
    dtype = torch.float32 if torch.float32 in op.dtypes else torch.int64
    if dtype not in op.dtypes:
        return Verdict(name, "absent", "no type of ours")
    try:
        grad = op.supports_autograd and dtype is torch.float32
        samples = spread(op.sample_inputs("cpu", dtype, requires_grad=grad), count)
    except Exception as problem:
        return Verdict(name, "absent", f"no samples: {problem}"[:100])
    seen = 0
    for place, sample in enumerate(samples):
        try:
            check(name, op, sample)
            seen += 1
        except LeftOut:
            continue
        except AssertionError as problem:
            if isinstance(problem, InvalidIR):
                return Verdict(name, "crashed", f"sample {place}: {problem}"[:300], seen)
            return Verdict(name, "wrong", f"sample {place}: {problem}"[:200], seen)
        except PullbackError as problem:
            return Verdict(name, "refused", f"sample {place}: {problem}"[:300], seen)
        except Exception:
            last = traceback.format_exc().strip().splitlines()
            return Verdict(name, "crashed", f"sample {place}: " + " | ".join(last[-3:])[:400], seen)
    return Verdict(name, "right", "", seen) if seen else Verdict(name, "absent", "no sample left")


def told(verdict: Verdict) -> Verdict:
    """A verdict, printed where it is neither right nor absent."""
    if verdict.what not in ("right", "absent"):
        print(f"{verdict.what:8} {verdict.name}: {verdict.why}", flush=True)
    return verdict


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs="*", default=())
    parser.add_argument("--samples", type=int, default=SAMPLES)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--every", type=int, default=1, help="each n-th entry alone")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    numbers = [n for n, o in enumerate(op_db) if not chosen.only or entry_name(o) in chosen.only]
    numbers = numbers[:: chosen.every]
    if chosen.jobs == 1:
        verdicts = [told(judged(n, chosen.samples)) for n in numbers]
    else:
        with ProcessPoolExecutor(chosen.jobs) as pool:
            verdicts = list(map(told, pool.map(judged, numbers, [chosen.samples] * len(numbers))))
    counts = Counter(v.what for v in verdicts)
    print("absent:", " ".join(v.name for v in verdicts if v.what == "absent"))
    print(f"{len(verdicts)} entries: " + ", ".join(f"{n} {what}" for what, n in counts.items()))
    if chosen.json:
        chosen.json.write_text(json.dumps([asdict(v) for v in verdicts], indent=1))
    return 1 if counts["wrong"] or counts["crashed"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
