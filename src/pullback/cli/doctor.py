"""`pullback doctor`: what is installed, what it runs on, and whether it works."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.table import Table

from pullback.backends import registry
from pullback.backends.base import Guest
from pullback.backends.host.processor import DOTS, LEVELS, binding, chosen_target, host_target
from pullback.cli.command import WRONG, Output, command
from pullback.cli.measure import measured, sized, written
from pullback.cli.requirements import Requirement, requirements
from pullback.config import Options, default_threads
from pullback.errors import PullbackError
from pullback.machine.machine import SUFFIX, parsed
from pullback.runtime.cache import ObjectCache
from pullback.tensor.derive.autograd import grad
from pullback.tensor.library import maths
from pullback.tensor.run.program import Jit

SIDE = 96  # of the matrices of the self-test
MIB = 2**20  # bytes
CLOSE = 1e-4  # relative, in float32


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what was found, and whether that is good."""

    topic: str
    says: str
    good: bool = True


EXAMPLE = """\
pullback doctor --json
pullback doctor --machine --save mine.toml"""


@command(example=EXAMPLE)
@click.option("--machine", "numbers", is_flag=True, help="measure it, beside its profile")
@click.option("--save", type=click.Path(path_type=Path), help="a profile of what was measured")
def doctor(out: Output, numbers: bool, save: Path | None) -> None:
    """Tell what is installed, what it runs on, and whether it works.

    Exit code 1 where something that is needed is missing, or wrong. With --machine the processor
    is measured for some seconds; PULLBACK_MACHINE takes what --save writes.
    """
    if save is not None and (not numbers or save.suffix != SUFFIX):
        raise click.UsageError(f"--save FILE{SUFFIX} goes with --machine")
    if numbers:
        _machine(out, save)
        return
    packages = requirements()
    with out.working("looking, compiling and running"):
        findings = [*_installed(packages), *_processor(), *_threads(), *_cache()]
        findings += [*_backends(), _self_test()]
    table = Table(box=None, show_header=False)
    for finding in findings:
        table.add_row("ok" if finding.good else "WRONG", finding.topic, finding.says)
    out.show(table)
    for name in dict.fromkeys(p.extra for p in packages if p.extra):
        out.show(_extra(name, [p for p in packages if p.extra == name]))
    passed = all(f.good for f in findings)
    every = [{**asdict(p), "fits": p.fits} for p in packages]
    out.tell(passed=passed, findings=[asdict(f) for f in findings], packages=every)
    sys.exit(0 if passed else WRONG)


def _machine(out: Output, save: Path | None) -> None:
    """The numbers of the profile beside those measured now."""
    target = chosen_target(None, Options.from_environment().machine)
    known = sized(target.profile)
    with out.working("measuring"):
        tables, memories = measured(target, known)
    names = [f"memory.{m.name}" for m in known.memories]
    pairs = [(n, asdict(m), own) for n, m, own in zip(names, known.memories, memories, strict=True)]
    pairs += [(n, dict(known.tables[n]), own) for n, own in tables.items()]
    table = Table("ns of a vector; memory: bytes a ns", known.name, "measured", "", box=None)
    for name, profile, own in pairs:
        for key, value in own.items():
            before = profile.get(key)
            parts = ("", "") if before is None else (f"{before:.3f}", f"{value / before:.2f}")
            table.add_row(f"{name}.{key}", parts[0], f"{value:.3f}", parts[1])
    out.show(table)
    out.tell(machine=known.name, measured={name: own for name, _, own in pairs})
    if save is not None:
        source = f"pullback doctor --machine, {date.today()}: processor time, best of many"
        cpu = binding().get_host_cpu_name()
        text = written(save.stem, cpu, known, tables, memories, source)
        parsed(text, str(save))
        save.write_text(text, encoding="utf-8")
        out.show(f"{save}: PULLBACK_MACHINE={save}")


def _installed(packages: list[Requirement]) -> list[Finding]:
    """Python, and what pullback cannot do without."""
    version = ".".join(map(str, sys.version_info[:3]))
    findings = [Finding("Python", f"{version}, {sys.platform}")]
    for package in packages:
        if not package.extra:
            told = f"{package.version or 'not installed'} (needs {package.wanted or 'any'})"
            findings.append(Finding(package.name, told, package.fits))
    return findings


