"""Compiles functions of Triton's for a GPU that need not be there, in a process of its own.

``python worker.py``: a line of JSON (capability, functions) in, one out: ``{"made": ..}``, or
``{"error": ".."}``. It ends with its input, or where nobody asks for a minute. It imports nothing
of pullback: Triton is imported here to compile, elsewhere to interpret.
"""

from __future__ import annotations

import base64
import json
import os
import re
import select
import subprocess
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

TOOL = Path("backends", "nvidia", "bin", "cuobjdump")
Modules = dict[tuple[Path, int], Any]  # by file, and when it was changed
IDLE = 60  # seconds without an order
USED = re.compile(r"REG:(\d+) STACK:(\d+)")  # what cuobjdump says of a function


def main() -> None:
    """Orders, one after the other. What libraries print goes to the standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    modules: Modules = {}
    while select.select([sys.stdin], [], [], IDLE)[0] and (line := sys.stdin.readline()):
        try:
            told: dict[str, Any] = {"made": _made(json.loads(line), modules)}
        except Exception as error:
            said = str(error).strip().splitlines() or ["no word of why"]
            told = {"error": f"{type(error).__name__}: {said[-1]}"}
        print(json.dumps(told), file=answers, flush=True)


def _made(asked: dict[str, Any], modules: Modules) -> list[dict[str, Any]]:
    """Every function: its code, its texts by stage, what it needs to run; Triton is imported
    lazily, when the first order is there.
    """
    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", asked["capability"], 32)
    tool = Path(triton.__file__).with_name("backends").parent / TOOL
    made = []
    for function in asked["functions"]:
        file = Path(function["path"]).resolve(strict=True)
        version = file, file.stat().st_mtime_ns
        if version not in modules:
            modules[version] = _module(file)
        made.append(_compiled(triton, modules[version], function, target, tool))
    return made


def _module(file: Path) -> Any:
    """The functions of a file."""
    spec = spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None, "it is a file"
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compiled(
    triton: Any, module: Any, function: dict[str, Any], target: Any, tool: Path
) -> dict[str, Any]:
    """One function."""
    own = getattr(module, function["name"])
    types = dict(zip(own.arg_names, function["types"], strict=True))
    aligned = {(n,): [["tt.divisibility", 16]] for n in function["aligned"]}
    source = triton.compiler.ASTSource(fn=own, signature=types, constexprs={}, attrs=aligned)
    options = {
        "num_warps": function["warps"],
        "num_stages": function["stages"],
        "enable_fp_fusion": True,
    }
    code = triton.compile(source, target=target, options=options)
    cubin, facts = code.asm.get("cubin", b""), code.metadata
    registers, stack = _used(cubin, tool)
    return {
        "name": facts.name,
        "texts": {stage: code.asm[stage] for stage in ("ttir", "ttgir", "ptx")},
        "cubin": base64.b64encode(cubin).decode(),
        "warps": facts.num_warps,
        "shared": facts.shared,
        "scratch": facts.global_scratch_size,
        "align": facts.global_scratch_align,
        "registers": registers,
        "stack": stack,
    }


def _used(cubin: bytes, tool: Path) -> tuple[int, int]:
    """Registers and bytes of stack of a thread, as the assembler counts them."""
    if not cubin or not tool.exists():
        return 0, 0
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        line = [str(tool), "-res-usage", file.name]
        said = subprocess.run(line, capture_output=True, text=True).stdout
    numbers = USED.search(said)
    return (0, 0) if numbers is None else (int(numbers[1]), int(numbers[2]))


if __name__ == "__main__":
    main()
