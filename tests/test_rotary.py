"""Rotary embedding beside rotations of complex numbers, in both conventions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn
from pullback.errors import PullbackError

F = nn.functional
X = np.random.default_rng(0).normal(size=(2, 3, 5, 8))


def rotated(x: Any, places: Any, interleaved: bool, base: float = 10000.0) -> Any:
    """The same by complex numbers."""
    half = x.shape[-1] // 2
    angle = places[..., None] * base ** (-np.arange(half) / half)
    a, b = (x[..., ::2], x[..., 1::2]) if interleaved else (x[..., :half], x[..., half:])
    z = (a + 1j * b) * np.exp(1j * angle)
    if interleaved:
        return np.stack([z.real, z.imag], -1).reshape(x.shape)
    return np.concatenate([z.real, z.imag], -1)


@pytest.mark.parametrize("interleaved", [False, True])
def test_pairs_are_turned(interleaved: bool) -> None:
    x = pb.tensor(X)
    found = F.rotary_embedding(x, interleaved=interleaved)
    np.testing.assert_allclose(found.numpy(), rotated(X, np.arange(5), interleaved), rtol=1e-13)
    later = F.rotary_embedding(x, offset=pb.tensor(100_000), interleaved=interleaved)
    wanted = rotated(X, np.arange(5) + 100_000, interleaved)
    np.testing.assert_allclose(later.numpy(), wanted, rtol=1e-9, atol=1e-9)
    places = np.array([[[4, 0, 2, 2, 9]], [[1, 1, 1, 3, 0]]])
    rope = nn.RotaryEmbedding(8, base=100.0, interleaved=interleaved)
    found = rope(x, pb.tensor(places))
    np.testing.assert_allclose(found.numpy(), rotated(X, places, interleaved, 100.0), rtol=1e-13)


def test_some_features_and_other_floats() -> None:
    found = F.rotary_embedding(pb.tensor(X), dim=4).numpy()
    np.testing.assert_allclose(found[..., :4], rotated(X[..., :4], np.arange(5), False), rtol=1e-13)
    np.testing.assert_array_equal(found[..., 4:], X[..., 4:])
    half = F.rotary_embedding(pb.tensor(X, dtype="bfloat16"), offset=5000)
    assert half.dtype == pb.bfloat16
    exact = rotated(half_of(X), np.arange(5) + 5000, False)
    np.testing.assert_allclose(half.numpy().astype(float), exact, rtol=2**-8, atol=1e-3)


def half_of(x: Any) -> Any:
    return pb.tensor(x, dtype="bfloat16").numpy().astype(float)


def test_products_depend_on_distances() -> None:
    q, k = pb.tensor(X[0, :1, :1]), pb.tensor(X[0, 1:2, :1])
    dots = [
        pb.sum(F.rotary_embedding(q, offset=n) * F.rotary_embedding(k, offset=n + 3)).item()
        for n in (0, 7, 1000)
    ]
    np.testing.assert_allclose(dots, dots[0], rtol=1e-10)


@pytest.mark.parametrize("interleaved", [False, True])
def test_derivatives(interleaved: bool) -> None:
    def turned(x: pb.Tensor) -> pb.Tensor:
        return F.rotary_embedding(x, offset=2, interleaved=interleaved, dim=4)

    assert (report := pb.check_grads(turned, [X[0]], layouts=("contiguous",))), report


def test_refused_by_code() -> None:
    x = pb.tensor(X)
    for code, call in (
        ("E125", lambda: F.rotary_embedding(x[..., :7])),
        ("E176", lambda: F.rotary_embedding(x, dim=3)),
        ("E176", lambda: F.rotary_embedding(x, dim=10)),
        ("E176", lambda: nn.RotaryEmbedding(5)),
        ("E175", lambda: F.rotary_embedding(x, pb.ones(4))),
        ("E177", lambda: F.rotary_embedding(pb.ones((3, 4), dtype="int64"))),
    ):
        with pytest.raises(PullbackError) as caught:
            call()
        assert caught.value.code == code