def _extra(name: str, packages: list[Requirement]) -> str:
    """What an extra has, or still needs."""
    missing = [p for p in packages if not p.fits]
    if not missing:
        return f"extra {name}: " + ", ".join(f"{p.name} {p.version}" for p in packages)
    lacking = ", ".join(f"{p.name}{p.wanted}" for p in missing)
    return f"extra {name}: lacks {lacking}: pip install 'pullback[{name}]'"


def _processor() -> list[Finding]:
    """The processor as LLVM knows it, and which of its features kernels are made for."""
    host = host_target()
    needs = next((n for target, n in LEVELS.items() if target.name == host.name), ())
    used = [*needs, *(DOTS[kind] for kind in host.dots)]
    cpu = binding().get_host_cpu_name()
    facts = f"{host.name} ({cpu}), vectors of {host.vector} bytes; uses {', '.join(used) or '-'}"
    findings = [Finding("processor", facts)]
    name = Options.from_environment().target
    if name is not None:
        try:
            findings.append(Finding("PULLBACK_TARGET", chosen_target(name).name))
        except PullbackError as problem:
            findings.append(Finding("PULLBACK_TARGET", problem.what, False))
    return findings


def _threads() -> list[Finding]:
    try:
        chosen = default_threads()
    except PullbackError as problem:
        return [Finding("threads", problem.what, False)]
    return [Finding("threads", f"{chosen} of {os.cpu_count()} processors (PULLBACK_THREADS)")]


def _cache() -> list[Finding]:
    """Where compiled code is kept, and whether it is whole."""
    folder = Options.from_environment().cache
    if folder is None:
        return [Finding("cache", "off (PULLBACK_CACHE)")]
    try:
        cache = ObjectCache(folder)
    except PullbackError as problem:
        return [Finding("cache", problem.what, False)]
    entries, bad = cache.entries(), cache.verify()
    size = sum(e.bytes for e in entries) / MIB
    state = f"{len(bad)} altered (pullback cache clear)" if bad else "all whole"
    facts = f"{folder}: {len(entries)} entries, {size:.1f} MiB, {state}"
    return [Finding("cache", facts, not bad)]


def _backends() -> list[Finding]:
    """What those backends have that need something from outside; only the chosen one must."""
    chosen, findings = Options.from_environment().backend, []
    for name in dict.fromkeys([*registry.names(), chosen]):
        try:
            backend = registry.named(name)
            if isinstance(backend, Guest):
                findings.append(Finding(f"backend {name}", backend.host()))
        except PullbackError as problem:
            help_ = f" ({problem.help})" if problem.help else ""
            facts = f"not there: {problem.what}{help_}"
            findings.append(Finding(f"backend {name}", facts, name != chosen))
    return findings


def _self_test() -> Finding:
    """``tanh(a b)`` and its gradient, compiled past the cache, against NumPy."""

    def step(a: Any, b: Any) -> Any:
        y = maths.tanh(a @ b)
        return (y, *grad(y.sum(), [a, b]))

    rng = np.random.default_rng(0)
    a, b = (rng.normal(size=(SIDE, SIDE)).astype(np.float32) / 10 for _ in range(2))
    start = time.perf_counter()
    try:
        computed = [x.numpy() for x in Jit(step, options=Options(cache=None))(a, b)]
    except (PullbackError, OSError, RuntimeError) as problem:
        return Finding("self-test", f"{type(problem).__name__}: {problem}", False)
    spent = time.perf_counter() - start
    y = np.tanh(a @ b)
    slope = 1 - y * y
    wanted = [y, slope @ b.T, a.T @ slope]
    pairs = zip(computed, wanted, strict=True)
    apart = max(float(np.max(abs(x - w)) / np.max(abs(w))) for x, w in pairs)
    facts = f"a product and its gradient, compiled and run in {spent:.2f} s, error {apart:.0e}"
    return Finding("self-test", facts, apart < CLOSE)
