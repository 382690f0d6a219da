"""Whole PyTorch models through `torch.compile(backend="pullback")`, beside eager and Inductor.

`python benchmarks/torch_models.py [--only NAME ..] [--peers eager inductor] [--threads 1 2]
[--kinds infer1 infer2 train] [--kept FOLDER] [--save FILE] [--first-calls FILE]`: inference with
1 and 2 inputs, and a training step (loss and gradients) with 2, each model in a process of its own.
Sides take turns; a figure is the best round: processor time with one thread, the clock with more.
The last column is the worst difference from eager's results; the time of the first call, with no
cache, less that of a later one, is what compiling took (processor time, with the compilers that it
started; what PyTorch imports to trace for any backend is loaded before). Bold: slower than a peer.
Inductor takes half a minute of compilers a row: with `--kept` what it compiled stays in a folder,
and a second run times both sides while the machine is idle, with the first calls of the run that
`--save` wrote.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

KINDS = ("infer1", "infer2", "train")
SECONDS = 900  # for a model's kind
Row = dict[str, Any]


def main() -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    parser.add_argument("--peers", nargs="*", default=["eager", "inductor"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--kept", help="folder for what Inductor compiles, kept after the run")
    parser.add_argument("--save", help="JSON lines of the rows are added to this file")
    parser.add_argument("--first-calls", help="a saved file, whose first calls are shown")
    parser.add_argument(
        "--wall", action="store_true",
        help="compile times by the clock, by as many processes as each side starts by itself",
    )  # fmt: skip
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        name, kind, threads = args.one.split(",")
        clock = time.perf_counter if args.wall else spent
        print(json.dumps(measured(name, kind, args.peers, int(threads), args.rounds, clock)))
        return 0
    from torch_zoo import SUBJECTS

    rows = []
    cold = saved(args.first_calls)
    for name in args.only or SUBJECTS:
        for kind in args.kinds:
            sides = [apart(name, kind, args, n) for n in args.threads]
            row = {"name": name, "kind": kind, **joined(sides)}
            row["compile"] = cold.get((name, kind), row.get("compile"))
            rows.append(row)
            print(line(row, args.peers), flush=True)
            if args.save:
                with Path(args.save).open("a") as file:
                    print(json.dumps(row), file=file)
    shares = [row["speed"] for row in rows if row.get("speed")]
    if shares:
        mean = math.exp(sum(map(math.log, shares)) / len(shares))
        print(f"\n{len(shares)} rows, geometric mean {mean:.2f}, least {min(shares):.2f}")
    return 0


def saved(path: str | None) -> dict[tuple[str, str], dict[str, float]]:
    """First calls of a saved run, seconds, by model and kind."""
    if path is None:
        return {}
    rows = map(json.loads, Path(path).read_text().splitlines())
    return {(row["name"], row["kind"]): row["compile"] for row in rows if row.get("compile")}


def apart(name: str, kind: str, args: argparse.Namespace, threads: int) -> Row:
    """The figures of one model, in a process of its own, with empty caches unless they are kept."""
    command = [sys.executable, __file__, "--one", f"{name},{kind},{threads}"]
    command += ["--rounds", str(args.rounds), "--peers", *args.peers]
    command += ["--wall"] * args.wall
    with tempfile.TemporaryDirectory() as folder:
        inductor = f"{args.kept}/{threads}" if args.kept else f"{folder}/inductor"
        own = {
            "PULLBACK_CACHE": f"{folder}/own", "TORCHINDUCTOR_CACHE_DIR": inductor,
            "OMP_NUM_THREADS": str(threads),
        }  # fmt: skip
        if not args.wall:
            own |= {"TORCHINDUCTOR_COMPILE_THREADS": "1", "PULLBACK_WORKERS": "1"}
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=SECONDS, check=False,
                env={**os.environ, **own},
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"error": f"not done in {SECONDS} s"}
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        return {"error": (done.stderr.strip().splitlines() or ["no result"])[-1][:100]}
    return dict(json.loads(lines[-1]))


def joined(sides: list[Row]) -> Row:
    """Each at its best of the thread counts, and our speed beside the better peer's."""
    good = [side for side in sides if "error" not in side]
    if not good:
        return sides[0]
    times = {who: min(side["ms"][who] for side in good) for who in good[0]["ms"]}
    peers = [ms for who, ms in times.items() if who != "pullback"]
    speed = min(peers) / times["pullback"] if peers else None
    return {
        "ms": times,
        "compile": good[0]["compile"],
        "error_of": good[0]["apart"],
        "speed": speed,
    }


