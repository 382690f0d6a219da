"""`pullback build`: the compiled program of a script as a library that needs no pullback."""

from __future__ import annotations

from pathlib import Path

import click

from pullback.build.artefact import build as built
from pullback.cli.command import Misuse, Output, command
from pullback.cli.programs import of_script


@command(example="pullback build train.py -o out/\npullback build train.py --name step -o out/")
@click.argument("script", type=click.Path(path_type=Path))
@click.option("-o", "--out", "folder", required=True, type=click.Path(file_okay=False))
@click.option("--name", help="which jitted function, where the script has several")
@click.option("--threads", type=click.IntRange(1, 256), default=1, help="as many of its own")
def build(out: Output, script: Path, folder: str, name: str | None, threads: int) -> None:
    """Run SCRIPT, then write the program of its jitted function as a shared library.

    The folder gets NAME.so, NAME.h, manifest.json, weights.safetensors (what the program captured,
    as the script left it) and NAME_loader.py, which needs NumPy alone. Whole training loops are
    built, with feeders and receivers as function pointers.
    """
    with out.running(script):
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
        files = built(own, entry, Path(folder), threads)
    for file in files:
        out.show(f"{file}: {file.stat().st_size:,} bytes")
    out.tell(files=[str(file) for file in files])
