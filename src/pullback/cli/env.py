"""`pullback env`: every environment variable that the package reads, from one table."""

from __future__ import annotations

import os

from pullback.cli.command import Output, command
from pullback.config import BACKEND

# By name: the default, and what it does.
VARIABLES = {
    "PULLBACK_BACKEND": (
        BACKEND,
        "what compiles and runs programs: a name, or a file of a backend",
    ),
    "PULLBACK_CACHE": ("~/.cache/pullback", "the folder of compiled code, or off"),
    "PULLBACK_CC": ("the first of cc, gcc, clang, ziglang", "the compiler of the backend c"),
    "PULLBACK_CHECK": ("0", "1: launches are looked at for reads outside of arrays and NaN"),
    "PULLBACK_CUDA": ("the system's", "the library of the CUDA driver"),
    "PULLBACK_CUDA_POOL": ("on", "off: memory of the GPU is given back at once"),
    "PULLBACK_DEBUG": ("0", "0 to 4: stages with times, definitions, kernels, code on stderr"),
    "PULLBACK_DETERMINISTIC": ("0", "1: a GPU adds floats up in the same order every time too"),
    "PULLBACK_DUMP": ("none", "a folder for every stage of every compilation"),
    "PULLBACK_HOST": ("1", "0: no program calls functions of the host, such as LAPACK"),
    "PULLBACK_MACHINE": ("that of the processor", "numbers that schedules are chosen by"),
    "PULLBACK_OPENCL": ("the system's", "the library of the OpenCL runtime"),
    "PULLBACK_PROFILE": ("0", "1: launches are timed"),
    "PULLBACK_TARGET": ("this processor", "compile for x86-64-v4, x86-64-v3, x86-64"),
    "PULLBACK_THREADS": ("processors, at most 64", "threads that run kernels"),
    "PULLBACK_WORKERS": ("processors, at most 4", "processes that choose schedules"),
    "PULLBACK_TRACEBACK": ("brief", "full: tracebacks show the frames of the library"),
}


@command(example="pullback env\npullback env --json")
def env(out: Output) -> None:
    """Every environment variable, with its default and what it does."""
    for name, (default, what) in VARIABLES.items():
        now = os.environ.get(name)
        told = f"{name}={now}" if now is not None else name
        out.show(f"{told}\n    {what} (default: {default})")
        out.tell(name=name, default=default, meaning=what, value=now)
