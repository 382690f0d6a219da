"""Files that were damaged: cache entries, tuned schedules, weights, saved programs.

A damaged entry of the cache is built again and its code never run; damaged weights are refused by
name, and what they were to be loaded into stays as it is; a damaged program is refused before any
of it is loaded, and where somebody made its hash right again, its text is looked at. Where a change
leaves a valid file, such as a flip among the numbers, its values are what the file says.
"""

from __future__ import annotations

import json
import logging
import os
import random
import re
import shutil
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn
from pullback.config import Options
from pullback.errors import PullbackError, StateError
from pullback.nn.base.weights import LENGTH, load_arrays, load_metadata
from pullback.runtime.cache import MAGIC, TAG
from pullback.runtime.tuned import FILE, Key, Tuned, write
from pullback.schedule.choices import choices_of
from pullback.tensor.run.images import HASH as SEAL
from pullback.tensor.run.images import MAGIC as IMAGE
from pullback.tensor.run.images import SIGNED, _hash
from robust_support import Found, Tell, TooLong, at_most, silent

SECONDS = 60.0  # of processor time that one case may take
Array = np.ndarray[Any, Any]
Change = Callable[[random.Random, bytes], bytes]


# --- changes of bytes ----------------------------------------------------------------------------


def _flip(source: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 8))):
        changed[_place(source, data)] ^= 1 << source.randrange(8)
    return bytes(changed)


def _place(source: random.Random, data: bytes) -> int:
    """Anywhere, but often near the start, where headers are."""
    return source.randrange(source.choice((len(data), min(len(data), 400))))


def _cut(source: random.Random, data: bytes) -> bytes:
    return data[: _place(source, data)]


def _zeros(source: random.Random, data: bytes) -> bytes:
    start = _place(source, data)
    end = source.randint(start, len(data))
    return data[:start] + bytes(end - start) + data[end:]


def _noise(source: random.Random, data: bytes) -> bytes:
    start = _place(source, data)
    end = min(len(data), start + source.choice((1, 8, 64, 100_000)))
    return data[:start] + source.randbytes(end - start) + data[end:]


def _longer(source: random.Random, data: bytes) -> bytes:
    return data + source.randbytes(source.choice((1, 8, 4096)))


def _missing(source: random.Random, data: bytes) -> bytes:
    """Some bytes taken out of the middle."""
    start = _place(source, data)
    return data[:start] + data[start + source.choice((1, 8, 64)) :]


def _foreign(source: random.Random, data: bytes) -> bytes:
    """Another content under the old tag."""
    head = len(MAGIC) + TAG
    return data[:head] + data[head:][::-1]


BYTES: tuple[Change, ...] = (_flip, _flip, _flip, _cut, _zeros, _noise, _longer, _missing)


# --- the cache -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Program:
    """A program and what it gives."""

    run: Callable[..., Any]
    given: tuple[Array, ...]
    wanted: Array


def _programs() -> list[Program]:
    rng = np.random.default_rng(3)
    a, b = rng.normal(size=(2, 24, 32)).astype(np.float32)
    runs: list[tuple[Callable[..., Any], Any]] = [
        (lambda x, y: pb.tanh(x @ y.T), np.tanh(a @ b.T)),
        (lambda x, y: pb.sum(x * y, axis=0), (a * b).sum(0)),
        (lambda x, y: pb.cumulative_sum(pb.where(x > y, x, y), axis=1), np.maximum(a, b).cumsum(1)),
        (lambda x, y: x - pb.mean(x, axis=1, keepdims=True) * y, a - a.mean(1, keepdims=True) * b),
    ]
    return [Program(run, (a, b), wanted) for run, wanted in runs]


def entries(count: int, seed: int, tell: Tell = silent) -> Found:
    """Damage entries of a cache, or tuned schedules beside it, and run programs from it."""
    found = Found()
    programs = _programs()
    logging.getLogger("pullback").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as name:
        whole = Path(name) / "whole"
        for program in programs:
            assert not _wrong(program, whole)
        _tune(programs[0], whole)
        for number in range(seed, seed + count):
            folder = Path(name) / str(number)
            source = random.Random(number)
            shutil.copytree(whole, folder)
            what = _damage(source, folder)
            found.count += 1
            found.note(what)
            if wrong := _served(source.choice(programs), folder):
                found.wrong.append(f"{number}: {what}: {wrong}")
            shutil.rmtree(folder)
            tell(found.count)
    return found


