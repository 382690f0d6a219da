"""`pullback build`: the compiled program of a script, or an operation of a file, as a library."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import click

from pullback.build.archive import archive
from pullback.build.artefact import build as built
from pullback.build.artefact import written_files
from pullback.build.interface import MODULE
from pullback.build.operation import Asked
from pullback.build.operation import built as built_operation
from pullback.cli.command import Misuse, Output, command
from pullback.cli.programs import environment, of_script
from pullback.ir.dtype import ALL
from pullback.operations import read

KINDS = {d.name: d for d in ALL if d.is_float}
OPERATIONS = ".toml"
HOST = "PULLBACK_HOST"
ENDS = {".so": "library", ".dll": "library", ".dylib": "library", ".wasm": "library"}
ENDS |= {".o": "object", ".obj": "object", ".a": "archive"}
ONLY = dict.fromkeys(ENDS, ("",)) | {  # machines by the ends of their names
    ".wasm": (MODULE,), ".dll": ("windows",), ".dylib": ("macos", "darwin"),
}  # fmt: skip
EXAMPLE = """\
pullback build train.py -o out/
pullback build train.py --name step --threads 4 -o out/
pullback build gemm.toml -o gemm.so -H gemm.h
pullback build gemm.toml --grad --size M=64 --size K=1..512 -o gemm.o
pullback build gemm.toml --static -o gemm.a
pullback build softmax.toml --target wasm32 -o softmax.wasm"""


@command(example=EXAMPLE)
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--out", "path", required=True, type=click.Path(path_type=Path))
@click.option("-H", "--header", type=click.Path(path_type=Path), help="of an operation")
@click.option("--name", help="which jitted function, where the script has several")
@click.option("--threads", type=click.IntRange(1, 256), default=1, help="as many of its own")
@click.option("--grad", is_flag=True, help="an operation's adjoints too: NAME_backward")
@click.option("--static", is_flag=True, help="an archive.a or an object.o, not a library")
@click.option("--size", "sizes", multiple=True, help="M=64, or its bounds, M=1..512")
@click.option("--dtype", type=click.Choice([*KINDS]), default="float32", help="of inputs")
@click.option("--target", "machine", default="", help="another machine: aarch64-linux, wasm32, ..")
def build(
    out: Output,
    source: Path,
    path: Path,
    header: Path | None,
    name: str | None,
    threads: int,
    grad: bool,
    static: bool,
    sizes: tuple[str, ...],
    dtype: str,
    machine: str,
) -> None:
    """Build SOURCE: the program of a script, or an operation of a file.toml, for C.

    Of a script, the folder gets NAME.so, NAME.h, manifest.json, weights.safetensors (what the
    program captured, as the script left it) and NAME_loader.py, which needs NumPy alone. Whole
    training loops are built, with feeders and receivers as function pointers.

    Of an operation, the file is a library (.so), an object (.o) or an archive (.a), beside a header
    (-H, or the file's name with .h). Sizes that --size does not fix are arguments of the function.
    """
    if source.suffix == OPERATIONS:
        asked = Asked(dict(map(_size, sizes)), KINDS[dtype], grad, threads, machine)
        files = _operation(out, source, path, header or path.with_suffix(".h"), asked, static)
    elif grad or static or sizes or header is not None:
        raise Misuse(f"{source} is no operation: -H, --grad, --static, --size are theirs")
    else:
        files = _script(out, source, path, name, threads, machine)
    for file in files:
        out.show(f"{file}: {file.stat().st_size:,} bytes")
    out.tell(files=[str(file) for file in files])


def _script(
    out: Output, script: Path, path: Path, name: str | None, threads: int, machine: str
) -> list[Path]:
    """Raises: Misuse where it is not clear which function."""
    if machine not in ("", MODULE) or (machine and threads > 1):
        raise Misuse(f"--target {machine}: a script is built for this machine, or {MODULE} alone")
    if path.is_file():
        raise Misuse(f"-o {path} is a file: what is built of a script is a folder")
    without = {HOST: os.environ.get(HOST, "0")}  # what a library cannot call is generated
    with out.running(script), environment(without):
        functions = of_script(script)
    if name is None and len(functions) > 1:
        raise Misuse(f"{script} has {', '.join(functions)}: --name says which")
    chosen = next(iter(functions)) if name is None else name
    if chosen not in functions:
        raise Misuse(f"{script} has no jitted {chosen!r} that it calls: {', '.join(functions)}")
    entry = functions[chosen].last
    assert entry is not None, "of_script gives those that were called"
    with out.working("compiling"):
        own = script.stem if name is None else chosen
        return built(own, entry, path, threads, machine)


def _operation(
    out: Output, source: Path, path: Path, header: Path, asked: Asked, static: bool
) -> list[Path]:
    """Raises: Misuse for a file of no kind."""
    kind = ENDS.get(path.suffix)
    if kind is None:
        raise Misuse(f"-o {path}: a file that ends in {', '.join(ENDS)}")
    if not any(map((asked.machine or platform.system().lower()).endswith, ONLY[path.suffix])):
        raise Misuse(f"-o {path}: a file of {ONLY[path.suffix][0]}, which --target did not name")
    if static and kind == "library":
        raise Misuse(f"-o {path}: what is --static ends in .a or .o")
    if asked.machine == MODULE and path.suffix != ".wasm":
        raise Misuse(f"-o {path}: a module for wasm32 ends in .wasm")
    if asked.machine and asked.threads > 1:
        raise Misuse(f"--threads {asked.threads}: for {asked.machine} one, so far")
    if header == path:
        raise Misuse(f"-H {header} is what -o is")
    with out.working("compiling"):
        made = built_operation(read(source), asked)
        data = made.data(kind == "library")
    if kind == "archive":
        data = archive(made.around, data)
    return written_files({path: data, header: made.around.header().encode()})


def _size(option: str) -> tuple[str, int | tuple[int, int]]:
    """``M=64 -> ("M", 64)``, ``M=1..512 -> ("M", (1, 512))``. Raises: Misuse."""
    name, _, text = (part.strip() for part in option.partition("="))
    parts = text.split("..")
    if not 1 <= len(parts) <= 2 or not all(p.isdecimal() and len(p) < 10 for p in parts):
        raise Misuse(f"--size {option}: write it like M=64, or M=1..512")
    lo, hi = int(parts[0]), int(parts[-1])
    if lo > hi:
        raise Misuse(f"--size {option}: {lo} is more than {hi}")
    return name, lo if len(parts) == 1 else (lo, hi)
