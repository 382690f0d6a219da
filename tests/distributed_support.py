"""Ranks for tests: threads of this process, or processes of their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import pullback as pb
from pullback.distributed import shared

ROOT = Path(__file__).parent.parent
R = TypeVar("R")
LIMIT = 120  # seconds that a process may take


def near(ranks: int, *, timeout: float) -> list[pb.distributed.Group]:
    """Ranks that share memory, for threads."""
    return [pb.distributed.Group(t) for t in shared.loopback(ranks, timeout)]


def threads(
    ranks: int, work: Callable[[Any], R], make: Any = pb.distributed.loopback, **how: Any
) -> list[R]:
    """What each rank gives; raises what the first of them raised."""
    groups = make(ranks, **{"timeout": 60.0, **how})
    try:
        with ThreadPoolExecutor(ranks) as pool:
            futures = [pool.submit(work, group) for group in groups]
            return [future.result() for future in futures]
    finally:
        for group in groups:
            group.close()


def environment(rank: int, size: int, port: int, **more: str) -> dict[str, str]:
    own = {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_PORT": str(port)}
    path = {"PYTHONPATH": str(ROOT / "src"), "MASTER_ADDR": "127.0.0.1", "PULLBACK_THREADS": "1"}
    return {**os.environ, **path, **own, **more}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def processes(
    size: int, command: Sequence[str], folder: Path, **more: str
) -> list[subprocess.CompletedProcess[str]]:
    """`python COMMAND` as ranks of a ring, to their ends."""
    port = free_port()
    begun = [
        subprocess.Popen(
            [sys.executable, *command],
            env=environment(rank, size, port, **more),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        ended = [(p, p.communicate(timeout=LIMIT)) for p in begun]
    finally:
        for p in begun:
            p.kill()
    return [subprocess.CompletedProcess(command, p.returncode, *told) for p, told in ended]
