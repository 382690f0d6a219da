"""Compiled programs as files: saved by one process, run by another without passes or a compiler.

    f.save_image("step.image")                      of the last call, with what it captured
    step = pb.load_image("step.image", {"batch": next_batch})
    y = step(x)

A file is a magic line, a hash of the rest (of a signed one a second, by the key), the length of its
text, the text of the image (`runtime/image.py`) with a line for each blob, then the blobs: objects
of code, contents of state. All that is behind the hashes is under them, and nothing of it is parsed
before they are right. The first tells damage, not who wrote the file: its code runs as that of a
package that is installed. The second tells that whoever wrote it has the key.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from pullback.backends.base import Code, Compiler, CompileStats, Job, Made, ObjectStore, Stored
from pullback.backends.registry import compiler, named
from pullback.config import Options
from pullback.errors import (
    MALFORMED,
    ArgumentError,
    InvalidIR,
    PullbackError,
    ShapeError,
    StateError,
    UnsupportedError,
)
from pullback.ir.expr import Dim, Extent
from pullback.ir.graph import Variable
from pullback.ir.program import Program
from pullback.pipeline import begin, executor_of, image_of, store_at
from pullback.prepare.ahead import turned_ahead
from pullback.runtime.cache import write_whole
from pullback.runtime.executable import Executable
from pullback.runtime.image import fact, facts, image_text, read_image
from pullback.runtime.report import Reporter
from pullback.runtime.tuned import Chooser
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.trace import bind

Array = np.ndarray[Any, Any]
Functions = Mapping[str, Callable[..., Any]]

NAMED = 4  # words that tell two machines apart
MAGIC = b"pullback-image-1\n"
SIGNED = b"pullback-image-1 signed\n"
HASH, LENGTH = 32, 8  # bytes
KEY = range(16, hashlib.blake2b.MAX_KEY_SIZE + 1)  # bytes of a key: fewer are guessed
INTERFACE, OBJECT, STATE = "interface", "object", "contents"
CALLBACKS = ("feed", "receive")


class _Shelf:
    """Objects in memory, in front of a store."""

    def __init__(self, behind: ObjectStore | None = None) -> None:
        self.objects: dict[str, bytes] = {}
        self._behind = behind

    def get(self, key: str) -> bytes | None:
        """The object under `key`."""
        if key not in self.objects and self._behind is not None:
            data = self._behind.get(key)
            return data if data is None else self.objects.setdefault(key, data)
        return self.objects.get(key)

    def put(self, key: str, data: bytes) -> None:
        """Keep an object."""
        self.objects[key] = data


def packed(executable: Executable) -> tuple[str, dict[str, bytes]]:
    """The image of a program as text, and the objects that hold its code, by key.

    Raises: UnsupportedError for a program that only its own process can run.
    """
    options, chosen = executable.options, executable.chosen
    backend = named(options.backend)
    if not (isinstance(backend, Compiler) and isinstance(chosen, Chooser)):
        raise UnsupportedError(f"backend {options.backend!r} interprets programs", code="E313")
    options = replace(options, profile=False, check=False, debug=0, dump=None)
    shelf = _Shelf(store_at(options.cache))
    job = Job(options, backend.machine(options), shelf, CompileStats(), Reporter(options))
    traced = executable.program
    program = replace(traced, body=turned_ahead(traced.body, job.target.profile))
    image, _ = image_of(program, backend, job, chosen)
    keys = {code.stored.key for code in image.codes}
    if not image.made.identity or not keys <= shelf.objects.keys():
        what = f"backend {options.backend!r} leaves no code to another process"
        raise UnsupportedError(what, code="E313")
    return image_text(image), {key: shelf.objects[key] for key in sorted(keys)}


def unpacked(
    text: str, objects: Mapping[str, bytes], functions: Mapping[str, Callable[..., Any]]
) -> Executable:
    """A program of its image, code and functions of the host. No pass runs, nothing is compiled.

    Raises: UnsupportedError for code of another machine; InvalidIR for a text that is no image.
    """
    shelf = _Shelf()
    shelf.objects.update(objects)
    jobs: list[tuple[Compiler, Job]] = []

    def load(made: Made, kept: Sequence[Stored]) -> Sequence[Code] | None:
        options = replace(Options.from_environment(), target=made.target, machine=made.machine)
        options = replace(options, backend=made.backend, memory=None, check=False)
        backend = compiler(made.backend)
        target = backend.machine(options)
        here = backend.identity(target)
        if here != made.identity:
            what = f"a program for another machine: {_difference(made.identity, here)}"
            raise UnsupportedError(what, code="E514")
        jobs.append((backend, Job(options, target, shelf, CompileStats(), Reporter(options))))
        return backend.load(kept, jobs[0][1])

    begin(Options.from_environment())
    image = read_image(text, load, functions=functions)
    if image is None:
        raise InvalidIR("the code of an image is not there")
    ((backend, job),) = jobs
    executor = executor_of(image, backend, job)
    program, fuse = Program(image.block, image.state), lambda: image.block
    return Executable(program, job.options, executor, fuse, image, job.stats, job.target)


class SavedProgram:
    """A program out of a file. Called with arrays, it gives its results in order; `state` holds,
    by name, what it captured, and is updated in place. ``print(program)`` shows all of it.
    """

    def __init__(
        self, text: str, executable: Executable, contents: Sequence[tuple[list[Any], bytes]]
    ) -> None:
        variables = executable.program.state
        ((inputs, results),) = facts(text, INTERFACE)
        self.text = text
        self.inputs = variables[:inputs]
        self.results = variables[len(variables) - results :]
        self._captured = variables[inputs : len(variables) - results]
        self._executable = executable
        self._contents = [
            np.frombuffer(data, v.dtype.numpy).reshape(shape).copy()
            for v, ((shape, _), data) in zip(self._captured, contents, strict=True)
        ]
        names = _distinct([v.name for v in self._captured])
        self.state: Mapping[str, Array] = dict(zip(names, self._contents, strict=True))

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        given = ", ".join(map(_declared, self.inputs))
        made = ", ".join(map(_declared, self.results))
        return f"<program ({given}) -> ({made})>"

    def __call__(self, *arrays: Any) -> Tensor | tuple[Tensor, ...]:
        """Run it.

        Raises: ArgumentError for other arrays than it takes; what its functions raise.
        """
        if len(arrays) != len(self.inputs):
            what = f"{len(arrays)} arrays for {self!r}"
            raise ArgumentError(what, code="E515")
        given = [np.asarray(array) for array in arrays]
        sizes: dict[str, int] = {}
        for variable, array in zip(self.inputs, given, strict=True):
            _check(variable, array, sizes)
        shapes = [tuple(_size(e, sizes) for e in v.shape) for v in self.results]
        made = [np.zeros(s, v.dtype.numpy) for s, v in zip(shapes, self.results, strict=True)]
        every = zip(self._executable.program.state, (*given, *self._contents, *made), strict=True)
        self._executable.run(dict(every))
        tensors = tuple(Tensor(bind(array, "result", copy=False)) for array in made)
        return tensors[0] if len(tensors) == 1 else tensors


def _difference(theirs: str, here: str) -> str:
    """Words of one identity that the other lacks; of many the first.

    ``"0.50 znver4 +avx", "0.50 znver5 +avx"  ->  "it has znver4; this one znver5"``
    """
    its, own = (re.split(r"[ ,]", text) for text in (theirs, here))
    lacks = [w for w in its if w not in own], [w for w in own if w not in its]
    told = [w if len(w) <= NAMED else [*w[:NAMED], ".."] for w in lacks]
    return "; ".join(
        f"{who} {', '.join(words) or 'nothing else'}"
        for who, words in zip(("it has", "this one"), told, strict=True)
    )


def _declared(variable: Variable) -> str:
    return f"{variable.name}: {variable.dtype}[{', '.join(map(str, variable.shape))}]"


def _size(extent: Extent, sizes: Mapping[str, int]) -> int:
    return sizes[extent.name] if isinstance(extent, Dim) else extent


def _check(variable: Variable, array: Array, sizes: dict[str, int]) -> None:
    """Learn symbolic extents from an array. Raises: ArgumentError, ShapeError."""
    if array.dtype != variable.dtype.numpy:
        what = f"`{variable.name}` is {array.dtype}, not {variable.dtype}"
        raise ArgumentError(what, code="E515")
    fits = array.ndim == len(variable.shape) and all(
        e.lo <= n <= e.hi and sizes.setdefault(e.name, n) == n if isinstance(e, Dim) else n == e
        for e, n in zip(variable.shape, array.shape, strict=True)
    )
    if not fits:
        what = f"an array of shape {array.shape} for {_declared(variable)}"
        raise ShapeError(what, code="E122")


def _distinct(names: Sequence[str]) -> list[str]:
    """Each once: later ones of a name are numbered."""
    counts: dict[str, int] = {}
    made = []
    for name in names:
        count = counts[name] = counts.get(name, 0) + 1
        made.append(name if count == 1 else f"{name}_{count}")
    return made


def save(
    path: str | os.PathLike[str],
    executable: Executable,
    inputs: int,
    results: int,
    contents: Sequence[Array],
    key: bytes | None = None,
) -> None:
    """Write a program with what it captured, whole or not at all, signed where there is a key.

    Raises: UnsupportedError for a program that only its process can run; StateError where nothing
        can be written there; ArgumentError for what is no key.
    """
    _check_key(key)
    if executable.host_calls:
        call = executable.host_calls[0]
        what = f"{call.name} by {call.library}, in a program that is saved"
        if call.writes:
            raise UnsupportedError(what, origin=call.origin, code="E617")
        raise UnsupportedError(what, origin=call.origin, code="E356")
    text, objects = packed(executable)
    state = [np.ascontiguousarray(array).tobytes() for array in contents]
    lines = [fact(INTERFACE, inputs, results)]
    lines += [fact(OBJECT, key, len(data)) for key, data in objects.items()]
    lines += [fact(STATE, list(a.shape), a.nbytes) for a in contents]
    head = "\n".join([text.rstrip(), *lines, ""]).encode()
    rest = b"".join([len(head).to_bytes(LENGTH, "little"), head, *objects.values(), *state])
    seal = MAGIC + _hash(rest) if key is None else SIGNED + _hash(rest) + _hash(rest, key)
    try:
        write_whole(Path(path), seal + rest)
    except OSError as error:
        what = f"{path} cannot be written: {error.strerror}"
        raise StateError(what, help="another folder", code="E513") from error


def _hash(data: bytes, key: bytes = b"") -> bytes:
    return hashlib.blake2b(data, digest_size=HASH, key=key).digest()


def _check_key(key: object) -> None:
    """Raises: ArgumentError, which does not show it."""
    if key is not None and not (isinstance(key, bytes) and len(key) in KEY):
        of = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__
        help_ = "`secrets.token_bytes(32)` makes one"
        what = f"key is {of}: {KEY.start} to {KEY.stop - 1} bytes are needed"
        raise ArgumentError(what, help=help_, code="E515")


def image_of_file(path: str | os.PathLike[str]) -> tuple[str, bytes]:
    """The text of a saved program, and the blobs behind it. Whoever signed it is not looked at.

    Raises: StateError for a file that is none, of another version, cut off or damaged.
    """
    return _parts(path, _sealed(path)[1])


def _sealed(path: str | os.PathLike[str]) -> tuple[bytes, bytes]:
    """The signature of a whole file, empty where it has none, and what it is of."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise StateError(f"{path} cannot be read: {error.strerror}", code="E513") from error
    magic = next((m for m in (MAGIC, SIGNED) if data.startswith(m)), None)
    if magic is None:
        raise StateError(f"{path} is no image of this version", code="E513")
    start = len(magic) + HASH
    end = start + HASH * (magic == SIGNED)
    if _hash(data[end:]) != data[len(magic) : start]:
        raise StateError(f"{path} is damaged: it was cut off, or changed", code="E513")
    return data[start:end], data[end:]