def line(row: Row, peers: list[str]) -> str:
    """A row of the table."""
    if "error" in row:
        return f"| {row['name']} | {row['kind']} | {row['error']} |"
    cells = [f"{row['ms'][who]:.2f}" for who in ("pullback", *peers)]
    speed = row["speed"] or 0.0
    told = f"{speed:.2f}" if speed >= 1 else f"**{speed:.2f}**"
    first = [f"{row['compile'][who]:.1f}" for who in ("pullback", *peers) if who != "eager"]
    by = max(row["error_of"].values())
    cells += [told, *first, f"{by:.0e}"]
    return f"| {row['name']} | {row['kind']} | {' | '.join(cells)} |"


def measured(
    name: str, kind: str, peers: list[str], threads: int, rounds: int, clock: Callable[[], float]
) -> Row:
    """Times of a call, of compiling by `clock`, and how far results are apart from eager's."""
    warnings.simplefilter("ignore")
    import torch

    torch.set_num_threads(threads)
    load_tracer(torch)
    calls, outcomes, first = {}, {}, {}
    for who in ("eager", "pullback", *(p for p in peers if p != "eager")):
        call = prepared(name, kind, who)
        began = clock()
        outcomes[who] = call()
        cold = clock() - began
        call()
        began = clock()
        call()
        first[who] = cold - (clock() - began)
        calls[who] = call
    timer = time.process_time if threads == 1 else time.perf_counter
    best = dict.fromkeys(calls, math.inf)
    for _ in range(rounds):
        for who, call in calls.items():
            best[who] = min(best[who], timed(call, timer))
    told = {w: apart_by(o, outcomes["eager"]) for w, o in outcomes.items() if w != "eager"}
    return {"ms": {w: 1e3 * s for w, s in best.items()}, "compile": first, "apart": told}


def load_tracer(torch: Any) -> None:
    """What PyTorch imports for any backend, by a function of one line: in no side's first call."""
    x = torch.ones(2, requires_grad=True)
    torch.compile(lambda v: v.sin().sum(), backend="aot_eager")(x).backward()
    torch._dynamo.reset()


def prepared(name: str, kind: str, who: str) -> Callable[[], Any]:
    """One call of a model as one side has it; the same weights and inputs for each."""
    import torch

    import pullback as pb
    from torch_zoo import SUBJECTS, called, still

    subject = SUBJECTS[name]
    torch.manual_seed(0)
    batch = 1 if kind == "infer1" else 2
    model = subject.make(subject.large)
    given = subject.inputs(batch, subject.large)
    model = model.train() if kind == "train" else model.eval()
    if kind == "train":
        still(model)

    def step(*inputs: Any) -> Any:
        result = called(name, model, inputs)
        return subject.loss(result, inputs) if kind == "train" else result

    backend = pb.torch.backend if who == "pullback" else who
    run = step if who == "eager" else torch.compile(step, backend=backend)

    def call() -> Any:
        with contextlib.nullcontext() if kind == "train" else torch.no_grad():
            result = run(*given)
        if kind != "train":
            return result[0] if isinstance(result, tuple) else getattr(result, "logits", result)
        model.zero_grad()
        result.backward()
        return [result.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    return call


def spent() -> float:
    """Processor time of this process and of those that it started."""
    return time.process_time() + sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def timed(call: Callable[[], Any], clock: Callable[[], float]) -> float:
    """Seconds of a call: as many calls as fill 50 ms, after one that is not counted: at the turn of
    a side the threads of the one before still wait in loops, and caches have its data.
    """
    call()
    began, count = clock(), 0
    while count < 1 or clock() - began < 0.05:
        call()
        count += 1
    return (clock() - began) / count


def apart_by(mine: Any, theirs: Any) -> float:
    """The worst difference, over the largest number of a tensor, or over what 1e-4 of the largest
    of all is: a slope that cancels to nothing, of a bias in front of a batch norm, is rounding.
    """
    pairs = list(zip(mine, theirs, strict=True) if isinstance(mine, list) else [(mine, theirs)])
    least = max(1e-6, 1e-4 * max(float(other.abs().max()) for _, other in pairs))
    worst = 0.0
    for own, other in pairs:
        most = max(float(other.abs().max()), least)
        worst = max(worst, float((own - other).abs().max()) / most)
    return worst


if __name__ == "__main__":
    sys.exit(main())
