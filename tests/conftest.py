"""Settings of every test: Hypothesis without a clock, and how to run a failure alone."""

from __future__ import annotations

import gc
import os
import signal
import zlib
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# Kernels of Triton run on the processor; it is read when Triton is imported, by PyTorch too.
os.environ.setdefault("TRITON_INTERPRET", "1")

# What tests change of this process, others would not know when they choose schedules for it.
os.environ.setdefault("PULLBACK_WORKERS", "1")

HERE = Path(__file__).parent
# Of a second and more (scripts/long_tests.py): not in a run of all, but where their file is named.
LONG = frozenset((HERE / "long.txt").read_text().splitlines())

settings.register_profile("steady", deadline=None)
settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("gate" if os.environ.get("CI") else "steady")


gc.disable()  # until tests are collected: nothing of what is made is garbage


def pytest_collection_finish() -> None:
    """Ten thousand tests and what they import stay: collections of garbage need not look there."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture
def fresh_torch() -> Iterator[None]:
    """Numbers of one seed, one thread, nothing that Dynamo remembers of other tests."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch._dynamo.reset()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def one_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers of one seed in PyTorch, and a cache of the test's own."""
    pytest.importorskip("torch").manual_seed(0)
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path))


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "of the tests that are selected one of N, picked by its name: the same ones each time"
    parser.addoption("--every", type=int, default=1, metavar="N", help=text)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None]:
    """Which tests are slow is marked before `-m` is asked, and `--every` picks of what it left."""
    _sample(items)
    for item in items:
        if item.nodeid in LONG:
            item.add_marker("long")
    yield
    every, plain = config.getoption("every"), _is_plain(config)
    picked, left = [], []
    for item in items:
        out = zlib.crc32(item.nodeid.encode()) % every or (plain and item.nodeid in LONG)
        (left if out else picked).append(item)
    config.hook.pytest_deselected(items=left)
    items[:] = picked


def _is_plain(config: pytest.Config) -> bool:
    """Whether all tests are run, and nobody said which: ``pytest`` alone."""
    whole = all(Path(path).resolve() == HERE for path in config.args)
    return whole and config.option.markexpr == "not slow"


def _sample(items: list[pytest.Item]) -> None:
    """`sampled(n)`: the first of a test's cases and every n-th are run; the others are slow."""
    cases: Counter[str] = Counter()
    for item in items:
        mark = item.get_closest_marker("sampled")
        if mark is None:
            continue
        name = item.nodeid.partition("[")[0]
        if cases[name] % mark.args[0]:
            item.add_marker("slow")
        cases[name] += 1


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After the failures, the commands that run only them."""
    failed = terminalreporter.stats.get("failed", [])
    if not failed:
        return
    terminalreporter.section("to run these alone")
    for report in failed:
        also = "-m slow " if "slow" in report.keywords else ""
        terminalreporter.line(f"pytest {also}'{report.nodeid}'")


# A shell that starts the tests in the background lets them ignore Ctrl-C; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
