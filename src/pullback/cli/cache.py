"""`pullback cache`: what the on-disk cache of compiled code holds."""

from __future__ import annotations

import sys

import click
from rich.table import Table

from pullback.cli.command import WRONG, Misuse, Output, command
from pullback.config import Options
from pullback.runtime.cache import ObjectCache

KIB = 1024


@click.group()
def cache() -> None:
    """The cache of compiled code."""


def _open() -> ObjectCache:
    """Raises: Misuse where the cache is off."""
    folder = Options.from_environment().cache
    if folder is None:
        raise Misuse("the cache is off (PULLBACK_CACHE=off)")
    return ObjectCache(folder)


@command(name="ls", example="pullback cache ls")
def list_entries(out: Output) -> None:
    """List every entry, its size and age."""
    store = _open()
    entries = store.entries()
    table = Table("key", "KiB", "age (s)")
    for entry in entries:
        table.add_row(entry.key[:16], f"{entry.bytes / KIB:.1f}", f"{entry.age:.0f}")
        out.tell(key=entry.key, bytes=entry.bytes, age=entry.age)
    total = sum(e.bytes for e in entries) / KIB
    out.show(table if entries else "no entries")
    out.show(f"{len(entries)} entries, {total:.1f} KiB in {store.folder}")


@command(example="pullback cache clear")
def clear(out: Output) -> None:
    """Remove every entry."""
    store = _open()
    with out.working("removing"):
        count = store.clear()
    out.show(f"{count} entries removed")
    out.tell(removed=count)


@command(example="pullback cache verify && echo all good")
def verify(out: Output) -> None:
    """Check every entry's authenticity; exit code 1 where one fails."""
    store = _open()
    with out.working("checking entries"):
        bad = store.verify()
    good = len(store.entries()) - len(bad)
    for key in bad:
        out.show(f"altered or truncated: {key}")
    out.show(f"{good} entries are good, {len(bad)} are not")
    out.tell(good=good, bad=bad)
    if bad:
        sys.exit(WRONG)


for each in (list_entries, clear, verify):
    cache.add_command(each)
