"""A process that chooses schedules for another one: kernels as text in, choices out.

``"kernel y: .."  ->  ["5f..", ["column.0", 1], ["tile.0", 64]]``
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pullback.backends.host.workers import machine_digest
from pullback.backends.registry import compiler
from pullback.cli.graph_text import parse_kernel
from pullback.config import Options
from pullback.ir.signature import kernel_digest


def main() -> None:
    """Answer until there are no more questions: the machine first, then kernels."""
    told = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what else is printed is no answer
    asked = json.loads(sys.stdin.readline())
    backend = compiler(asked["backend"])
    target = backend.machine(Options(**asked))

    def answer(what: Any) -> None:
        print(json.dumps(what), file=told, flush=True)

    answer(machine_digest(target))
    for line in sys.stdin:
        kernel = parse_kernel(json.loads(line))
        answer([kernel_digest(kernel), *backend.unchosen(kernel, target)])
