"""An archive of one object, as linkers read it: `ar` of Unix, with its table of names."""

from __future__ import annotations

from pullback.build.interface import Around

MAGIC = b"!<arch>\n"
HEAD = 60  # bytes before each member


def archive(around: Around, data: bytes) -> bytes:
    """An object with the names that it gives to others."""
    ends = [*around.bodies, f"{around.name}_check", f"{around.name}_message"]
    names = b"".join(n.encode() + b"\0" for n in ends)
    names += b"\0" * (len(names) % 2)
    table = 4 * (1 + len(ends)) + len(names)
    place = len(MAGIC) + HEAD + table
    words = [len(ends), *[place] * len(ends)]
    index = b"".join(w.to_bytes(4, "big") for w in words) + names
    data += b"\n" * (len(data) % 2)
    return MAGIC + _head("/", len(index)) + index + _head(f"{around.name[:15]}/", len(data)) + data


def _head(name: str, size: int) -> bytes:
    return f"{name:<16}{0:<12}{0:<6}{0:<6}{644:<8}{size:<10}`\n".encode()
