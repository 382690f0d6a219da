"""`pb.jax.call`: values and derivatives beside jnp, under every transformation of JAX's."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import ArgumentError, DTypeError, OptionError, UnsupportedError

jax = pytest.importorskip("jax", reason="JAX is not installed")
import jax.numpy as jnp  # noqa: E402  # it needs JAX
from jax.test_util import check_grads  # noqa: E402

from pullback.bridge import jax as bridge  # noqa: E402

pytestmark = [pytest.mark.jax, pytest.mark.filterwarnings("ignore::DeprecationWarning")]


@pytest.fixture
def wide() -> Iterator[None]:
    with x64(True):
        yield


def x64(on: bool) -> Any:
    """A context; before JAX 0.8 it was elsewhere."""
    home = jax if hasattr(jax, "enable_x64") else pytest.importorskip("jax.experimental")
    return home.enable_x64(on)


def layer(x: pb.Tensor, w: pb.Tensor, b: pb.Tensor, scale: float = 1.5) -> pb.Tensor:
    return pb.tanh(x @ w + b) * scale


def layer_jnp(x: Any, w: Any, b: Any, scale: float = 1.5) -> Any:
    return jnp.tanh(x @ w + b) * scale


def several(x: pb.Tensor, ids: pb.Tensor) -> dict[str, Any]:
    return {"rows": pb.take(x, ids, axis=0), "both": (pb.sum(x * x), pb.argmax(x))}


CALL = pb.jax.call(layer)


def given(kind: str = "float32") -> tuple[Any, ...]:
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=s).astype(kind)) for s in ((5, 3), (3, 4), (4,)))


def near(a: Any, b: Any, tolerance: float = 1e-5) -> None:
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for one, other in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        np.testing.assert_allclose(
            np.asarray(one, "float64"), np.asarray(other, "float64"), tolerance, tolerance
        )


def total(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: jnp.sum(jnp.sin(f(*args)))


# --- transformations ------------------------------------------------------------------------------

EVERY = (0, 1, 2)
TRANSFORMED: dict[str, Callable[[Any], Any]] = {
    "eager": lambda f: f,
    "jit": jax.jit,
    "grad": lambda f: jax.grad(total(f), EVERY),
    "jit of grad": lambda f: jax.jit(jax.grad(total(f), EVERY)),
    "value and grad": lambda f: jax.value_and_grad(total(f), (0, 2)),
    "forwards": jax.jacfwd,
    "backwards": lambda f: jax.jacrev(f, 1),
    "hessian": lambda f: jax.hessian(total(f)),
    "third": lambda f: jax.grad(lambda *a: jax.hessian(total(f))(*a).sum()),
    "jvp": lambda f: lambda *a: jax.jvp(f, a, tuple(jnp.ones_like(x) for x in a)),
    "linearize": lambda f: lambda *a: jax.linearize(f, *a)[1](*a),
    "checkpoint": lambda f: jax.grad(total(jax.checkpoint(f)), EVERY),
    "vmap": lambda f: jax.vmap(f, (0, None, None)),
    "vmap of rows": lambda f: lambda x, w, b: jax.vmap(f, (0, None, None), 1)(x, w, b),
    "vmap of an inner axis": lambda f: (
        lambda x, w, b: jax.vmap(f, (None, 1, 0))(x, w[..., None], b)
    ),
    "vmap of vmap": lambda f: (
        lambda x, w, b: jax.vmap(jax.vmap(f, (None, None, 0)), (0, None, None))(x, w, b[:, None])
    ),
    "vmap of grad": lambda f: jax.jit(jax.vmap(jax.grad(total(f), EVERY), (0, None, None))),
    "grad of vmap": lambda f: jax.grad(total(jax.vmap(f, (0, None, None))), EVERY),
    "grad of vmap of jvp": lambda f: jax.grad(
        total(lambda x, w, b: jax.vmap(lambda r: jax.jvp(lambda q: f(q, w, b), (r,), (r,))[1])(x))
    ),
    "hessian of vmap": lambda f: jax.jacfwd(jax.grad(total(jax.vmap(f, (0, None, None))), 2), 2),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_beside_jnp(name: str) -> None:
    change, args = TRANSFORMED[name], given()
    near(change(CALL)(*args), change(layer_jnp)(*args), 1e-4)


def test_a_scan_with_its_gradient() -> None:
    x = given()[0]
    square = jnp.asarray(np.random.default_rng(2).normal(size=(3, 3)).astype("float32"))

    def scanned(f: Any) -> Any:
        def run(x: Any, w: Any) -> Any:
            steps = jax.lax.scan(lambda c, r: (f(c, w, r), jnp.sum(c)), x, jnp.ones((4, 3)))
            return jnp.sum(steps[0]) + jnp.sum(steps[1])

        return jax.jit(jax.value_and_grad(run, (0, 1)))

    near(scanned(CALL)(x, square), scanned(layer_jnp)(x, square), 1e-4)


def test_beside_finite_differences(wide: None) -> None:
    """To the second order, both modes, in float64; and a linear map is transposed."""
    args = given("float64")
    assert CALL(*args).dtype == jnp.float64
    check_grads(CALL, args, order=2, rtol=1e-5, atol=1e-5)
    check_grads(pb.jax.call(lambda x: pb.softmax(x, axis=0)), args[:1], order=2, rtol=1e-5)


def test_a_batch_of_tangents_is_transposed() -> None:
    """A linear map that was batched, then transposed."""
    x, w, b = given()

    def batch(f: Any) -> Any:
        return lambda t: jax.vmap(lambda r: jax.jvp(lambda q: f(q, w, b), (x,), (r,))[1])(t)

    t, head = jnp.stack([x, 2 * x]), jnp.ones((2, 5, 4))
    own, theirs = (jax.linear_transpose(batch(f), t)(head) for f in (CALL, layer_jnp))
    near(own, theirs)


def test_under_a_condition_and_a_while() -> None:
    x, w, b = given()

    def run(f: Any, x: Any) -> Any:
        x = jax.lax.cond(x.sum() > -100, lambda x: f(x, w, b), lambda x: x @ w, x)
        return jax.lax.while_loop(lambda c: jnp.abs(c).max() > 1e-2, lambda c: c / 2, x)

    near(jax.jit(run, static_argnums=0)(CALL, x), jax.jit(run, static_argnums=0)(layer_jnp, x))


# --- arguments and results ------------------------------------------------------------------------


def test_trees_of_results_and_integers() -> None:
    f = pb.jax.call(several)
    x, ids = given()[0], jnp.asarray([4, 0, 4], jnp.int32)
    wanted = {"rows": x[ids], "both": (jnp.sum(x * x), jnp.argmax(x))}
    near(f(x, ids), wanted)
    near(jax.jit(f)(x, ids), wanted)
    near(f(x, ids=[4, 0, 4]), wanted)

    def loss(f: Any, x: Any) -> Any:
        made = f(x, ids)
        return jnp.sum(made["rows"] ** 2) + made["both"][0]

    own = jax.grad(partial(loss, f))(x)
    near(own, jax.grad(partial(loss, lambda x, i: {"rows": x[i], "both": (jnp.sum(x * x),)}))(x))
    only = jax.grad(lambda x: f(x, ids)["both"][0])(x)  # the rest has no head
    near(only, 2 * x)
    both = jax.vmap(f, (None, 0))(x, jnp.asarray([[1], [2]]))["rows"]
    near(both, x[jnp.asarray([[1], [2]])])


def test_static_arguments_of_each_type_are_programs_of_their_own() -> None:
    f = pb.jax.call(lambda x, k=1: x * k if isinstance(k, float) else x + k, types={"k": float})
    x = jnp.ones(2)
    assert f(x, 1).tolist() == [2, 2] and f(x, 1.0).tolist() == [1, 1]
    assert f(x, True).tolist() == [2, 2] and f(x, k=3.0).tolist() == [3, 3]
    sign = pb.jax.call(lambda x, z=0.0: pb.copysign(x, pb.full((2,), z)))
    assert sign(x, 0.0).tolist() == [1, 1] and sign(x, -0.0).tolist() == [-1, -1]
    assert jax.jit(f, static_argnames="k")(x, k=2.0).tolist() == [2, 2]


def test_optional_tensors_may_be_left_out() -> None:
    @pb.jax.call
    def f(x: pb.Tensor, b: pb.Tensor | None = None) -> pb.Tensor:
        return x if b is None else x + b

    assert f(jnp.ones(2)).tolist() == [1, 1] and f(jnp.ones(2), jnp.ones(2)).tolist() == [2, 2]
    assert jax.grad(lambda x: f(x).sum())(jnp.ones(2)).tolist() == [1, 1]


@pytest.mark.parametrize(
    "kind",
    ["float8_e4m3fn", "float8_e5m2", "bfloat16", "float16", "float32", "int8", "uint8", "bool"],
)
def test_element_types(kind: str) -> None:
    f = pb.jax.call(lambda x: (pb.flip(x, axis=0), x == x))
    x = jnp.asarray([0, 1, 1, 0, 1]).astype(kind)
    flipped, same = f(x)
    assert flipped.dtype == x.dtype and flipped.tolist() == x[::-1].tolist()
    assert same.dtype == jnp.bool_ and bool(same.all())
    if kind.endswith("float16"):
        near(jax.grad(lambda x: f(x)[0][0])(x), jnp.asarray([0, 0, 0, 0, 1]).astype(kind))


def test_widths_follow_x64() -> None:
    f = pb.jax.call(lambda x: (pb.argmax(x), pb.astype(x, pb.float64)))
    assert [r.dtype.name for r in f(jnp.ones(3))] == ["int32", "float32"]
    with x64(True):
        assert [r.dtype.name for r in f(jnp.ones(3))] == ["int64", "float64"]
    assert [r.dtype.name for r in jax.jit(f)(jnp.ones(3))] == ["int32", "float32"]


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1, 1), (2, 0)])
def test_shapes_of_nothing_and_of_one(shape: tuple[int, ...]) -> None:
    f, x = pb.jax.call(lambda x: pb.sin(x) + 1), jnp.ones(shape)
    near(f(x), jnp.sin(x) + 1)
    near(jax.grad(lambda x: jnp.sum(f(x)))(x), jnp.cos(x))
    near(jax.vmap(f)(x[None]), (jnp.sin(x) + 1)[None])


def test_numbers_and_arrays_are_taken() -> None:
    f = pb.jax.call(lambda x, y: x + y)
    assert f(1.0, 2.0).item() == 3 and f(np.ones(2, "f4"), pb.ones(2)).tolist() == [2, 2]
    near(jax.grad(f)(1.0, 2.0), jnp.asarray(1.0))


def test_donated_arguments_are_read_before_they_are_written() -> None:
    x = given()[0]
    square = jnp.ones((3, 3))
    wanted = layer_jnp(x, square, jnp.zeros(3))
    run = jax.jit(CALL, donate_argnums=0)
    near(run(x.copy(), square, jnp.zeros(3)), wanted)


def test_what_is_read_is_where_it_lies() -> None:
    """Nothing is copied: the buffers that a program is run on are XLA's."""
    seen: list[list[int]] = []
    name = bridge._programs.add(seen.append)
    x = jnp.arange(6.0).reshape(2, 3)
    kind = jax.ShapeDtypeStruct((2, 3), jnp.float32)
    y = jax.ffi.ffi_call(bridge.TARGET, kind)(x, program=name)
    y.block_until_ready()
    assert seen == [[x.unsafe_buffer_pointer(), y.unsafe_buffer_pointer()]]


