"""Complex numbers in graphs of `torch.compile`, which programs have as pairs: as eager's."""

from __future__ import annotations

import copy
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.errors import UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_graphs import compiled  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]
fft, LA = torch.fft, torch.linalg
KIND = torch.complex64


def mixed(x: Any, w: Any) -> Any:
    """A layer of a Fourier neural operator: the lowest frequencies, mixed by complex weights."""
    low = fft.rfft(x)[..., : w.shape[-1]]
    return fft.irfft(torch.einsum("bix,iox->box", low, w), n=x.shape[-1])


def mixed_pictures(x: Any, w: Any) -> Any:
    low = fft.rfft2(x)
    made = torch.zeros(x.shape[0], w.shape[1], *low.shape[2:], dtype=low.dtype)
    made[:, :, :3, :2] = torch.einsum("bixy,ioxy->boxy", low[:, :, :3, :2], w)
    return fft.irfft2(made, s=x.shape[-2:])


def turned(x: Any, angles: Any) -> Any:
    """Positions as angles of pairs of channels."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(pairs * turns[None, :, None, :]).flatten(3)


def long_convolution(x: Any, w: Any) -> Any:
    n = 2 * x.shape[-1]
    return fft.irfft(fft.rfft(x, n=n) * fft.rfft(w, n=n), n=n)[..., : x.shape[-1]]


def spectrum(x: Any) -> Any:
    return torch.stft(x, 8, 4, window=torch.hann_window(8), return_complex=True).abs()


def drawn(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, dtype=dtype)


CASES: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "operator": (mixed, lambda: (drawn(2, 3, 15), drawn(3, 4, 5, dtype=KIND))),
    "operator of pictures": (
        mixed_pictures, lambda: (drawn(2, 3, 7, 6), drawn(3, 4, 3, 2, dtype=KIND)),
    ),
    "turned": (turned, lambda: (drawn(2, 5, 3, 6), drawn(5, 3))),
    "long convolution": (long_convolution, lambda: (drawn(2, 3, 13), drawn(3, 13))),
    "spectrum": (spectrum, lambda: (drawn(2, 37),)),
    "elementwise": (
        lambda z, w: torch.exp(z) / (w + 2j) + z.conj() * w.sgn() - torch.tanh(z).angle(),
        lambda: (drawn(3, 7, dtype=KIND), drawn(7, dtype=KIND)),
    ),
    "products": (
        lambda z, w: torch.addmm(z[:, :2], z, w.mH @ w, beta=2j).abs().square(),
        lambda: (drawn(5, 2, dtype=KIND), drawn(3, 2, dtype=KIND)),
    ),
    "padded": (
        lambda z: torch.nn.functional.pad(z, (1, 2), value=3.0) * 1j,
        lambda: (drawn(3, 5, dtype=KIND),),
    ),
    "spread": (
        lambda z: torch.cat([z.real, z.imag], -1).var() + z.var(0).sum() + LA.vector_norm(z),
        lambda: (drawn(4, 6, dtype=torch.complex128),),
    ),
    "solved": (
        lambda a, b: LA.solve(a @ a.mH + 3 * torch.eye(4), b),
        lambda: (drawn(4, 4, dtype=KIND), drawn(4, 2, dtype=KIND)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_those_of_eager(name: str) -> None:
    """One program a graph: what PyTorch runs for it is a call from the program, and reported."""
    function, arguments = CASES[name]
    given = [a.requires_grad_() for a in arguments()]
    results = [f(*given) for f in (function, compiled(function))]
    head = torch.randn_like(results[0])
    own, eager = (torch.autograd.grad(y, given, head) for y in reversed(results))
    torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(own, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)
    report = pb.torch.report()
    assert not report.fallbacks
    assert any("fft" in call.operator for call in report.host_calls) == ("fft" in _names(function))


def _names(function: Any) -> set[str]:
    return {"fft" for name in function.__code__.co_names if "fft" in name or name == "stft"}


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 0), (1, 1)], ids=str)
def test_shapes_of_few_elements(shape: tuple[int, ...]) -> None:
    z = drawn(*shape, dtype=KIND)
    run = compiled(lambda z: (z * z).exp(), dynamic=False)
    torch.testing.assert_close(run(z), (z * z).exp())


def test_arguments_in_any_memory() -> None:
    """Conjugates that are marked and not computed, steps, rows of columns, one row for many."""
    z = drawn(6, 8, dtype=KIND)
    views = (z.conj(), z[::2, 1::3], z.t(), z[:1].expand(4, 8), z.mH, z.flip(0)[1:])
    for view in views:
        torch._dynamo.reset()
        got, want = compiled(lambda a: (a * 2j).conj() + 1)(view), (view * 2j).conj() + 1
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()


def test_an_argument_is_written() -> None:
    buffer, x = drawn(3, 4, dtype=KIND), drawn(3, 4, dtype=KIND)
    want = buffer * 1j + x

    def put(buffer: Any, x: Any) -> Any:
        buffer.copy_(buffer * 1j + x)
        return buffer.sum()

    torch.testing.assert_close(compiled(put)(buffer, x), want.sum())
    torch.testing.assert_close(buffer, want)


def test_sizes_that_change_have_a_program_each() -> None:
    run = compiled(lambda z: (z * 1j).real.sum(0), dynamic=True)
    for n in (3, 5, 9):
        z = drawn(n, 4, dtype=KIND)
        torch.testing.assert_close(run(z), (z * 1j).real.sum(0))
    assert "complex numbers, whose programs have fixed sizes" in str(pb.torch.report())


def test_what_has_no_rule_is_pytorchs_and_says_so() -> None:
    z = drawn(3, 4, dtype=KIND)
    torch.testing.assert_close(compiled(torch.logaddexp, "allow")(z, z), torch.logaddexp(z, z))
    (left,) = pb.torch.report().fallbacks
    assert left.operator == "aten.logaddexp.default"
    assert left.reason == "logaddexp is not defined for complex numbers [E149]"


def test_the_first_call_of_a_pseudoinverse() -> None:
    """In it PyTorch's own key of dispatch is on, under which `linalg.pinv` of PyTorch is wrong."""
    a = drawn(2, 2, dtype=KIND)
    torch.testing.assert_close(compiled(LA.pinv)(a), LA.inv(a), rtol=1e-3, atol=1e-3)


