"""Engines that others wrote: Gloo under torchrun, MPI under mpiexec, the same sums by both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from distributed_support import ROOT

LIMIT = 300  # seconds
SCRIPT = """\
import sys

import numpy as np
import pullback as pb

D = pb.distributed
group = D.init()
rows = 2 * group.size
x = (np.arange(rows * 3.0).reshape(rows, 3) + group.rank).astype(np.float32)


def f(x):
    return D.all_reduce(x, "mean"), D.all_gather(x), D.reduce_scatter(x)


def loss(x):
    return pb.sum(D.all_reduce(x * x) ** 2)


every = [(np.arange(rows * 3.0).reshape(rows, 3) + r).astype(np.float32) for r in range(group.size)]
own = slice(2 * group.rank, 2 * group.rank + 2)
for found in (f(x), pb.jit(f)(x)):
    mean, gathered, part = (np.asarray(t) for t in found)
    np.testing.assert_allclose(mean, sum(every) / group.size, rtol=1e-6)
    np.testing.assert_array_equal(gathered, np.concatenate(every))
    np.testing.assert_array_equal(part, sum(every)[own])
slope = np.asarray(pb.jit(pb.grad(loss))(x))
np.testing.assert_allclose(slope, 4 * group.size * sum(e * e for e in every) * x, rtol=1e-5)


def trained(shard):
    pb.random.manual_seed(0)
    parallel = D.DataParallel(pb.nn.Linear(5, 3), bucket=1)
    opt = pb.optim.AdamW(parallel.module.parameters(), lr=0.1)
    opt = D.sharded(opt, parallel) if shard else opt
    own = np.arange(10.0, dtype=np.float32).reshape(2, 5) * (group.rank + 1)

    def step():
        opt.zero_grad()
        (parallel(pb.tensor(own)) ** 2).mean().backward()
        opt.step()

    pb.jit(lambda: pb.loop(4, step))()
    weights = [t.numpy() for t in parallel.module.parameters()]
    return weights + [t.numpy() for _, t in sorted(opt.state_dict().items())]


for found, wanted in zip(trained(True), trained(False), strict=True):
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
try:
    pb.jit(D.all_reduce)(np.ones(2 + group.rank))
except D.DistributedError as error:
    assert error.code == "E613"
    sys.stdout.write(f"{group} right\\n")  # in one piece: ranks share the pipe
"""


def started(command: list[str], folder: Path) -> str:
    (folder / "script.py").write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    told = {"capture_output": True, "text": True, "timeout": LIMIT}
    done = subprocess.run([*command, "script.py"], env=env, cwd=folder, check=False, **told)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.torch
@pytest.mark.slow
def test_gloo_under_torchrun(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    assert started(run, tmp_path).count("of 2, Gloo) right") == 2


@pytest.mark.mpi
@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_mpi_under_mpiexec(ranks: int, tmp_path: Path) -> None:
    here = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(here) if here.exists() else shutil.which("mpiexec")
    if find_spec("mpi4py") is None or mpiexec is None:
        pytest.skip("mpi4py or mpiexec is not installed: pip install 'pullback[mpi]'")
    found = started([mpiexec, "-n", str(ranks), sys.executable], tmp_path)
    assert found.count(f"of {ranks}, MPI) right") == ranks