def test_captured_arrays_and_calls_of_the_host() -> None:
    rng = np.random.default_rng(1)
    weights = pb.tensor(rng.normal(size=(3, 3)))
    f = pb.jax.call(lambda x: x @ weights)
    with x64(True):
        x = jnp.asarray(rng.normal(size=(2, 3)))
        near(jax.jit(f)(x), x @ weights.numpy(), 1e-12)
        near(jax.grad(lambda x: f(x).sum())(x), jnp.ones((2, 3)) @ weights.numpy().T, 1e-12)
        a = x.T @ x + jnp.eye(3)
        near(jax.jit(pb.jax.call(pb.linalg.inv))(a), jnp.linalg.inv(a), 1e-10)


def test_a_function_called_by_many_threads() -> None:
    import threading

    x, w, b = given()
    run, wanted = jax.jit(jax.grad(total(CALL))), jax.grad(total(layer_jnp))(x, w, b)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(30):
            if float(jnp.abs(run(x, w, b) - wanted).max()) > 1e-4:
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- what is refused ------------------------------------------------------------------------------


def test_what_is_no_function_of_arrays_is_refused() -> None:
    x = jnp.ones(3)
    state = pb.State(pb.ones(3))
    with pytest.raises(UnsupportedError, match=r"reads the state `\w+`.*E398"):
        pb.jax.call(lambda x: x * state)(x)
    with pytest.raises(UnsupportedError, match=r"assigns `generator`.*E398"):
        pb.jax.call(lambda x: x * pb.random.uniform((3,)))(x)
    with pytest.raises(UnsupportedError, match=r"gives int"):
        pb.jax.call(lambda x: (x, 3))(x)
    with pytest.raises(UnsupportedError, match=r"gives nothing"):
        pb.jax.call(lambda x: None)(x)
    with pytest.raises(UnsupportedError, match=r"E301"):
        pb.jax.call(lambda *xs: xs[0])
    with pytest.raises(OptionError, match="E529"):
        pb.jax.call(layer, types={"nobody": int})
    with pytest.raises(ArgumentError, match=r"`k` of .* is static \(int\).*E398"):
        jax.jit(pb.jax.call(lambda x, k=1: x + k))(x, k=jnp.asarray(2))
    with pytest.raises(DTypeError, match=r"complex64 \[E140\]"):
        pb.jax.call(lambda x: x)(jnp.ones(2, jnp.complex64))
    with pytest.raises(DTypeError, match=r"key<fry> \[E140\]"):
        pb.jax.call(lambda x: x)(jax.random.key(0))
    with pytest.raises(UnsupportedError, match=r"JAX 0.4.30.*E396"):
        bridge.check_version((0, 4, 30))


