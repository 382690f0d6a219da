"""The on-disk cache of compiled objects.

An entry is one file: a magic number, a keyed hash of its name and content, the content. The key is
random, made once per user, and readable only by them. What fails the check is never loaded: it
is removed and built again. Entries appear by renaming, so processes may share a folder.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, takewhile
from pathlib import Path

from pullback.config import frozen
from pullback.errors import CacheError

MAGIC = b"pullback-1\n"
TAG = 32  # bytes of the keyed hash
SECRET = "secret"
SUFFIX = ".obj"
TEMPORARY = ".tmp"
STALE = 3600.0  # seconds after which a file that is still temporary was left by a killed process
NAME = re.compile(r"[0-9a-f]{16,128}")


@frozen
class Entry:
    """One cached object: size in bytes, age in seconds."""

    key: str
    bytes: int
    age: float


class ObjectCache:
    """Objects by key in a private folder.

    Raises: CacheError where the folder cannot be made private.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _require_private(folder)
            sweep(folder)
            self._secret = _secret(folder / SECRET)
        except OSError as error:
            raise CacheError(
                f"cannot use the cache folder {folder}: {error.strerror}",
                help="set PULLBACK_CACHE to a folder of your own, or to off",
            ) from error

    def get(self, key: str) -> bytes | None:
        """The object under `key`; None where it is absent or was altered (then it is removed)."""
        path = self._path(key)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        content = self._open(key, data)
        if content is None:
            with suppress(OSError):
                path.unlink()
        return content

    def put(self, key: str, data: bytes) -> None:
        """Keep an object. A full or read-only disk is no error: it is built again next time."""
        with suppress(OSError):
            write_whole(self._path(key), MAGIC + self._tag(key, data) + data)

    def entries(self) -> list[Entry]:
        """Every entry, by key."""
        now = time.time()
        entries = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                facts = path.stat()
            except FileNotFoundError:
                continue
            entries.append(Entry(path.stem, facts.st_size, max(0.0, now - facts.st_mtime)))
        return entries

    def clear(self) -> int:
        """Remove every entry, and what interrupted writers left; how many entries went."""
        every = list(self.folder.glob(f"*{SUFFIX}"))
        for path in every:
            path.unlink(missing_ok=True)
        sweep(self.folder, 0.0)
        return len(every)

    def verify(self) -> list[str]:
        """The keys of entries that fail the check; they are left in place."""
        bad = []
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            try:
                data = path.read_bytes()
            except FileNotFoundError:
                continue
            if self._open(path.stem, data) is None:
                bad.append(path.stem)
        return bad

    def _path(self, key: str) -> Path:
        if not NAME.fullmatch(key):
            raise CacheError(f"{key!r} is not a cache key", code="E512")
        return self.folder / f"{key}{SUFFIX}"

    def _tag(self, key: str, content: bytes) -> bytes:
        state = hashlib.blake2b(key=self._secret, digest_size=TAG)
        state.update(f"{len(key)}:{key}".encode())
        state.update(content)
        return state.digest()

    def _open(self, key: str, data: bytes) -> bytes | None:
        head = len(MAGIC) + TAG
        if len(data) < head or not data.startswith(MAGIC):
            return None
        content = data[head:]
        good = hmac.compare_digest(data[len(MAGIC) : head], self._tag(key, content))
        return content if good else None


def write_whole(path: Path, data: bytes, flush: bool = False, mode: int = 0o600) -> None:
    """Replace a file: written beside it, then renamed. `flush`: it is on the disk before.

    Its temporary names are few, so what a killed process left is found without a look at the
    folder. Raises: OSError; nothing is left then.
    """
    for taken in takewhile(Path.exists, _beside(path)):
        _remove(taken, STALE)
    for beside in _beside(path):
        with suppress(FileExistsError):
            handle = os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode)
            break
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            if flush:
                os.fsync(file.fileno())
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def _beside(path: Path) -> Iterator[Path]:
    return (path.with_name(f".{path.name}.{number}{TEMPORARY}") for number in count())


def sweep(folder: Path, age: float = STALE) -> None:
    """Remove temporary files that nobody has written to for `age` seconds."""
    for path in list(folder.glob(f".*{TEMPORARY}")):
        _remove(path, age)


def _remove(path: Path, age: float) -> None:
    with suppress(OSError):
        if time.time() - path.stat().st_mtime >= age:
            path.unlink()


def _require_private(folder: Path) -> None:
    facts = folder.stat()
    if hasattr(os, "getuid") and facts.st_uid != os.getuid():
        raise CacheError(
            f"the cache folder {folder} belongs to another user",
            help="set PULLBACK_CACHE to a folder of your own",
            code="E510",
        )
    if _open_to_others(facts):
        folder.chmod(0o700)


def _open_to_others(facts: os.stat_result) -> bool:
    """Whether others may use a file. Windows has no owners and no bits that would say so: a folder
    of the user's is closed to others by its access list.
    """
    return hasattr(os, "getuid") and bool(facts.st_mode & 0o077)


def _secret(path: Path) -> bytes:
    """The user's key; made by whichever process comes first."""
    for _ in range(2):
        try:
            secret = path.read_bytes()
        except FileNotFoundError:
            _make_secret(path, replace=False)
            continue
        if len(secret) == TAG and not _open_to_others(path.stat()):
            return secret
        _make_secret(path, replace=True)
    return path.read_bytes()


def _make_secret(path: Path, replace: bool) -> None:
    handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
    with os.fdopen(handle, "wb") as file:
        file.write(secrets.token_bytes(TAG))
    if replace:
        os.replace(name, path)
        return
    try:
        os.link(name, path)
    except FileExistsError:
        pass
    finally:
        os.unlink(name)
