"""Triton's compiler, in a process of its own: ``source -> cubin and what it needs to run``.

No GPU need be there. Drivers take what `compiled` gives: load the code, ask for the function by
its name, launch it with as many warps and bytes as it says.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pullback.backends.triton.device import INTERPRET, wanted
from pullback.errors import DeviceError

WORKER = Path(__file__).with_name("worker.py")
CAPABILITIES = (80, 90, 100)  # A100, H100 and H200, B200
# What Triton adds to the arguments of a function: memory of its own, that of its profiler.
HIDDEN = 2


@dataclass(frozen=True, slots=True)
class Order:
    """A function of a file, to be compiled: types of its arguments (`*fp32`, `i64`), the numbers of
    those that are `aligned`, pointers to multiples of 16 bytes; `warps` of 32 threads, `stages` of
    loads in flight.
    """

    path: str
    name: str
    types: tuple[str, ...]
    aligned: tuple[int, ...] = ()
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True, slots=True)
class Binary:
    """Code of one function for one architecture. `name`: its symbol. A block has `warps` of 32
    threads and `shared` bytes that a launch brings; each block wants `scratch` bytes of global
    memory (behind the first of `HIDDEN` pointers after the arguments). A thread has `registers`,
    and `stack` bytes of memory for what did not fit them. `texts`: ttir, ttgir, ptx.
    """

    name: str
    texts: Mapping[str, str] = field(repr=False)
    cubin: bytes = field(repr=False)
    warps: int
    shared: int
    scratch: int
    registers: int
    stack: int


def compiled(orders: Sequence[Order], capability: int) -> list[Binary]:
    """What Triton's compiler makes of functions, for compute capability 8.0 as 80.

    Raises: DeviceError.
    """
    asked = {"capability": capability, "functions": [asdict(order) for order in orders]}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "order.json"
        path.write_text(json.dumps(asked), encoding="utf-8")
        facts = {k: v for k, v in os.environ.items() if k != INTERPRET}
        line = [sys.executable, "-P", str(WORKER), str(path)]
        done = subprocess.run(line, capture_output=True, text=True, env=facts)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["no word of why"]
        if said[-1].startswith("ModuleNotFoundError"):
            wanted(environment={INTERPRET: "1"})
        raise DeviceError(f"Triton fails to compile: {said[-1]}", code="E415")
    made = json.loads(done.stdout.splitlines()[-1])
    return [Binary(**{**one, "cubin": base64.b64decode(one["cubin"])}) for one in made]
