"""`pullback train`: a character GPT as one compiled program."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import click
from rich.table import Table

from pullback.cli import checkpoint, compare
from pullback.cli.command import Output, command
from pullback.cli.display import Bar, Display, Lines, Silent
from pullback.cli.profile import roofline
from pullback.cli.settings import RunError, Settings
from pullback.cli.text import Text, read_text, split
from pullback.cli.train import Run, make_model, make_optimizer, write
from pullback.cli.view import has_folder, save
from pullback.distributed.group import init
from pullback.distributed.sharded import Sharded
from pullback.viewer.data import Curve
from pullback.viewer.page import page

STOPPED = 128  # and the number of the signal, is what a shell expects
SAMPLE = 300  # characters written after training
EXAMPLE = """\
pullback train --steps 100 --out run
pullback train --resume --out run
pullback train --compare torch"""


@command(example=EXAMPLE)
@click.option("--text", "path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--steps", type=click.IntRange(min=1), help="training steps")
@click.option("--layers", type=click.IntRange(min=1))
@click.option("--dim", type=click.IntRange(min=1), help="width of the model")
@click.option("--heads", type=click.IntRange(min=1))
@click.option("--context", type=click.IntRange(min=2), help="characters seen at once")
@click.option("--batch", type=click.IntRange(min=1), help="sequences a step")
@click.option("--lr", type=click.FloatRange(min=0.0), help="highest learning rate")
@click.option("--seed", type=click.IntRange(min=0))
@click.option("--compare", "peer", type=click.Choice(["torch"]), help="train beside PyTorch")
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), default="pullback-run")
@click.option("--resume", is_flag=True, help="go on where a run in --out stopped")
@click.option("--save-every", type=click.IntRange(min=1), help="steps between two checkpoints")
@click.option("--shard", is_flag=True, help="optimiser states in parts on the processes")
@click.option("--report", type=click.Path(dir_okay=False, path_type=Path), help="a page of the run")
def train(
    output: Output,
    path: Path | None,
    peer: str | None,
    out: Path,
    resume: bool,
    save_every: int | None,
    shard: bool,
    report: Path | None,
    **given: Any,
) -> None:
    """Train a character GPT as one compiled program, then let it write.

    Without --text it learns the English help texts that ship with Python. The last 10 % of the
    characters are the validation split. Started by torchrun or mpiexec, each process takes its part
    of every batch; with --shard each has its part of the optimiser's states, too.
    """
    began = time.perf_counter()
    if report is not None:
        has_folder(report)
    settings = Settings().changed(**given)
    characters = None
    if resume:
        settings, characters = checkpoint.facts(out)
        _refuse_changes(settings, given)
    if settings.dim % settings.heads:
        raise click.UsageError(f"--dim {settings.dim} is not a multiple of --heads")
    text = split(read_text(path), settings.context, characters)
    if peer is not None:
        _compare(text, settings.changed(steps=max(settings.steps, compare.STEPS)), output)
        return
    group = init()
    if settings.batch % group.size:
        raise click.UsageError(f"--batch {settings.batch} is no multiple of {group.size} processes")
    quiet = Output(output.as_json, True) if group.rank else output
    run = _prepare(text, settings, out, resume, quiet)
    run.timed, run.every = report is not None, save_every or 0
    run.share(group, shard)
    with run.display, terminable():
        try:
            _train(run, began)
        finally:
            if report is not None and not group.rank:
                _report(run, report)


@contextmanager
def terminable() -> Iterator[None]:
    """SIGTERM stops training as Ctrl-C does: the step that runs is finished first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt(number)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _refuse_changes(settings: Settings, given: dict[str, Any]) -> None:
    """Raises: RunError where an option contradicts the checkpoint."""
    for name, value in given.items():
        if value is not None and value != getattr(settings, name):
            raise RunError(
                f"--{name} {value} contradicts the checkpoint, which has {getattr(settings, name)}",
                help="leave the option out, or start a new run with another --out",
                code="E337",
            )


