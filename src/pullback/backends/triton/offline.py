"""Compiles a file of Triton's functions for a GPU that need not be there, in a process of its own.

``python offline.py FILE``: reads FILE (JSON: path, capability, functions), writes what it made.
It imports nothing of pullback: Triton is imported here to compile, elsewhere to interpret.
"""

from __future__ import annotations

import json
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any


def main(path: Path) -> None:
    """Every function of a file: its texts by stage, bytes it shares, those of its code; Triton is
    imported lazily, when the file is there.
    """
    asked = json.loads(path.read_text())
    file = Path(asked["path"]).resolve(strict=True)

    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    spec = spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None, "it is a file"
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    target, made = GPUTarget("cuda", asked["capability"], 32), []
    for function in asked["functions"]:
        own = getattr(module, function["name"])
        types = dict(zip(own.arg_names, function["types"], strict=True))
        aligned = {
            (n,): [["tt.divisibility", 16]]
            for n, kind in enumerate(function["types"])
            if kind.startswith("*")
        }
        source = ASTSource(fn=own, signature=types, constexprs={}, attrs=aligned)
        options: dict[str, Any] = {"num_warps": function["warps"], "enable_fp_fusion": True}
        code = triton.compile(source, target=target, options=options)
        texts = {stage: code.asm[stage] for stage in ("ttir", "ttgir", "ptx")}
        shared, cubin = code.metadata.shared, len(code.asm.get("cubin", b""))
        made.append({"texts": texts, "shared": shared, "cubin": cubin})
    print(json.dumps(made))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