def _damage(source: random.Random, folder: Path) -> str:
    """Change some files of a cache. Says how."""
    paths = sorted(folder.glob("*.obj"))
    way = source.choice((*["bytes"] * 8, "swap", "foreign", "secret", "tuned", "tuned", "folder"))
    if way == "bytes":
        for path in source.sample(paths, source.choice((1, 2, len(paths)))):
            path.write_bytes(source.choice(BYTES)(source, path.read_bytes()))
    elif way == "foreign":
        for path in paths:
            path.write_bytes(_foreign(source, path.read_bytes()))
    elif way == "swap":
        one, other = source.sample(paths, 2)
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
    elif way == "folder":
        path = source.choice(paths)
        path.unlink()
        path.mkdir()
    else:
        path = folder / {"secret": "secret", "tuned": FILE}[way]
        path.write_bytes(source.choice(BYTES)(source, path.read_bytes()))
    return f"by {way}"


def _tune(program: Program, folder: Path) -> None:
    """Records of schedules of the program's kernels, with choices that they have."""
    run = pb.jit(program.run, options=Options(cache=None))
    run(*program.given)
    executable = run.program
    target = executable.target
    choices = choices_of({"tasks": 1, "tile.0": 8})
    keys = [Key.of(k, target, t) for k in executable.kernels for t in (1, 2, os.cpu_count() or 1)]
    write(folder / FILE, {key: Tuned("k", choices, 10.0, 5.0) for key in keys})


def _served(program: Program, folder: Path) -> str:
    """What is wrong with a run from a damaged cache, and with the next one."""
    try:
        with at_most(SECONDS):
            first = _wrong(program, folder)
            return first or _wrong(program, folder)
    except (Exception, TooLong) as problem:
        return f"{type(problem).__name__}: {problem}"


def _wrong(program: Program, folder: Path) -> str:
    """Runs a program with this cache, compiled or loaded anew."""
    run = pb.jit(program.run, options=Options(cache=folder))
    got = run(*program.given).numpy()
    close = np.allclose(got, program.wanted, rtol=1e-4, atol=1e-4)
    if not close:
        return f"a wrong result, {run.program.stats}"
    used = {p.stem for p in folder.glob("*.obj") if p.is_file()}
    return "" if used else "nothing is kept"


# --- weights -------------------------------------------------------------------------------------


def weights(count: int, seed: int, tell: Tell = silent) -> Found:
    """Damage a file of weights and load it."""
    found = Found()
    model = nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3))
    before = {n: t.numpy().tobytes() for n, t in model.state_dict().items()}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.safetensors"
        nn.save(model, path, {"step": "12"})
        whole = path.read_bytes()
        for number in range(seed, seed + count):
            source = random.Random(number)
            path.write_bytes(source.choice(FILES)(source, whole))
            found.count += 1
            try:
                with at_most(SECONDS):
                    outcome = _loaded(model, path)
            except (Exception, TooLong, AssertionError) as problem:
                found.wrong.append(f"{number}: {type(problem).__name__}: {problem}")
                continue
            now = {n: t.numpy().tobytes() for n, t in model.state_dict().items()}
            if outcome != "loaded" and now != before:
                found.wrong.append(f"{number}: half loaded after {outcome}")
            before = now
            found.note(outcome)
            tell(found.count)
    return found


def _loaded(model: nn.Module, path: Path) -> str:
    """Loads a file into a model: what became of it."""
    try:
        load_metadata(path)
    except StateError as error:
        assert path.name in str(error), str(error)
    try:
        arrays = load_arrays(path)
    except StateError as error:
        assert path.name in str(error), str(error)
        return "refused as a file"
    try:
        model.load_state_dict(arrays)
    except PullbackError:
        return "refused by the model"
    for name, tensor in model.state_dict().items():
        with np.errstate(all="ignore"):
            wanted = arrays[name].astype(np.float32)
        assert np.array_equal(tensor.numpy(), wanted, equal_nan=True), name
    return "loaded"


