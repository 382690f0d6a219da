"""`torch.compile(backend="pullback")` given what it does not have: coded errors, or a report."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

import pullback as pb
from pullback.errors import OptionError, PullbackError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch
from torch._dynamo.exc import BackendCompilerFailed  # noqa: E402

from torch_graphs import compiled  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


def refused(code: str, kind: type[PullbackError], run: Any) -> PullbackError:
    """The error, ours or within PyTorch's; with a line of this file."""
    with pytest.raises((BackendCompilerFailed, PullbackError)) as raised:
        run()
    error = getattr(raised.value, "inner_exception", raised.value)
    assert isinstance(error, kind) and error.code == code
    return error


OPTIONS: dict[str, tuple[str, Any]] = {
    "no such name": ("E385", {"fallbak": "error"}),
    "a name that is none": ("E385", {1: 2}),
    "of torch.compile": ("E385", {"mode": "default"}),
    "no such fallback": ("E385", {"fallback": "never"}),
    "no seconds": ("E225", {"tune": "long"}),
    "less than no seconds": ("E225", {"tune": -1.0}),
    "no fallback at all": ("E385", {"fallback": None}),
    "no truth": ("E385", {"fallback_random": 1}),
    "no threads": ("E523", {"threads": 0}),
    "fewer than none": ("E523", {"threads": -1}),
    "half a thread": ("E523", {"threads": 2.5}),
    "threads in words": ("E523", {"threads": "2"}),
    "less than no memory": ("E522", {"memory": -5}),
    "memory in words": ("E522", {"memory": "a lot"}),
    "a number": ("E385", 5),
    "a list": ("E385", [1]),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_that_do_not_exist(name: str) -> None:
    code, options = OPTIONS[name]

    def run() -> Any:
        run = torch.compile(torch.sin, backend=pb.torch.backend, options=options)
        return run(torch.ones(2))

    error = refused(code, OptionError, run)
    assert __file__ in str(error), "the line that compiles"


def test_modes_that_do_not_exist() -> None:
    run = torch.compile(torch.sin, backend=pb.torch.backend, mode="fastest")
    error = refused("E385", OptionError, lambda: run(torch.ones(2)))
    assert "fastest" in error.what and "max-autotune" in str(error)


@pytest.mark.parametrize("fallback", ["allow", "error"])
def test_other_devices(fallback: str) -> None:
    """Arguments, parameters and tensors that are made inside."""
    x = torch.ones(3, device="meta")
    refused("E387", UnsupportedError, lambda: compiled(torch.sin, fallback)(x))
    layer = nn.Linear(3, 3, device="meta")
    refused("E387", UnsupportedError, lambda: compiled(layer, fallback)(x))

    def inside(x: Any) -> Any:
        return x + 1, torch.ones(3, device="meta") * 2

    if fallback == "error":
        error = refused("E386", UnsupportedError, lambda: compiled(inside)(torch.ones(3)))
        assert "a tensor on meta" in error.what
    else:
        own, other = compiled(inside, "allow")(torch.ones(3))
        assert own.tolist() == [2.0] * 3 and other.device.type == "meta"
        assert all(f.reason == "a tensor on meta" for f in pb.torch.report().fallbacks)


def test_a_graphics_card_that_is_not_there() -> None:
    """PyTorch's own error, in a program's place as in eager."""
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises((AssertionError, RuntimeError)):
        compiled(lambda x: x.cuda() + 1, "allow")(torch.ones(3))


TYPES: dict[str, tuple[Any, Any]] = {
    "complex halves": (lambda x: (x + 0j).to(torch.complex32), torch.ones(3)),
    "float8": (lambda x: x.float() * 2, torch.ones(3).to(torch.float8_e4m3fnuz)),
    "to float8": (lambda x: (x * 2).to(torch.float8_e5m2fnuz), torch.ones(3)),
    "a copy of float8": (lambda x: x.clone(), torch.ones(3).to(torch.float8_e4m3fnuz)),
    "bits": (lambda x: x.view(torch.uint8) + 1, torch.ones(3, dtype=torch.uint8).view(torch.bits8)),
}


@pytest.mark.parametrize("name", TYPES)
def test_types_that_programs_do_not_have(name: str) -> None:
    """Refused with the operator, or run by PyTorch with its results, and reported."""
    function, x = TYPES[name]
    error = refused("E386", UnsupportedError, lambda: compiled(function)(x))
    assert "aten." in error.what and __file__ in error.what
    torch._dynamo.reset()
    own, eager = compiled(function, "allow")(x), function(x)
    assert own.dtype == eager.dtype
    kept = torch.complex64 if eager.is_complex() else torch.float32
    assert torch.equal(own.to(kept), eager.to(kept))
    assert pb.torch.report().fallbacks


@pytest.mark.parametrize("kind", ["uint16", "uint32", "uint64"])
def test_unsigned_integers(kind: str) -> None:
    """Eager adds none of them; a program wraps around, as unsigned integers do."""
    x = torch.tensor([1, 2, 40000]).to(getattr(torch, kind))
    twice, number = compiled(lambda x: (x + x, x.float()))(x)
    wrapped = 80000 % 2 ** (8 * x.itemsize)
    assert twice.dtype == x.dtype and twice.to(torch.int64).tolist() == [2, 4, wrapped]
    assert torch.equal(number, x.float())


LAYOUTS: dict[str, tuple[Any, Any]] = {
    "sparse": (lambda x: torch.sparse.mm(x, torch.ones(3, 2)), lambda: torch.eye(3).to_sparse()),
    "rows": (lambda x: x @ torch.ones(3, 2), lambda: torch.eye(3).to_sparse_csr()),
    "quantized": (
        lambda x: x.dequantize() * 2,
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_without_rows_are_pytorchs(name: str) -> None:
    """Dynamo traces none of them: eager runs, with eager's results."""
    function, make = LAYOUTS[name]
    assert torch.equal(compiled(function)(make()), function(make()))


def test_a_tensor_without_memory_is_refused() -> None:
    """Dynamo traces it as a dense one, which it is not."""
    x = torch.ones(3, 3).to_mkldnn()
    error = refused("E387", UnsupportedError, lambda: compiled(lambda x: x.to_dense() * 2)(x))
    assert "mkldnn" in error.what


@pytest.mark.parametrize("error", [ImportError("no aot_autograd"), AttributeError("no OutputCode")])
@pytest.mark.parametrize("name", ["backend", "step", "rules"])
def test_another_pytorch(name: str, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that lacks a name is named, with the version that has it."""
    home = sys.modules["pullback.bridge.torch"]

    def lacking(module: str) -> Any:
        raise error

    monkeypatch.setattr(importlib, "import_module", lacking)
    with pytest.raises(UnsupportedError) as raised:
        getattr(home, name)
    assert raised.value.code == "E344" and torch.__version__ in raised.value.what
    assert "2.13" in (raised.value.help or "")


def test_names_that_there_are_not() -> None:
    with pytest.raises(AttributeError):
        pb.torch.no_such_name  # noqa: B018
