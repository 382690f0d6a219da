"""Compiles functions of Triton's for a GPU that need not be there, in a process of its own.

``python worker.py FILE``: reads FILE (JSON: capability, functions), writes what it made.
It imports nothing of pullback: Triton is imported here to compile, elsewhere to interpret.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import tempfile
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

TOOL = Path("backends", "nvidia", "bin", "cuobjdump")
USED = re.compile(r"REG:(\d+) STACK:(\d+)")  # what cuobjdump says of a function


def main(path: Path) -> None:
    """Every function: its code, its texts by stage, what it needs to run; Triton is imported
    lazily, when the order is there.
    """
    asked = json.loads(path.read_text())

    import triton
    from triton.backends.compiler import GPUTarget

    target = GPUTarget("cuda", asked["capability"], 32)
    tool = Path(triton.__file__).with_name("backends").parent / TOOL
    modules: dict[str, Any] = {}
    made = []
    for function in asked["functions"]:
        file = function["path"]
        if file not in modules:
            modules[file] = _module(Path(file).resolve(strict=True))
        made.append(_compiled(triton, modules[file], function, target, tool))
    print(json.dumps(made))


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
        "scratch": getattr(facts, "global_scratch_size", 0) or 0,
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
    main(Path(sys.argv[1]))
