"""`pb.fft` beside NumPy and PyTorch: lengths, axes, norms, real forms, derivatives, windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import ArgumentError, DTypeError, PullbackError, ShapeError, UnsupportedError

RNG = np.random.default_rng(5)
LENGTHS = (1, 2, 3, 7, 12, 30, 97, 128, 1000, 1009, 4096)


def drawn(*shape: int) -> Any:
    return RNG.normal(size=shape) + 1j * RNG.normal(size=shape)


def near(found: Any, wanted: Any, scale: float = 1e-13) -> None:
    assert found.numpy().shape == wanted.shape
    size = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    np.testing.assert_allclose(found.numpy(), wanted, rtol=0, atol=scale * size)


def error(found: Any, wanted: Any) -> float:
    """In units of the last place of the type, of the whole vector."""
    eps = np.finfo(found.dtype).eps
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted) / eps)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("n", LENGTHS)
def test_lengths(n: int) -> None:
    z = drawn(n)
    limit = 2 + np.log2(n)
    for kind in ("complex128", "complex64"):
        given = z.astype(kind)
        wanted = np.fft.fft(given.astype("complex128"))
        found = pb.fft.fft(pb.Complex.of(given)).numpy()
        assert found.dtype == kind and error(found, wanted) <= limit
        back = np.fft.ifft(given.astype("complex128"))
        assert error(pb.fft.ifft(pb.Complex.of(given)).numpy(), back) <= limit


def test_roots_of_quarters_are_exact() -> None:
    found = pb.fft.fft(np.array([1.0, 2.0, 3.0, 4.0])).numpy()
    assert found.tolist() == [10, -2 + 2j, -2, -2 - 2j]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("norm", ["backward", "ortho", "forward"])
@pytest.mark.parametrize("n", [None, 4, 9])
def test_one_axis_as_numpy_has_it(norm: str, n: int | None) -> None:
    z, x = drawn(3, 6, 2), RNG.normal(size=(3, 6, 2))
    w, t = pb.Complex.of(z), pb.tensor(x)
    for name in ("fft", "ifft", "hfft", "irfft"):
        near(getattr(pb.fft, name)(w, n, 1, norm), getattr(np.fft, name)(z, n, 1, norm))
    for name in ("fft", "ifft", "rfft", "ihfft", "hfft", "irfft"):
        near(getattr(pb.fft, name)(t, n, 1, norm), getattr(np.fft, name)(x, n, 1, norm))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("axes", [None, (0, 2), (2, 1)])
@pytest.mark.parametrize("s", [None, (4, 3)])
def test_several_axes_as_numpy_has_them(axes: Any, s: Any) -> None:
    z, x = drawn(3, 4, 5), RNG.normal(size=(3, 4, 5))
    own = axes if axes is not None or s is None else (-2, -1)
    for name in ("fftn", "ifftn", "irfftn"):
        near(getattr(pb.fft, name)(pb.Complex.of(z), s, axes), getattr(np.fft, name)(z, s, own))
    near(pb.fft.rfftn(pb.tensor(x), s, axes), np.fft.rfftn(x, s, own))
    near(pb.fft.fft2(pb.tensor(x)), np.fft.fft2(x))
    near(pb.fft.irfft2(pb.fft.rfft2(pb.tensor(x)), (4, 5)), x)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_frequencies(n: int) -> None:
    near(pb.fft.fftfreq(n, 0.5, dtype="float64"), np.fft.fftfreq(n, 0.5))
    near(pb.fft.rfftfreq(n, 0.5, dtype="float64"), np.fft.rfftfreq(n, 0.5))
    x = RNG.normal(size=(n, 3))
    near(pb.fft.fftshift(pb.tensor(x)), np.fft.fftshift(x), 0)
    near(pb.fft.ifftshift(pb.tensor(x), 0), np.fft.ifftshift(x, 0), 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n", [1, 6, 67])
def test_derivatives(n: int) -> None:
    given = [RNG.normal(size=(2, n)) for _ in range(2)]
    limits: dict[str, Any] = {"layouts": ("contiguous", "transposed"), "native": n < 9}

    def both(x: Any, y: Any) -> Any:
        return pb.fft.ifft(pb.fft.fft(pb.Complex(x, y)) * pb.Complex(y, x), axis=0)

    assert pb.check_grads(both, given, **limits)
    assert pb.check_grads(lambda x: pb.fft.rfft(x * x), given[:1], **limits)
    assert pb.check_grads(lambda x, y: pb.fft.irfft(pb.Complex(x, y), 9), given, **limits)


def test_gradients_are_pytorchs() -> None:
    torch = pytest.importorskip("torch")
    z = drawn(10)

    def energy(spectrum: Any) -> Any:
        return (spectrum * (spectrum * spectrum)).real.sum()

    ours = pb.grad(lambda w: energy(pb.fft.fft(w, norm="ortho")))(pb.Complex.of(z)).numpy()
    theirs = torch.tensor(z, requires_grad=True)
    energy(torch.fft.fft(theirs, norm="ortho")).backward()
    np.testing.assert_allclose(ours, theirs.grad.numpy(), rtol=1e-12)


def test_in_programs_and_over_samples() -> None:
    x = RNG.normal(size=(4, 12))

    def power(row: Any) -> Any:
        z = pb.fft.rfft(row)
        return z.square()

    wanted = np.abs(np.fft.rfft(x)) ** 2
    near(pb.jit(pb.vmap(power))(x), wanted)
    near(pb.vmap(power)(pb.tensor(x)), wanted)
    slope = pb.jit(pb.grad(lambda t: pb.sum(power(t))))(pb.tensor(x))
    wanted = 2 * np.fft.fft(np.eye(12))[:7].conj().T @ np.fft.rfft(x).T
    near(slope, wanted.real.T)


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("normalized", [True, False])
def test_windows_as_pytorch_has_them(center: bool, normalized: bool) -> None:
    torch = pytest.importorskip("torch")
    x = RNG.normal(size=(2, 50))
    window = np.hanning(10) + 0.1
    settings: dict[str, Any] = {"center": center, "normalized": normalized}
    theirs = torch.stft(
        torch.tensor(x), 12, 5, 10, torch.tensor(window), return_complex=True, **settings
    )
    found = pb.fft.stft(pb.tensor(x), 12, 5, 10, pb.tensor(window), **settings)
    near(found, theirs.numpy())
    both = pb.fft.stft(pb.tensor(x), 12, 5, 10, pb.tensor(window), onesided=False, **settings)
    assert both.shape == (2, 12, theirs.shape[-1])
    whole = pb.fft.istft(both, 12, 5, 10, pb.tensor(window), onesided=False, **settings)
    half = pb.fft.istft(found, 12, 5, 10, pb.tensor(window), **settings)
    near(whole[:, 5:40], half.numpy()[:, 5:40])
    if center:
        back = pb.fft.istft(found, 12, 5, 10, pb.tensor(window), length=50, **settings)
        near(back, x)
    assert pb.check_grads(
        lambda t: pb.fft.stft(t, 6, 2, window=pb.ones(6, dtype="float64"), **settings),
        [x[:, :12]], layouts=("contiguous",),
    )  # fmt: skip


@pytest.mark.parametrize("mode", ["constant", "reflect", "replicate", "circular"])
def test_how_a_signal_goes_on(mode: str) -> None:
    torch = pytest.importorskip("torch")
    x = RNG.normal(size=(2, 9))
    theirs = torch.stft(
        torch.tensor(x), 6, 3, window=torch.ones(6), pad_mode=mode, return_complex=True
    )
    near(pb.fft.stft(pb.tensor(x), 6, 3, pad_mode=mode), theirs.numpy())


def test_what_is_refused() -> None:
    x, z = pb.ones((4, 3)), pb.Complex.of(drawn(4))
    wrong: list[tuple[type[PullbackError], str, Any]] = [
        (ShapeError, "E350", lambda: pb.fft.fft(x, 0)),
        (ShapeError, "E350", lambda: pb.fft.fft(pb.ones((2, 0)))),
        (ShapeError, "E350", lambda: pb.fft.irfft(x, -2)),
        (ShapeError, "E350", lambda: pb.fft.irfft(pb.ones((1,)))),
        (ShapeError, "E350", lambda: pb.fft.fft(x, 2.5)),
        (ShapeError, "E350", lambda: pb.fft.fft(pb.tensor(1.0))),
        (ShapeError, "E350", lambda: pb.fft.rfftn(pb.tensor(1.0))),
        (ShapeError, "E350", lambda: pb.fft.fftfreq(0)),
        (PullbackError, "E112", lambda: pb.fft.fft(x, axis=2)),
        (UnsupportedError, "E312", lambda: pb.fft.fft(x, norm="both")),
        (DTypeError, "E149", lambda: pb.fft.rfft(z)),
        (ShapeError, "E134", lambda: pb.fft.fftn(x, (2, 3, 4), (0, 1))),
        (ArgumentError, "E176", lambda: pb.fft.stft(x, 0)),
        (ArgumentError, "E176", lambda: pb.fft.stft(x, 2, 0)),
        (ShapeError, "E351", lambda: pb.fft.stft(x, 20)),
        (ShapeError, "E351", lambda: pb.fft.stft(x, 20, center=False)),
        (ShapeError, "E351", lambda: pb.fft.stft(x, 2, window=pb.ones(3))),
        (ShapeError, "E351", lambda: pb.fft.istft(pb.fft.stft(x, 2), 4)),
        (UnsupportedError, "E312", lambda: pb.fft.stft(x, 2, pad_mode="mirror")),
    ]
    for kind, code, call in wrong:
        with pytest.raises(kind, match=code):
            call()