def _prepare(text: Text, settings: Settings, out: Path, resume: bool, output: Output) -> Run:
    model = make_model(settings, len(text.characters))
    opt = make_optimizer(model, settings)
    if resume:
        checkpoint.restore(out, model, opt)
    display = _display(settings, int(opt.steps.item()), output)
    return Run(text, settings, model, opt, display, out)


def _display(settings: Settings, done: int, output: Output) -> Display:
    if output.as_json and not output.quiet:
        return Lines(settings.steps, output)
    if output.quiet:
        return Silent()
    return Bar(settings.steps, done, settings.batch * settings.context)


def _train(run: Run, began: float) -> None:
    """Train, validate, save, write; Ctrl-C and SIGTERM save the last whole step."""
    parameters = sum(p.size for p in run.model.parameters())
    s = run.settings
    held = {"state_bytes": run.opt.state_bytes} if isinstance(run.opt, Sharded) else {}
    states = "".join(f", {n / 1e6:.2f} MB of states on each process" for n in held.values())
    run.display.note(
        "start",
        f"{parameters:,} parameters{states}, {len(run.text.train):,} characters, "
        f"{s.steps - run.done} of {s.steps} steps to go",
        parameters=parameters,
        characters=len(run.text.train),
        step=run.done,
        steps=s.steps,
        **held,
    )
    try:
        loss = run.execute()
    except KeyboardInterrupt as stopped:
        run.save()
        run.display.note(
            "interrupted",
            f"stopped after step {run.done}; saved. Go on with: --resume --out {run.folder}",
            step=run.done,
            folder=str(run.folder),
        )
        sys.exit(STOPPED + next(iter(stopped.args), signal.SIGINT))
    seconds = time.perf_counter() - began
    run.save()
    run.display.note(
        "validation",
        f"validation loss {loss:.4f} nats per character, {seconds:.1f} s after the start",
        loss=loss,
        seconds=seconds,
        step=run.done,
    )
    if run.group.rank:
        return
    sample = write(run.model, run.text, SAMPLE, run.settings.seed)
    run.display.note("sample", sample, text=sample)
    path = run.folder / checkpoint.WEIGHTS
    run.display.note("saved", f"weights: {path}", path=str(path))


def _report(run: Run, path: Path) -> None:
    """A page of the program that trained, with its losses and times by step.

    Also of a run that stopped or failed; there is none where it did before the first step.
    """
    curves = [Curve("loss", run.losses, run.first + 1)]
    if len(run.times) > 1:
        steps = [(b - a) * 1e3 for a, b in pairwise(run.times)]
        curves.append(Curve("ms a step", steps, run.first + 2))
    if run.program is not None:
        whole = run.done == run.settings.steps
        title = "pullback train" if whole else f"pullback train, to step {run.done}"
        save(path, page(title, {"train": run.program}, roofline(), curves))
        run.display.note("report", f"report: {path}", path=str(path))


def _compare(text: Text, settings: Settings, output: Output) -> None:
    """50 steps here and in PyTorch, from the same weights, on the same batches."""
    compare.load_torch()
    run = Run(
        text,
        settings,
        model := make_model(settings, len(text.characters)),
        make_optimizer(model, settings),
        Silent(),
        Path(),
    )
    weights = {n: t.numpy() for n, t in model.state_dict().items()}
    with output.working(f"{compare.STEPS} steps here, then in PyTorch"):
        run.train_steps(compare.STEPS)
        own = compare.Curve("pullback", run.losses, compare.median_ms(run.times))
        peers = compare.torch_curves(weights, text.train, settings)
    worst = max(compare.largest_difference(own.losses, p.losses) for p in peers)
    table = Table("", "ms a step", "last loss", "largest difference")
    for curve in (own, *peers):
        apart = compare.largest_difference(own.losses, curve.losses)
        table.add_row(curve.name, f"{curve.step_ms:.1f}", f"{curve.losses[-1]:.4f}", f"{apart:.1e}")
        output.tell(event="curve", name=curve.name, losses=curve.losses, step_ms=curve.step_ms)
    output.show(table)
    output.tell(event="compared", largest_difference=worst)
