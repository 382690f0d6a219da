"""Whole PyTorch models through `torch.compile(backend="pullback")`, beside eager in float64.

`python scripts/torch_models.py [--only NAME ..] [--check] [--write]`: random weights, small
inputs, loss, every gradient, three steps of SGD, and the report of what PyTorch ran. A model is
*right* (its errors at most 8 times those of eager float32, which stand behind them, or 1e-5),
*fallback* (right, but PyTorch ran a part), *wrong* or *crashed*. The record is
tests/torch_models.txt: `--check` exits with 1 where a model got worse, `--write` writes it. Needs
PyTorch, timm and transformers.
"""

from __future__ import annotations

import argparse
import copy
import logging
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import torch

import pullback as pb
from torch_zoo import SUBJECTS, called, still

RECORD = ROOT / "tests" / "torch_models.txt"
ORDER = ("right", "fallback", "crashed", "wrong")
STEPS, RATE = 3, 1e-3
WORSE, LEAST = 8.0, 1e-5  # times the error of eager float32, or as much of the largest gradient
SECONDS = 900  # for a model


def main() -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--trace", action="store_true", help="with the traceback of a crash")
    args = parser.parse_args()
    if args.one:
        print(row(args.one, args.trace))
        return 0
    known = recorded()
    rows = dict(known)
    status = 0
    for name in args.only or SUBJECTS:
        rows[name] = apart(name, args.trace)
        print(f"{name:18} {rows[name]}", flush=True)
        if name in known and rank(rows[name]) > rank(known[name]):
            print(f"  worse than {known[name]}")
            status = 1
    if args.write:
        lines = [f"{name:18} {rows[name]}" for name in SUBJECTS if name in rows]
        RECORD.write_text("\n".join(lines) + "\n")
    return status if args.check else 0


def recorded() -> dict[str, str]:
    """The record: what stands behind the name of each model."""
    if not RECORD.exists():
        return {}
    pairs = [line.split(maxsplit=1) for line in RECORD.read_text().splitlines()]
    return dict(pairs)


def rank(what: str) -> int:
    """How bad a row is."""
    return ORDER.index(what.split()[0].rstrip(":"))


def apart(name: str, trace: bool) -> str:
    """The row of a model, in a process of its own."""
    command = [sys.executable, __file__, "--one", name, *(["--trace"] if trace else [])]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"crashed: not done in {SECONDS} s"
    if trace:
        sys.stderr.write(done.stderr)
    lines = done.stdout.strip().splitlines()
    return lines[-1] if lines else f"crashed: status {done.returncode}"


def row(name: str, trace: bool = False) -> str:
    """What a model is, and its errors."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    try:
        return judged(name)
    except Exception as error:
        if trace:
            raise
        said = str(error).strip().splitlines() or [""]
        return f"crashed: {type(error).__name__}: {said[0][:120]}"


def judged(name: str) -> str:
    """The row of a model that runs."""
    subject = SUBJECTS[name]
    torch.manual_seed(0)
    model = subject.make(subject.small).train()
    given = subject.inputs(2, subject.small)
    still(model)
    wide = copy.deepcopy(model).double()
    exact = steps(name, wide, None, [g.double() if g.is_floating_point() else g for g in given])
    eager = steps(name, copy.deepcopy(model), None, given)
    torch._dynamo.reset()
    mine = steps(name, copy.deepcopy(model), pb.torch.backend, given)
    report = pb.torch.report()
    if not report.graphs:
        return "crashed: no graph came to the backend"
    left = sorted({one.operator.removeprefix("aten.") for one in report.fallbacks})
    errors = [_error(mine, exact, n) for n in range(3)]
    theirs = [_error(eager, exact, n) for n in range(3)]
    right = all(m <= max(WORSE * t, LEAST) for m, t in zip(errors, theirs, strict=True))
    what = "wrong" if not right else f"fallback ({', '.join(left)})" if left else "right"
    words = ("loss", "gradients", "three steps")
    pairs = zip(words, errors, theirs, strict=True)
    told = ", ".join(f"{word} {m:.1e} ({t:.1e})" for word, m, t in pairs)
    graphs = len(report.graphs)
    return f"{what}: {told}, {graphs} graphs"


def steps(name: str, model: Any, backend: Any, given: Any) -> tuple[Any, Any, Any]:
    """The first loss, its gradients, and the weights after three steps."""

    def computed(*inputs: Any) -> Any:
        return SUBJECTS[name].loss(called(name, model, inputs), inputs)

    run = computed if backend is None else torch.compile(computed, backend=backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    first = None
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = run(*given)
        loss.backward()
        if first is None:
            gradients = {
                n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
            }
            first = {"loss": loss.detach().clone()}, gradients
        optimizer.step()
    return *first, {n: t.detach().clone() for n, t in model.state_dict().items()}


def _error(mine: Any, exact: Any, place: int) -> float:
    """The worst difference, over the largest number of what it is a part of."""
    own, true = mine[place], exact[place]
    if own.keys() != true.keys():
        return float("inf")
    scale = max(float(t.double().abs().max()) for t in true.values() if t.numel())
    worst = 0.0
    for name, t in true.items():
        if t.shape != own[name].shape:
            return float("inf")
        if t.numel() and t.is_floating_point():
            apart_by = float((own[name].double() - t.double()).abs().max())
            most = max(float(t.double().abs().max()), 1e-3 * scale, 1e-12)
            worst = max(worst, apart_by / most) if apart_by == apart_by else float("inf")
    return worst


if __name__ == "__main__":
    sys.exit(main())