def test_another_device_is_refused_by_name() -> None:
    lowered = jax.jit(CALL).trace(*given())
    with pytest.raises(UnsupportedError, match=r"`layer` on cuda.*E397.*\n.*test_jax.py"):
        lowered.lower(lowering_platforms=("cuda",))


def test_a_failing_program_is_an_error_of_jax() -> None:
    """With our message and code; what comes after runs."""
    f = jax.jit(pb.jax.call(several))
    x = jnp.ones((3, 2))
    with pytest.raises(Exception, match=r"index 7 is out(side| of range).*\[E106\]"):
        jax.block_until_ready(f(x, jnp.asarray([7])))
    assert f(x, jnp.asarray([2]))["rows"].tolist() == [[1, 1]]


def test_a_call_of_another_process_is_an_error_of_jax() -> None:
    """What was exported names a program that is not here."""
    kind = jax.ShapeDtypeStruct((), jnp.float32)
    with pytest.raises(Exception, match=r"another process compiled \[E398\]"):
        jax.ffi.ffi_call(bridge.TARGET, kind)(jnp.ones(()), program="no-such").block_until_ready()


def test_rules_of_the_users_are_kept() -> None:
    """A function whose pullback is given: backwards it is that one."""

    @pb.custom_vjp
    def own(x: pb.Tensor) -> pb.Tensor:
        return pb.exp(x)

    own.defvjp(lambda x: (pb.exp(x), x), lambda x, d: (d * 3,))
    f = pb.jax.call(lambda x: own(x) * 2)
    assert jax.grad(lambda x: f(x).sum())(jnp.ones(2)).tolist() == [6, 6]
    assert jax.vmap(jax.grad(f))(jnp.ones(2)).tolist() == [6, 6]


