"""Functions as models of ONNX: onnx's checker, its reference, and the importer give the same."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn
from pullback.errors import PullbackError
from pullback.nn import functional as F

onnx = pytest.importorskip("onnx", reason="models of ONNX need onnx")
pytestmark = pytest.mark.onnx

from onnx.reference import ReferenceEvaluator  # noqa: E402

RNG = np.random.default_rng(0)


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype("f")


def attention(q: Any, k: Any, v: Any) -> Any:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def slope(x: Any, w: Any) -> Any:
    return pb.grad(lambda w: pb.sum(pb.tanh(x @ w) ** 2))(w)


def functions(x: Any) -> Any:
    near = (pb.sin(x), pb.cos(x), pb.tan(x), pb.sigmoid(x), pb.erf(x), pb.exp(x), pb.expm1(x))
    return (*near, pb.log1p(abs(x)), pb.softplus(x), abs(x), abs(x) ** 1.5, pb.relu(x))


def whole(x: Any) -> Any:
    return x // 3, x % 3, pb.astype(x, pb.float32) / 2, x & 3, -x


ODD = np.array([1.5, -2.7, np.nan, 1e30, -1e30], "f")
CASES: dict[str, tuple[Callable[..., Any], list[Any]]] = {
    "mlp": (lambda x, w, b: pb.relu(x @ w + b), [normal(3, 4), normal(4, 5), normal(5)]),
    "conv": (lambda x, w: F.conv2d(x, w, padding=1, stride=2), [normal(2, 3, 6, 5),
                                                                normal(4, 3, 3, 3)]),
    "attention": (attention, [normal(2, 5, 4), normal(2, 5, 4), normal(2, 5, 4)]),
    "gradient": (slope, [normal(3, 4), normal(4, 5)]),
    "take": (lambda w, i: pb.take(w, i, axis=0), [normal(7, 4), np.array([[1, 2], [0, -1]])]),
    "views": (lambda x: pb.flip(x, axis=0)[:, ::2].T, [normal(3, 4)]),
    "pad": (lambda x: pb.pad(x, [(1, 2), (0, 1)], 3.0), [normal(3, 4)]),
    "sums": (lambda x: (pb.cumulative_sum(x, axis=1), pb.sum(x)), [normal(3, 4)]),
    "truths": (lambda x: (pb.any(x > 0, axis=1), pb.all(x > 0, axis=0)), [normal(3, 4)]),
    "places": (lambda x: (pb.argmax(x, axis=1), pb.sort(x, axis=0)), [normal(3, 4)]),
    "integers": (whole, [np.arange(-5, 6)]),
    "casts": (lambda x: (pb.astype(x, pb.int32), pb.astype(x, pb.float16)), [ODD]),
    "functions": (functions, [normal(5)]),
    "groups": (lambda x, w: F.conv2d(x, w, groups=3), [normal(2, 3, 6, 5), normal(6, 1, 3, 3)]),
    "pools": (lambda x: (F.max_pool2d(x, 2, padding=1), F.avg_pool2d(x, 3, 2, 1)),
              [normal(2, 3, 6, 5)]),
    "turned": (lambda x, w: F.conv_transpose2d(x, w, stride=2), [normal(1, 2, 3, 3),
                                                                 normal(2, 3, 3, 3)]),
    "resize": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), [normal(1, 2, 3, 3)]),
    "einsum": (lambda a, b, c: pb.einsum("ij,jk,kl->il", a, b, c),
               [normal(3, 4), normal(4, 5), normal(5, 2)]),
    "gelu": (F.gelu, [normal(3, 4)]),
    "same": (lambda x: (x, x + 1, x + 1), [normal(3)]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_gives_the_same(name: str, tmp_path: Path) -> None:
    function, args = CASES[name]
    model = pb.onnx.save(function, args, tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    given = {port.name: x for port, x in zip(model.graph.input, args, strict=True)}
    want = function(*[pb.tensor(x) for x in args])
    want = [y.numpy() for y in (want if isinstance(want, tuple) else (want,))]
    with np.errstate(all="ignore"):
        reference = ReferenceEvaluator(str(tmp_path / "model.onnx")).run(None, given)
    again = pb.onnx.load(tmp_path / "model.onnx").run(given).values()
    for one, other, last in zip(want, reference, again, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(last.numpy(), one, rtol=1e-4, atol=1e-5)


def test_parameters_are_initialisers(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    model = pb.onnx.save(net, [normal(3, 4)], tmp_path / "model.onnx")
    sizes = sorted(tuple(t.dims) for t in model.graph.initializer if t.data_type == 1)
    assert [s for s in sizes if len(s) == 2] == [(2, 8), (8, 4)]
    assert "Tanh" in [n.op_type for n in model.graph.node]
    x = normal(3, 4)
    y = pb.onnx.load(tmp_path / "model.onnx")(x)
    np.testing.assert_allclose(y.numpy(), net(pb.tensor(x)).numpy(), rtol=1e-5, atol=1e-6)


def test_what_has_no_form_is_refused(tmp_path: Path) -> None:
    state = pb.State(pb.zeros(3))

    def assigned(x: Any) -> Any:
        state.assign(x)
        return x

    def deep(x: Any) -> Any:
        return pb.compute(
            (3,), lambda i: functools.reduce(lambda y, _: y * x[i] + 1.0, range(4000), x[i])
        )

    places = np.zeros((3,), np.int64)
    for function, args in (
        (lambda x: pb.loop(3, lambda n, y: y * 2, x), [normal(3)]),
        (lambda x, i: pb.scatter_add(x, i, x, axis=0), [normal(3), places]),
        (lambda x, n: x // n, [places, places]),
        (assigned, [normal(3)]),
        (deep, [normal(3)]),
    ):
        with pytest.raises(PullbackError) as error:
            pb.onnx.save(function, args, tmp_path / "model.onnx")
        assert error.value.code == "E577", error.value
    assert not list(tmp_path.iterdir())
