"""The two seed examples beside PyTorch eager, torch.compile and jax.jit.

Each peer runs in its own process, at 1 and at 2 threads, whole step in its best form; its better
thread count is shown. Cold: seconds to the first finished step, imports excluded. Warm:
microseconds a step, median of 5 rounds. Checksums of the trained parameters must agree.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

PEERS = ("pullback", "eager", "compile", "jax")
TOLERANCE = 1e-3


def measure(peer: str, example: str, threads: int, python: str) -> dict[str, Any] | None:
    """One process with an empty cache; None where the peer is not installed."""
    with tempfile.TemporaryDirectory() as cache:
        env = os.environ | {
            "XDG_CACHE_HOME": cache,
            "TORCHINDUCTOR_CACHE_DIR": cache,
            "JAX_PLATFORMS": "cpu",
        }
        command = [python, str(Path(__file__).with_name("peers.py")), peer, example, str(threads)]
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"{peer}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def main() -> None:
    """`python benchmarks/seed_examples.py [PYTHON_FOR_JAX]`"""
    jax_python = sys.argv[1] if len(sys.argv) > 1 else sys.executable
    print("| example | peer | threads | cold, s | warm, us a step | peer / pullback |")
    print("|---|---|---|---|---|---|")
    for example in ("net", "encoder"):
        own = 0.0
        total = 0.0
        for peer in PEERS:
            python = jax_python if peer == "jax" else sys.executable
            found = [(n, measure(peer, example, n, python)) for n in (1, 2)]
            runs = [(n, r) for n, r in found if r is not None]
            if not runs:
                print(f"| {example} | {peer} | - | not installed | | |")
                continue
            threads, best = min(runs, key=lambda pair: pair[1]["step"])
            own = own or best["step"]
            total = total or best["checksum"]
            agrees = abs(best["checksum"] - total) <= TOLERANCE * abs(total)
            note = "" if agrees else " RESULT DIFFERS"
            print(
                f"| {example} | {peer} | {threads} | {best['cold']:.2f} "
                f"| {best['step'] * 1e6:.1f} | {best['step'] / own:.2f}{note} |"
            )


if __name__ == "__main__":
    main()