PMAP = """
import jax, jax.numpy as jnp, pullback as pb
f = pb.jax.call(lambda x: pb.sin(x) * 2)
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

x = jnp.arange(8.0).reshape(2, 4)
mesh = Mesh(jax.devices(), ("i",))
rows = jax.device_put(x, NamedSharding(mesh, P("i", None)))
own = pb.jax.call(lambda x: x - pb.sum(x, axis=0))
assert abs(jax.jit(own)(rows) - (x - x.sum(0))).max() < 1e-6  # gathered: it is one call
assert abs(jax.jit(jax.shard_map(own, mesh=mesh, in_specs=P("i"), out_specs=P("i")))(x)).max() == 0
assert len(jax.devices()) == 2
assert abs(jax.pmap(f)(x) - 2 * jnp.sin(x)).max() < 1e-6
g = jax.pmap(jax.grad(lambda x: jax.lax.pmean(f(x).sum(), "i")), axis_name="i")(x)
assert abs(g - 2 * jnp.cos(x)).max() < 1e-6 or abs(g - jnp.cos(x)).max() < 1e-6
print("good")
"""


def test_two_devices() -> None:
    """`pmap`, a sharded argument, `shard_map`."""
    flags = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    line = [sys.executable, "-W", "ignore", "-c", PMAP]
    done = subprocess.run(line, env=flags, capture_output=True, text=True, timeout=300)
    assert done.stdout == "good\n", done.stderr


def test_programs_are_made_once() -> None:
    """A second call of the same shapes neither traces nor compiles."""
    calls = []

    def counted(x: pb.Tensor) -> pb.Tensor:
        calls.append(1)
        return x * 2

    f = pb.jax.call(counted)
    f(jnp.ones(3))
    first = len(calls)
    for _ in range(3):
        f(jnp.ones(3))
        jax.jit(f)(jnp.ones(3))
    assert len(calls) == first