def _trust(path: str | os.PathLike[str], signature: bytes, rest: bytes, key: bytes | None) -> None:
    """Raises: StateError where a file and a key do not belong together."""
    if signature and key is None:
        help_ = "load_image(path, key=..) with the key that it was saved with"
        raise StateError(f"{path} is signed, and no key is given", help=help_, code="E513")
    if key is None:
        return
    if not signature:
        help_ = "f.save_image(path, key=..) signs it"
        raise StateError(f"{path} is not signed, and a key is given", help=help_, code="E513")
    if not hmac.compare_digest(signature, _hash(rest, key)):
        help_ = "do not load it: somebody without the key wrote it, or the key is another"
        raise StateError(f"{path} is not signed by this key", help=help_, code="E513")


def _parts(path: str | os.PathLike[str], rest: bytes) -> tuple[str, bytes]:
    end = LENGTH + int.from_bytes(rest[:LENGTH], "little")
    try:
        return rest[LENGTH:end].decode(), rest[end:]
    except UnicodeDecodeError as error:
        raise StateError(f"{path} holds no text of an image", code="E513") from error


def load_image(
    path: str | os.PathLike[str],
    functions: Functions | None = None,
    *,
    key: bytes | None = None,
) -> SavedProgram:
    """A program that `save_image` wrote, with its feeders and receivers by name.

    Nothing is traced or compiled: native code of the file runs, with your rights. Trust a file as
    you trust a wheel that you install. A `key` takes files alone that were saved with the same.

    Raises: StateError for a file that is no image, damaged, or not signed by `key`;
        UnsupportedError for one of another processor; ArgumentError for functions that are
        missing, or that it has no use for, and what is none.

    Example:
        >>> f = pb.jit(lambda x: pb.sum(x * x), options=pb.Options(backend="llvm"))
        >>> f(pb.tensor([1.0, 2.0])).item()
        5.0
        >>> f.save_image("squares.image")
        >>> pb.load_image("squares.image")(pb.tensor([1.0, 2.0])).item()
        5.0
    """
    if not isinstance(path, str | os.PathLike):
        raise ArgumentError(f"path={path!r}", help="a path is needed", code="E515")
    if not isinstance(functions, Mapping | None):
        what = f"functions={functions!r}: functions by their names are needed"
        raise ArgumentError(what, code="E515")
    _check_key(key)
    signature, rest = _sealed(path)
    _trust(path, signature, rest, key)
    text, data = _parts(path, rest)
    try:
        return _loaded(text, data, functions or {})
    except PullbackError:
        raise
    except (InvalidIR, *MALFORMED) as error:
        raise StateError(f"{path} holds no image: {error}", code="E513") from error


def _loaded(text: str, data: bytes, functions: Functions) -> SavedProgram:
    named = dict.fromkeys(name for word in CALLBACKS for name, *_ in facts(text, word))
    if named.keys() != functions.keys():
        missing, unknown = named.keys() - functions.keys(), functions.keys() - named.keys()
        what = f"this program calls {', '.join(named) or 'nothing'}"
        told = ", ".join([*(f"no `{n}`" for n in missing), *(f"`{n}`" for n in unknown)])
        raise ArgumentError(f"{what}; functions has {told}", code="E515")
    objects, state = facts(text, OBJECT), facts(text, STATE)
    sizes = [size for _, size in (*objects, *state)]
    if sum(sizes) != len(data):
        raise InvalidIR(f"{len(data)} bytes behind the text, not {sum(sizes)}")
    ends = [0, *accumulate(sizes)]
    parts = [data[a:b] for a, b in pairwise(ends)]
    codes = {key: part for (key, _), part in zip(objects, parts, strict=False)}
    executable = unpacked(text, codes, functions)
    return SavedProgram(text, executable, list(zip(state, parts[len(objects) :], strict=True)))
