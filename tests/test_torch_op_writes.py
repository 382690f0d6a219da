"""Writes of compiled graphs into parts of a buffer: only the part is written, once, in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb
from pullback.errors import IndexRangeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from pullback.bridge import graphs, pieces  # noqa: E402  # they need PyTorch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PyTorch's own imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def sliced(cache: Any, k: Any, at: Any) -> Any:
    cache[:, 5:6] = k
    return k.sum()


def put(cache: Any, k: Any, at: Any) -> Any:
    cache[:, at] = k
    return k.sum()


def copied(cache: Any, k: Any, at: Any) -> Any:
    cache.index_copy_(1, at, 2 * k)
    return k.sum()


def nested(cache: Any, k: Any, at: Any) -> Any:
    cache[1:3, 7] = k[1:3, 0]
    return 2 * k


def twice(cache: Any, k: Any, at: Any) -> Any:
    cache[:, 5:6] = k
    cache[1, 5] = -k[0, 0]
    cache[:, at] = k + 1
    return k.sum()


def only(cache: Any, k: Any, at: Any) -> None:
    cache[:, 3:4].copy_(k)


def stepped(cache: Any, k: Any, at: Any) -> Any:
    cache[::2, -1] = k[::2, 0].exp()
    return cache.shape[0]


def cast(cache: Any, k: Any, at: Any) -> Any:
    cache[:, 2:3] = k.double()
    return k


def scalar(cache: Any, k: Any, at: Any) -> Any:
    cache[2, 3] = 7.0
    return k + 1


def read(cache: Any, k: Any, at: Any) -> Any:
    cache[:, 5:6] = k
    return cache.sum(1)


def most(cache: Any, k: Any, at: Any) -> Any:
    cache[:, 1:] = 2 * cache[:, 1:]
    return k.sum()


def crossed(cache: Any, k: Any, at: Any) -> Any:
    """What is written depends on what was there, at another place."""
    first = cache[:, 0].clone()
    cache[:, 0] = cache[:, 4]
    cache[:, 4] = first
    return k.sum()


PARTS: dict[Callable[..., Any], int] = {
    sliced: 1,
    put: 1,
    copied: 1,
    nested: 1,
    twice: 3,
    only: 1,
    stepped: 1,
    cast: 1,
    scalar: 1,
    read: 0,
    most: 0,
    crossed: 2,
}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The writes that ran after their program."""
    seen: list[Any] = []

    def spy(writes: Any, held: Any, known: Any) -> None:
        seen.extend(writes)
        pieces.put(writes, held, known)

    monkeypatch.setattr(graphs, "put", spy)
    return seen


def compiled(function: Callable[..., Any]) -> Any:
    torch._dynamo.reset()
    return torch.compile(function, backend=pb.torch.backend, options={"fallback": "error"})


def batch(turned: bool = False) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(0)
    cache = torch.randn(4, 40, 3, generator=generator)
    if turned:
        cache = torch.randn(3, 80, 4, generator=generator).permute(2, 1, 0)[:, ::2]
    return cache, torch.randn(4, 1, 3, generator=generator), torch.tensor([11])


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("function", PARTS, ids=lambda f: f.__name__)
def test_a_part_is_written_as_eager_writes_it(
    function: Callable[..., Any], turned: bool, parts: list[Any]
) -> None:
    cache, k, at = batch(turned)
    fast = compiled(function)
    for _ in range(2):
        parts.clear()
        other, before = cache.clone(), cache.data_ptr()
        wanted = function(other, k, at)
        torch.testing.assert_close(fast(cache, k, at), wanted)
        torch.testing.assert_close(cache, other)
        assert cache.data_ptr() == before
        assert sum(bool(w.views or w.where) for w in parts) == PARTS[function]


def test_indices_out_of_range_write_nothing() -> None:
    for function, bad in ((put, 40), (put, -41), (copied, 40), (copied, -1), (twice, 40)):
        cache, k, _ = batch()
        before = cache.clone()
        with pytest.raises(IndexRangeError, match="out of range"):
            compiled(function)(cache, k, torch.tensor([bad]))
        assert torch.equal(cache, before)
    cache, k, _ = batch()
    compiled(put)(cache, k, torch.tensor([-1]))
    assert torch.equal(cache[:, -1:], k)


def test_a_place_that_is_a_size() -> None:
    """One graph for all positions."""

    def at(cache: Any, k: Any, place: int) -> Any:
        cache[:, place] = k[:, 0]
        return k * 2

    fast = compiled(at)
    cache, k, _ = batch()
    for place in (3, 4, 9, 17):
        torch.testing.assert_close(fast(cache, k, place), k * 2)
        assert torch.equal(cache[:, place], k[:, 0])