def _parts(data: bytes) -> tuple[dict[str, Any], bytes]:
    size = int.from_bytes(data[:LENGTH], "little")
    return json.loads(data[LENGTH : LENGTH + size]), data[LENGTH + size :]


def _joined(header: bytes, rest: bytes, size: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if size is None else size) + header + rest


def _headed(change: Callable[[random.Random, dict[str, Any]], object]) -> Change:
    """A change of the header's entries."""

    def changed(source: random.Random, data: bytes) -> bytes:
        header, rest = _parts(data)
        change(source, header)
        return _joined(json.dumps(header).encode(), rest)

    return changed


def _entry(source: random.Random, header: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = header[source.choice([n for n in header if n != "__metadata__"])]
    return entry


def _offsets(source: random.Random, header: dict[str, Any]) -> None:
    """Overlapping, negative, huge or reversed; or those of another tensor."""
    one, other = _entry(source, header), _entry(source, header)
    start, end = one["data_offsets"]
    one["data_offsets"] = source.choice(
        [[start + 4, end + 4], [end, start], [-4, end], [0, 2**63], other["data_offsets"], [start],
         [start, end, end], ["0", "4"], None, [start, start], [0.5, end], [0, 2**70]]
    )  # fmt: skip


def _shape(source: random.Random, header: dict[str, Any]) -> None:
    entry = _entry(source, header)
    shape = entry["shape"]
    huge = [2**32, 2**32]
    entry["shape"] = source.choice(
        [shape[::-1], [prod(shape)], [*shape, 1], [-1, *shape[1:]], huge, [], None, [0], ["6"],
         [2**64, 0], shape[:-1], [1.5]]
    )  # fmt: skip


def _kind(source: random.Random, header: dict[str, Any]) -> None:
    kinds = ("I32", "U32", "F64", "F16", "BF16", "BOOL", "F8_E4M3", "C64", "X", "", 3, None, "f32")
    _entry(source, header)["dtype"] = source.choice(kinds)


def _names(source: random.Random, header: dict[str, Any]) -> None:
    name = source.choice([n for n in header if n != "__metadata__"])
    header[source.choice(("other", "", "\0", "é" * 300, name + "x"))] = header.pop(name)


def _facts(source: random.Random, header: dict[str, Any]) -> None:
    header["__metadata__"] = source.choice([None, [], 3, {"step": 4}, {"a": None}, "x", [["a"]]])


def _gone(source: random.Random, header: dict[str, Any]) -> None:
    del header[source.choice(list(header))]


def _extra(source: random.Random, header: dict[str, Any]) -> None:
    header["more"] = source.choice([_entry(source, header), {}, None, [], {"dtype": "F32"}])


def _size(source: random.Random, data: bytes) -> bytes:
    """The header said to be longer than the file, or shorter than it is."""
    size = source.choice((0, 1, 7, len(data), len(data) - LENGTH, 2**31, 2**40, 2**63, 2**64 - 1))
    return struct.pack("<Q", size) + data[LENGTH:]


def _text(source: random.Random, data: bytes) -> bytes:
    """A header that is no JSON, no UTF-8, no object, or nested without end."""
    _, rest = _parts(data)
    deep = source.choice((50, 2000, 100_000))
    header = source.choice(
        [b"", b"{", b"[]", b"null", b"3", b'"a"', b"{}", b"\xff\xfe{}", b'{"\xff": 1}', b"{} x",
         b"[" * deep, b'{"a":' * deep, b'{"__metadata__": ' + b"[" * deep, b'{"a": 1e999}',
         b'{"a": ' + b"9" * 5000 + b"}", '{"a": "\ud800"}'.encode("utf-8", "surrogatepass")]
    )  # fmt: skip
    return _joined(header, rest)


def _twice(source: random.Random, data: bytes) -> bytes:
    """A name that stands twice."""
    header, rest = _parts(data)
    text = json.dumps(header)
    name = source.choice([n for n in header if n != "__metadata__"])
    more = f", {json.dumps(name)}: {json.dumps(_entry(source, header))}}}"
    return _joined((text[:-1] + more).encode(), rest)


FILES: tuple[Change, ...] = (
    *BYTES, *BYTES, _size, _text, _text, _twice,
    *map(_headed, (_offsets, _offsets, _shape, _shape, _kind, _names, _facts, _gone, _extra)),
)  # fmt: skip


# --- saved programs ------------------------------------------------------------------------------


def programs(count: int, seed: int, tell: Tell = silent) -> Found:
    """Damage the file of a saved program, signed or not, or its text with the hash made right."""
    found = Found()
    key = bytes(range(32))
    with tempfile.TemporaryDirectory() as name:
        path, other = Path(name) / "a.image", Path(name) / "b.image"
        wholes: dict[bytes | None, bytes] = {}
        for own in (None, key):
            _saved_program(path, own, 3.0)
            _saved_program(other, own, 5.0)
            wholes[own] = path.read_bytes()
            other_data = other.read_bytes()
        for number in range(seed, seed + count):
            source = random.Random(number)
            own = source.choice((None, key))
            way, data = _changed_program(source, wholes[own], other_data, own)
            path.write_bytes(data)
            found.count += 1
            try:
                with at_most(SECONDS):
                    pb.load_image(path, key=own)
                outcome = "loaded"
                unharmed = way == "its text" or data in wholes.values()
                assert unharmed, f"{way}: a damaged file was loaded"
            except PullbackError as error:
                assert error.code and str(error)
                outcome = f"refused by {error.code}"
            except (Exception, TooLong) as problem:
                found.wrong.append(f"{number}: {way}: {type(problem).__name__}: {problem}")
                continue
            found.note(outcome)
            tell(found.count)
    return found


def _saved_program(path: Path, key: bytes | None, scale: float) -> None:
    """A program with a loop, a branch, captured state and a symbolic extent."""
    held = pb.State(pb.tensor(np.full((3, 2), scale, np.float32)))

    @pb.jit(shapes=[(pb.dim("n", 1, 9), 2)], options=Options(cache=None))
    def step(x: Any) -> Any:
        def body(i: Any, total: Any) -> Any:
            pb.cond(pb.sum(held) < 9.0, lambda: held.assign(held * 2), lambda: held.assign(-held))
            return total + pb.sum(held)

        return pb.loop(range(2), body, carry=pb.sum(pb.exp(x)))

    step(np.ones((3, 2), np.float32))
    step.save_image(path, key=key)


def _changed_program(
    source: random.Random, data: bytes, other: bytes, key: bytes | None
) -> tuple[str, bytes]:
    """What was done to a file, and what came of it."""
    way = source.choice((*["its bytes"] * 5, *["its text"] * 4, "another's end", "its seal"))
    head = len(SIGNED) + 2 * SEAL if data.startswith(SIGNED) else len(IMAGE) + SEAL
    if way == "its bytes":
        return way, source.choice(BYTES)(source, data)
    if way == "another's end":
        place = source.randrange(head, len(data))
        return way, data[:place] + other[place:]
    if way == "its seal":
        place = source.randrange(head)
        return way, data[:place] + source.randbytes(1) + data[place + 1 :]
    length = int.from_bytes(data[head : head + 8], "little")
    text = data[head + 8 : head + 8 + length].decode()
    text = _changed_text(source, text)
    own = text.encode("utf-8", "surrogatepass")
    rest = len(own).to_bytes(8, "little") + own + data[head + 8 + length :]
    seal = SIGNED + _hash(rest) + _hash(rest, key) if key else IMAGE + _hash(rest)
    return way, seal + rest


WORDS = re.compile(r"\s+|\w+|[^\w\s]")
STRANGE = ("-1", "0", "7", "1e999", "NaN", "null", "[]", "{}", '"', "9" * 40, "end", "x", "\n", "")


def _changed_text(source: random.Random, text: str) -> str:
    """Words of it for others, lines that go, come twice or change their places."""
    lines = text.splitlines()
    for _ in range(source.choice((1, 1, 2, 5))):
        place = source.randrange(len(lines))
        way = source.randrange(6)
        words = WORDS.findall(lines[place])
        if way == 0:
            del lines[place]
            lines = lines or [""]
        elif way == 1:
            lines.insert(source.randrange(len(lines)), lines[place])
        elif words:
            at = source.randrange(len(words))
            words[at] = source.choice((*STRANGE, *words))
            lines[place] = "".join(words)
    return "\n".join([*lines, ""])
