"""The command line: all commands in one group, which lives beside the package: see there."""

from __future__ import annotations

from pullback_cli import commands, main

__all__ = ["commands", "main"]
