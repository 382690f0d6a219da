"""`pullback cache`: what the on-disk cache of compiled code holds."""

from __future__ import annotations

import sys

import click
from rich.console import Console
from rich.table import Table

from pullback.config import Options
from pullback.runtime.cache import ObjectCache

KIB = 1024


@click.group()
def cache() -> None:
    """The cache of compiled code."""


def _open() -> ObjectCache:
    folder = Options.from_environment().cache
    if folder is None:
        raise click.ClickException("the cache is off (PULLBACK_CACHE=off)")
    return ObjectCache(folder)


@cache.command("ls")
def list_entries() -> None:
    """List every entry, its size and age."""
    found = _open()
    entries = found.entries()
    table = Table("key", "KiB", "age (s)")
    for entry in entries:
        table.add_row(entry.key[:16], f"{entry.bytes / KIB:.1f}", f"{entry.age:.0f}")
    total = sum(e.bytes for e in entries) / KIB
    Console().print(table if entries else "no entries")
    click.echo(f"{len(entries)} entries, {total:.1f} KiB in {found.folder}")


@cache.command()
def clear() -> None:
    """Remove every entry."""
    click.echo(f"{_open().clear()} entries removed")


@cache.command()
def verify() -> None:
    """Check every entry's authenticity; exit code 1 where one fails."""
    found = _open()
    bad = found.verify()
    for key in bad:
        click.echo(f"altered or truncated: {key}")
    click.echo(f"{len(found.entries()) - len(bad)} entries are good, {len(bad)} are not")
    if bad:
        sys.exit(1)
