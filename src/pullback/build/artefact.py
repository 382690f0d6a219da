"""A compiled program as a folder that runs without this package.

    train.so, train.h, manifest.json, weights.safetensors, train_loader.py

The program's kernels, loops, branches, feeders and receivers are written as one C function
(`backends/c/whole.py`), which a C compiler makes a library of; `interface.py` is what stands
around it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from pullback.backends.base import Compiler, CompileStats, Image, Job
from pullback.backends.host.lines import NEEDS
from pullback.backends.host.processor import named_target
from pullback.backends.registry import named
from pullback.build.alone import apart, is_alone, program
from pullback.build.interface import (
    CALLBACK,
    INTERFACE,
    MODULE,
    Around,
    features,
    function_name,
    hidden,
)
from pullback.config import Options
from pullback.errors import StateError, UnsupportedError
from pullback.ir.expr import Dim
from pullback.ir.graph import Variable
from pullback.ir.program import Feed, Program, Receive
from pullback.ir.target import Target
from pullback.nn.base.weights import write_atomically
from pullback.pipeline import image_of
from pullback.prepare.ahead import turned_ahead
from pullback.runtime.image import callbacks
from pullback.runtime.report import Reporter
from pullback.runtime.tuned import chooser
from pullback.tensor.record.trace import held
from pullback.tensor.run.entry import Entry

Array = np.ndarray[Any, Any]
Talks = Feed | Receive

LANGUAGE = "c"  # the backend
TEMPLATE = Path(__file__).with_name("loader.txt")
SCRIPT = Path(__file__).with_name("module.txt")
PAGE = Path(__file__).with_name("page.txt")
# Another machine is given code for any processor of its kind: for this target of ours.
KNOWN = {
    "x86_64-linux": "x86-64-v3", "aarch64-linux": "aarch64", "aarch64-macos": "apple",
    "x86_64-windows": "x86-64", "wasm32": "x86-64",
}  # fmt: skip
KINDS = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
    "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8",
}  # fmt: skip


class Writer(Compiler, Protocol):
    """What writes a program as a C function, and makes a library of it."""

    bodies: list[str]
    dense: bool

    def prelude(self, target: Target, threads: int = 1) -> str:
        """What a file begins with."""

    def names(self, names: Sequence[str]) -> list[str]:
        """Each as an identifier that no other is."""

    def program(
        self,
        image: Image,
        inputs: Mapping[Variable, str],
        results: Mapping[Variable, str],
        constants: Mapping[Variable, Array],
        sizes: Mapping[Dim, str],
        sites: list[str],
        calls: Mapping[Talks, str],
    ) -> str:
        """The function of a program."""

    def library(
        self, text: str, plain: str, target: Target, whole: bool = True, machine: str = ""
    ) -> bytes:
        """Two files, the second for any processor, as a shared library or one object."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a program takes and gives, each by its name in C."""

    inputs: Mapping[Variable, str]
    state: Mapping[Variable, str]
    results: Mapping[Variable, str]
    calls: Mapping[Talks, str]


def build(name: str, entry: Entry, folder: Path, threads: int = 1, machine: str = "") -> list[Path]:
    """Write the program of a call into a folder, to be run by so many threads, on this machine or
    as a module of WebAssembly (`MODULE`); the files.

    Raises: UnsupportedError for what calls the host, has symbolic extents or elements that a file
        of weights has no name for; CompilerError; StateError where nothing can be written.
    """
    options = replace(Options.from_environment(), backend=LANGUAGE, threads=1, cache=None)
    options = replace(options, memory=None, host=False, profile=False, check=False)
    backend: Any = named(LANGUAGE)
    name = function_name(name, backend.alone(""))
    writer: Writer = backend.alone(f"{name}_run")
    target = aimed(machine, options, writer)
    job = Job(options, target, None, CompileStats(), Reporter(options))
    image = _image(entry, writer, job)
    names = _names(entry, image, writer)
    _refuse(image)
    contents = [v.array for v in held((*entry.read, *entry.written))]
    sites: list[str] = []
    written = {**names.state, **names.results}
    text = writer.program(image, names.inputs, written, {}, {}, sites, names.calls)
    prelude = [writer.prelude(target, threads), CALLBACK, hidden(text, f"{name}_run")]
    source = "\n".join([*prelude, *writer.bodies, text])
    manifest = _manifest(name, names, features(target) if not machine else (), machine)
    alone = not machine and is_alone(LANGUAGE)
    around = Around({name: text}, tuple(sites), manifest, not alone)
    if alone:
        library = _alone(name, entry, job, manifest, threads)
    else:
        library = writer.library(source, around.text(), target, True, machine)
    manifest["library"] = hashlib.sha256(library).hexdigest()
    weights = _weights(names.state, contents)
    files = {
        f"{name}.{'wasm' if machine else 'so'}": library,
        "manifest.json": (json.dumps(manifest, indent=1) + "\n").encode(),
        "weights.safetensors": weights,
    }
    if machine:
        files |= _pages(name, manifest, library, weights)
    else:
        files |= {
            f"{name}.h": around.header().encode(),
            f"{name}_loader.py": _loader(name).encode(),
        }
    return written_files({folder / file: data for file, data in files.items()})


def _alone(name: str, entry: Entry, job: Job, manifest: Mapping[str, Any], threads: int) -> bytes:
    """A library where nothing compiles C. Raises: UnsupportedError."""
    if threads > 1:
        what = f"{threads} threads, without a C compiler"
        raise UnsupportedError(what, help=NEEDS, code="E533")
    writer, backend = apart(), cast(Any, named(LANGUAGE))
    image = _image(entry, writer, job)
    names = _names(entry, image, backend.alone(""))
    arguments = {**names.inputs, **names.state, **names.results}
    return program(name, image, arguments, names.calls, manifest, writer)