class Operator(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(drawn(4, 4, 9, dtype=KIND) / 10)
        self.scale = torch.nn.Parameter(drawn(dtype=KIND))
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        return mixed(self.linear(x), self.weight * self.scale)


@pytest.mark.parametrize(
    "kind", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Rprop", "NAdam"]
)
def test_steps_of_complex_parameters(kind: str) -> None:
    """Each part by itself, as PyTorch's optimizers take them."""
    model, loss = Operator(), torch.nn.functional.mse_loss
    other = copy.deepcopy(model)
    x, target = drawn(2, 4, 16), drawn(2, 4, 16)
    settings = {"lr": 0.01, **({"momentum": 0.9} if kind == "SGD" else {})}
    theirs = getattr(torch.optim, kind)(other.parameters(), **settings)
    own = getattr(torch.optim, kind)(model.parameters(), **settings)
    step = pb.torch.step(model, loss, own, clip=0.5)
    for _ in range(3):
        step(x, target)
        theirs.zero_grad()
        loss(other(x), target).backward()
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        theirs.step()
    for mine, eager in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-5)
        for name, state in theirs.state[eager].items():
            torch.testing.assert_close(own.state[mine][name], state, rtol=1e-3, atol=1e-4)


def test_an_optimizer_of_rows_refuses_complex_parameters() -> None:
    model = Operator()
    optimizer = torch.optim.Adafactor(model.parameters())
    with pytest.raises(UnsupportedError, match=r"it takes rows of real numbers \[E392\]"):
        pb.torch.step(model, torch.nn.functional.mse_loss, optimizer)


KEPT = """
import torch
import pullback as pb

torch.manual_seed(0)
z = torch.randn(3, 4, dtype=torch.complex64).requires_grad_()
run = torch.compile(
    lambda z: torch.fft.fft(z * (1 + 2j)).abs().sum(), backend=pb.torch.backend
)
run(z).backward()
print(z.grad.abs().sum().item(), len(pb.torch.report().fallbacks))
"""


def test_the_next_process_takes_graphs_of_complex_numbers(tmp_path: Path) -> None:
    """Numbers of Python among them."""
    lines = []
    for _ in range(2):
        made = subprocess.run(
            [sys.executable, "-c", KEPT],
            capture_output=True,
            text=True,
            check=True,
            env=_environment(tmp_path),
        )
        assert "not kept" not in made.stderr, made.stderr
        lines.append(made.stdout)
    assert lines[0] == lines[1]
    assert lines[0].split()[1] == "0"


def _environment(folder: Path) -> dict[str, str]:
    own = {"PULLBACK_CACHE": str(folder / "own"), "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch")}
    return {**os.environ, **own}


@pytest.mark.parametrize(
    "name", ["mul", "fft.irfft2", "index_put", "var_mean", "linalg.solve", "cumprod", "istft"]
)
def test_an_entry_of_opinfo(name: str) -> None:
    """Results and gradients, without fallback."""
    pytest.importorskip("expecttest")
    script = Path(__file__).parent.parent / "scripts" / "opinfo_compile.py"
    assert runpy.run_path(str(script))["judged"](name, 2, "complex64") == ("right", "")
