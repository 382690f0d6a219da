"""The disk cache: authenticated, private, atomic, shared between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pullback.errors import CacheError
from pullback.runtime.cache import ObjectCache

KEY = "ab" * 32
DATA = bytes(range(256)) * 20


def entry(folder: Path, key: str = KEY) -> Path:
    return folder / f"{key}.obj"


def test_what_is_put_is_got(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "deep" / "cache")
    assert cache.get(KEY) is None
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA
    assert ObjectCache(cache.folder).get(KEY) == DATA


def test_folder_and_secret_are_private(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o755)
    ObjectCache(folder).put(KEY, DATA)
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("place", [0, 5, 11, 20, 43, 60, -1])
def test_an_altered_entry_is_removed_not_loaded(tmp_path: Path, place: int) -> None:
    cache = ObjectCache(tmp_path)
    cache.put(KEY, DATA)
    raw = bytearray(entry(tmp_path).read_bytes())
    raw[place] ^= 1
    entry(tmp_path).write_bytes(raw)
    assert cache.verify() == [KEY]
    assert cache.get(KEY) is None
    assert not entry(tmp_path).exists()
    cache.put(KEY, DATA)
    assert cache.get(KEY) == DATA


@pytest.mark.parametrize("length", [0, 10, 30, 43, 100, -1])
def test_a_truncated_entry_is_not_loaded(tmp_path: Path, length: int) -> None:
    cache = ObjectCache(tmp_path)
    cache.put(KEY, DATA)
    entry(tmp_path).write_bytes(entry(tmp_path).read_bytes()[:length])
    assert cache.get(KEY) is None


def test_an_entry_under_another_name_is_not_loaded(tmp_path: Path) -> None:
    cache, other = ObjectCache(tmp_path), "cd" * 32
    cache.put(KEY, DATA)
    entry(tmp_path).rename(entry(tmp_path, other))
    assert cache.get(other) is None


def test_an_entry_of_another_user_is_not_loaded(tmp_path: Path) -> None:
    mine, theirs = ObjectCache(tmp_path / "a"), ObjectCache(tmp_path / "b")
    theirs.put(KEY, DATA)
    entry(mine.folder).write_bytes(entry(theirs.folder).read_bytes())
    assert mine.get(KEY) is None


def test_a_secret_that_others_could_read_is_replaced(tmp_path: Path) -> None:
    ObjectCache(tmp_path).put(KEY, DATA)
    (tmp_path / "secret").chmod(0o644)
    cache = ObjectCache(tmp_path)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert cache.get(KEY) is None


def test_a_system_without_owners(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows: no getuid, and every file says that all may read it."""
    monkeypatch.delattr(os, "getuid")
    ObjectCache(tmp_path).put(KEY, DATA)
    secret = (tmp_path / "secret").read_bytes()
    (tmp_path / "secret").chmod(0o666)
    tmp_path.chmod(0o777)
    assert ObjectCache(tmp_path).get(KEY) == DATA
    assert (tmp_path / "secret").read_bytes() == secret


def test_list_clear_verify(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    keys = [f"{n:02x}" * 32 for n in range(3)]
    for n, key in enumerate(keys):
        cache.put(key, DATA[: 100 * n])
    (tmp_path / ".left.tmp").write_bytes(b"x")
    found = cache.entries()
    assert [e.key for e in found] == keys
    assert [e.bytes - found[0].bytes for e in found] == [0, 100, 200]
    assert all(0 <= e.age < 60 for e in found)
    assert cache.verify() == []
    assert cache.clear() == 3
    assert cache.entries() == []
    assert sorted(p.name for p in tmp_path.iterdir()) == ["secret"]


def test_a_key_is_not_a_path(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path)
    for key in ("../secret", "secret", "", "AB" * 32):
        with pytest.raises(CacheError, match="not a cache key"):
            cache.put(key, DATA)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="cannot use the cache folder"):
        ObjectCache(tmp_path / "file" / "cache")


WRITER = """
import sys
from pathlib import Path
from pullback.runtime.cache import ObjectCache
cache = ObjectCache(Path(sys.argv[1]))
for turn in range(200):
    key = f"{turn % 20:02x}" * 32
    data = key.encode() * (1 + turn % 20)
    found = cache.get(key)
    assert found is None or found == data, (turn, len(found))
    cache.put(key, data)
assert cache.verify() == []
"""


@pytest.mark.slow
def test_processes_share_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    command = [sys.executable, "-c", WRITER, str(folder)]
    running = [subprocess.Popen(command, env=dict(os.environ)) for _ in range(3)]
    assert [p.wait(timeout=60) for p in running] == [0, 0, 0]
    cache = ObjectCache(folder)
    assert len(cache.entries()) == 20
    assert cache.verify() == []
    assert not list(folder.glob(".*.tmp"))