def aimed(machine: str, options: Options, writer: Writer) -> Target:
    """What is compiled for: this machine, or any processor of another kind. Raises: OptionError."""
    if not machine:
        return writer.machine(options)
    known = named_target(KNOWN.get(machine, "x86-64"))
    return known if machine != MODULE else replace(known, cpu="")


def _pages(name: str, manifest: Mapping[str, Any], wasm: bytes, weights: bytes) -> dict[str, bytes]:
    """A module of JavaScript that runs it, and a page that has all of it."""
    text = SCRIPT.read_text().replace("@NAME@", name)
    script = text.replace("@FACTS@", json.dumps(manifest, indent=1).replace("</", "<\\/"))
    page = PAGE.read_text().replace("@NAME@", name).replace("@MODULE@", script)
    page = page.replace("@WASM@", base64.b64encode(wasm).decode())
    page = page.replace("@WEIGHTS@", base64.b64encode(weights).decode())
    return {f"{name}.mjs": script.encode(), f"{name}.html": page.encode()}


def _image(entry: Entry, writer: Compiler, job: Job) -> Image:
    """Kernels written down, memory planned."""
    program = entry.executable.program
    for rule in job.options.rules:
        program = rule.program(program)
    program = Program(turned_ahead(program.body, job.target.profile), program.state)
    chosen = chooser(None, 1, (), writer.name, writer.start)
    image, _ = image_of(program, writer, job, chosen)
    return image


def _names(entry: Entry, image: Image, writer: Writer) -> Names:
    """State is arguments, what is captured, results, in this order."""
    state = image.state
    captured, results = len(held((*entry.read, *entry.written))), len(entry.outputs)
    inputs = len(state) - captured - results
    talks = [(name, item) for name, item in callbacks(image.block)]
    told = _distinct([*(name for name, _ in talks), *(v.name for v in state), "user"])
    names = writer.names([*told[: len(talks)], "user", *told[len(talks) : -1]])
    calls = dict(zip([item for _, item in talks], names, strict=False))
    own = names[len(talks) + 1 :]
    pairs = list(zip(state, own, strict=True))
    ends = inputs, inputs + captured
    return Names(
        dict(pairs[: ends[0]]), dict(pairs[ends[0] : ends[1]]), dict(pairs[ends[1] :]), calls
    )


def _distinct(names: Sequence[str]) -> list[str]:
    """Each once: later ones of a name are numbered."""
    made: list[str] = []
    for name in names:
        count, own = 1, name
        while own in made:
            count += 1
            own = f"{name}_{count}"
        made.append(own)
    return made


def _refuse(image: Image) -> None:
    """Raises: UnsupportedError for what a built program cannot be given."""
    for variable in image.state:
        if any(isinstance(e, Dim) for e in variable.shape):
            what = f"`{variable.name}` has a symbolic extent, in a program that is built"
            raise UnsupportedError(what, help="call the function with fixed shapes", code="E395")
        if str(variable.dtype) not in KINDS:
            what = f"`{variable.name}` is {variable.dtype}, which a file of weights has no name for"
            raise UnsupportedError(what, code="E395")


def _row(variable: Variable, name: str) -> dict[str, Any]:
    return {"name": name, "kind": KINDS[str(variable.dtype)], "shape": [*variable.shape]}


def _manifest(name: str, names: Names, wanted: Sequence[str], machine: str) -> dict[str, Any]:
    """What a loader goes by."""
    calls = []
    for item, own in names.calls.items():
        feeds = isinstance(item, Feed)
        variables = item.targets if isinstance(item, Feed) else item.sources
        arrays = [_row(v, v.name) for v in variables]
        calls.append({"name": own, "feeds": feeds, "arrays": arrays})
    return {
        "interface": INTERFACE,
        "name": name,
        "machine": machine or platform.machine(),
        "features": [*wanted],
        "inputs": [_row(v, n) for v, n in names.inputs.items()],
        "state": [_row(v, n) for v, n in names.state.items()],
        "results": [_row(v, n) for v, n in names.results.items()],
        "calls": calls,
    }


def _weights(state: Mapping[Variable, str], contents: Sequence[Array]) -> bytes:
    """What is captured, as safetensors."""
    head: dict[str, Any] = {}
    at = 0
    for (variable, name), array in zip(state.items(), contents, strict=True):
        row = _row(variable, name)
        ends = [at, at + array.nbytes]
        head[name] = {"dtype": row["kind"], "shape": row["shape"], "data_offsets": ends}
        at += array.nbytes
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    data = [np.ascontiguousarray(array).tobytes() for array in contents]
    return b"".join([len(text).to_bytes(8, "little"), text, *data])


def _loader(name: str) -> str:
    text = TEMPLATE.read_text()
    return text.replace("@NAME@", name).replace("@INTERFACE@", str(INTERFACE))


def written_files(files: Mapping[Path, bytes]) -> list[Path]:
    """Files, for all who may read there; where one cannot be written, none that was not there.

    Raises: StateError.
    """
    fresh = [path for path in files if not os.path.lexists(path)]
    made: list[Path] = []
    try:
        for path, data in files.items():
            write_atomically(path, data)
            made.append(path)
    except OSError as error:
        for other in filter(fresh.__contains__, made):
            other.unlink(missing_ok=True)
        what = f"{path} cannot be written: {error.strerror}"
        raise StateError(what, help="another folder", code="E513") from error
    return made
