"""Settings of every test: Hypothesis without a clock, and how to run a failure alone."""

from __future__ import annotations

import gc
import os
import signal

import pytest
from hypothesis import settings

settings.register_profile("steady", deadline=None)
settings.register_profile("gate", deadline=None, derandomize=True)
settings.load_profile("gate" if os.environ.get("CI") else "steady")


gc.disable()  # until tests are collected: nothing of what is made is garbage


def pytest_collection_finish() -> None:
    """Ten thousand tests and what they import stay: collections of garbage need not look there."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """After the failures, the commands that run only them."""
    failed = terminalreporter.stats.get("failed", [])
    if not failed:
        return
    terminalreporter.section("to run these alone")
    for report in failed:
        terminalreporter.line(f"pytest '{report.nodeid}'")


# A shell that starts the tests in the background lets them ignore Ctrl-C; some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
