"""Processes that end by `kill -9`, at any moment: in the middle of a save, or of a compilation.

What was saved is there, whole, and the training that goes on from it takes the steps that it would
have taken. A cache serves right results, or builds them again.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn, optim
from pullback.config import Options
from pullback.nn.base.weights import load_arrays, load_metadata
from pullback.runtime.cache import STALE, TEMPORARY, ObjectCache
from robust_support import Found, Tell, ended, python, silent

WIDTH = 200  # a file of half a megabyte, so that a good part of the time goes into writing it
SAVING = 0.08  # seconds after the first save at which a child is killed, at most
COMPILING = 1.0  # and after the first compilation has begun
EARLY = 0.1  # share of children that are killed earlier: while Python or the library starts
START = 0.6  # seconds that this takes, about
RENEWED = 10  # kills after which a cache begins empty again
TRAIN = "import robust_kills, sys; robust_kills.train(sys.argv[1], int(sys.argv[2]))"
COMPILE = "import robust_kills, sys; robust_kills.compile_all(sys.argv[1], int(sys.argv[2]))"
WRITE = "import robust_kills, sys; robust_kills.write_all(sys.argv[1], int(sys.argv[2]))"
LARGE = 1 << 20  # bytes of an entry, so that most kills meet a write
KEYS = 16
Array = np.ndarray[Any, Any]


def kill_at_random(child: subprocess.Popen[str], latest: float, dice: random.Random) -> str:
    """Kill a child, at most `latest` seconds after it says that it begins. What was wrong with it
    before that, if anything.
    """
    assert child.stdout is not None
    if dice.random() < EARLY:
        time.sleep(dice.uniform(0.0, START))
    else:
        child.stdout.readline()  # the first save, or compilation, begins
        time.sleep(dice.uniform(0.0, latest))
    child.kill()
    try:
        _, errors = child.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        return "not dead a minute after kill -9"
    return "" if child.returncode == -9 else f"ended by itself, {child.returncode}: {errors[-500:]}"


# --- training ------------------------------------------------------------------------------------


class Run:
    """A small model in training, one compiled step after another, saved after each."""

    def __init__(self) -> None:
        pb.random.manual_seed(5)
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, 4))
        self.rule = optim.AdamW(self.model.parameters(), lr=0.01)
        rng = np.random.default_rng(1)
        self.x = pb.tensor(rng.normal(size=(8, WIDTH)).astype(np.float32))
        self.y = pb.tensor(rng.normal(size=(8, 4)).astype(np.float32))
        self.step = pb.jit(self._step)

    def _step(self) -> None:
        self.rule.zero_grad()
        nn.functional.mse_loss(self.model(self.x), self.y).backward()
        self.rule.step()

    def state(self) -> dict[str, Array]:
        """All that a run goes on from."""
        found = {f"model.{n}": t.numpy() for n, t in self.model.state_dict().items()}
        found |= {f"rule.{n}": t.numpy() for n, t in self.rule.state_dict().items()}
        return found | {"random": pb.random.get_state()}

    def load(self, arrays: dict[str, Array]) -> None:
        for prefix, part in (("model.", self.model), ("rule.", self.rule)):
            own = {n.removeprefix(prefix): a for n, a in arrays.items() if n.startswith(prefix)}
            part.load_state_dict(own)
        pb.random.set_state(arrays["random"])


def digest(arrays: dict[str, Array]) -> str:
    """What tells one state from all others."""
    found = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        found.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()


def train(place: str, steps: int) -> None:
    """Go on from `place`, if something is there, and save after every step."""
    path = Path(place)
    run, done = Run(), 0
    if path.exists():
        run.load(load_arrays(path))
        done = int(load_metadata(path)["step"])
    for step in range(done + 1, steps + 1):
        run.step()
        if step == done + 1:
            print("saving", flush=True)
        nn.save(run.state(), path, {"step": str(step)})


def trainings(count: int, seed: int, tell: Tell = silent) -> Found:
    """Kill `count` runs, each of which goes on from the one before. Every file that is found is
    that of a step, to the bit as without kills, and no step that was saved is lost.
    """
    found, dice = Found(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        folder.mkdir()
        path, cache = folder / "state.safetensors", Path(name) / "cache"
        calm, known, step = Run(), [""], 0
        old: list[Path] = []
        for number in range(count):
            wrong = kill_at_random(python(TRAIN, path, 10**6, cache=cache), SAVING, dice)
            found.count += 1
            if wrong:
                found.wrong.append(f"{number}: {wrong}")
            before, step = step, int(load_metadata(path)["step"]) if path.exists() else 0
            while len(known) <= step:
                calm.step()
                known.append(digest(calm.state()))
            if step < before:
                found.wrong.append(f"{number}: step {step} after step {before}")
            if step and digest(load_arrays(path)) != known[step]:
                found.wrong.append(f"{number}: what was saved after step {step} differs")
            if step > before and any(map(_is_old, old)):
                found.wrong.append(f"{number}: old temporary files stay")
            old = _aged(folder)
            found.note("saves interrupted", len(old))
            tell(found.count)
        found.note("steps taken", step)
    return found


def _aged(folder: Path) -> list[Path]:
    """The temporary files that the killed have left, as if that were long ago."""
    left = [p for p in folder.iterdir() if p.name.startswith(".")]
    for path in left:
        then = time.time() - 2 * STALE
        os.utime(path, (then, then))
    return left


def _is_old(path: Path) -> bool:
    """Whether a file is there that nobody has written to since it was aged: its name may be that of
    a save which was killed again.
    """
    return path.exists() and time.time() - path.stat().st_mtime >= STALE


# --- the cache -----------------------------------------------------------------------------------


def _made(number: int) -> tuple[Any, Array]:
    """Program `number` and what it gives for `_given()`."""
    a = _given().astype(np.float64)
    wanted = np.tanh(a * number) @ a.T + np.cumsum(a, 0)[:, :1]
    return (
        lambda x: pb.tanh(x * float(number)) @ x.T + pb.cumulative_sum(x, axis=0)[:, :1],
        wanted,
    )


def _given() -> Array:
    return np.random.default_rng(0).normal(size=(12, 20)).astype(np.float32)


def compile_all(folder: str, first: int, count: int = 10**6) -> None:
    """Compile and run one program after another."""
    print("compiling", flush=True)
    for number in range(first, first + count):
        function, wanted = _made(number)
        got = pb.jit(function, options=Options(cache=Path(folder)))(_given()).numpy()
        assert np.allclose(got, wanted, atol=1e-3), number


def compilations(count: int, seed: int, tell: Tell = silent) -> Found:
    """Kill `count` processes that compile into one cache; every entry is whole then, and a process
    that goes on where they began gets right results.
    """
    found, dice = Found(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "cache"
        for number in range(count):
            if number % RENEWED == 0 and folder.exists():
                found.wrong += _served(folder, number)
                shutil.rmtree(folder)
            child = python(COMPILE, folder, number % RENEWED, cache=folder)
            wrong = kill_at_random(child, COMPILING, dice)
            if wrong:
                found.wrong.append(f"{number}: {wrong}")
            if folder.exists():
                bad = ObjectCache(folder).verify()
                found.wrong += [f"{number}: entry {key} is broken" for key in bad]
                found.note("entries written", len(list(folder.glob("*.obj"))))
                found.note("entries interrupted", len(list(folder.glob(f".*{TEMPORARY}"))))
            found.count += 1
            tell(found.count)
        found.wrong += _served(folder, count) if folder.exists() else []
    return found


def _served(folder: Path, number: int) -> list[str]:
    """What is wrong with a cache that the killed have left."""
    more = f"import robust_kills, sys; robust_kills.compile_all(sys.argv[1], 0, {RENEWED + 2})"
    wrong = ended(python(more, folder, cache=folder))
    for path in folder.glob(f".*{TEMPORARY}"):
        os.utime(path, (0, 0))
    left = len(ObjectCache(folder).entries()) and list(folder.glob(f".*{TEMPORARY}"))
    if left:
        wrong += " old temporary files stay"
    return [f"{number}: {wrong}"] if wrong else []


def _content(key: str, number: int) -> bytes:
    return hashlib.blake2b(f"{key} {number}".encode()).digest() * (LARGE // 64)


def _key(number: int) -> str:
    return hashlib.blake2b(str(number % KEYS).encode(), digest_size=32).hexdigest()


def write_all(folder: str, seed: int) -> None:
    """Write entries over one another without end."""
    cache, dice = ObjectCache(Path(folder)), random.Random(seed)
    print("writing", flush=True)
    while True:
        key = _key(dice.randrange(KEYS))
        cache.put(key, _content(key, dice.randrange(3)))


def writes(count: int, seed: int, tell: Tell = silent) -> Found:
    """Kill `count` processes that write to one cache: every entry is one that was written."""
    found, dice = Found(), random.Random(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "cache"
        for number in range(count):
            wrong = kill_at_random(python(WRITE, folder, number), SAVING, dice)
            found.count += 1
            if wrong:
                found.wrong.append(f"{number}: {wrong}")
            if folder.exists():
                found.note("writes interrupted", len(list(folder.glob(f".*{TEMPORARY}"))))
                found.wrong += [f"{number}: {wrong}" for wrong in _mixed(folder)]
            tell(found.count)
    return found


def _mixed(folder: Path) -> list[str]:
    """Entries that are not as they were written; old temporary files that are not removed."""
    for path in folder.glob(f".*{TEMPORARY}"):
        os.utime(path, (0, 0))
    cache = ObjectCache(folder)
    wrong = [f"{path.name} stays" for path in folder.glob(f".*{TEMPORARY}")]
    for entry in cache.entries():
        known = [_content(entry.key, n) for n in range(3)]
        if cache.get(entry.key) not in known:
            wrong.append(f"entry {entry.key} is not one that was written")
    return wrong
