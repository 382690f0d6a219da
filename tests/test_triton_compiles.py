"""What the interpreter accepts compiles too: derived kernels as code for an absent H100."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")

import test_triton_folds as folds  # noqa: E402  # they need Triton
import test_triton_grad as grad  # noqa: E402
import test_triton_halves as halves  # noqa: E402
import test_triton_moments as moments  # noqa: E402
import test_triton_stores as stores  # noqa: E402
import test_triton_tutorials as tutorials  # noqa: E402
import test_triton_watched as watched  # noqa: E402
from pullback.backends.triton import offline  # noqa: E402
from pullback.backends.triton.offline import Order  # noqa: E402
from pullback.errors import DeviceError  # noqa: E402
from pullback.triton import operator  # noqa: E402
from pullback.triton.operator import Operator  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]
CAPABILITY = 90
REGISTERS = 255  # of a thread; source: CUDA C++ Programming Guide, technical specifications

# What launches them, and the functions that are among them.
LAUNCHED: dict[str, tuple[Callable[[], Any], set[str]]] = {
    "vector add": (grad.test_vector_add, {"add_kernel_backward"}),
    "softmax": (grad.test_softmax, {"softmax_kernel_backward"}),
    "matmul": (lambda: grad.test_matmul(True), {"matmul_kernel_backward"}),
    "dropout": (grad.test_dropout_is_replayed, {"dropout_kernel_backward"}),
    "layer norm": (grad.test_layer_norm, {"layer_norm_kernel_backward"}),
    "attention": (lambda: grad.test_flash_attention(True), {"attention_kernel_backward"}),
    "library": (tutorials.test_a_function_of_the_library, {"library_kernel_backward"}),
    "group": (tutorials.test_products_of_a_group, {"group_kernel_backward"}),
    "persistent": (
        folds.test_a_persistent_product_by_descriptors,
        {"persistent_kernel_backward"},
    ),
    "while": (
        lambda: grad.test_a_construct("while", 1),
        {"while_kernel_steps", "while_kernel_backward"},
    ),
    "cross entropy": (
        lambda: watched.test_a_loss_that_leaves_its_gradient(37),
        {"chosen_kernel_watched", "chosen_kernel_backward"},
    ),
    "rope": (
        watched.test_heads_of_two_arrays,
        {"heads_kernel_watched", "heads_kernel_backward"},
    ),
    "places": (
        lambda: stores.called(stores.made(), "loaded"),
        {"placed_kernel_watched", "placed_kernel_backward"},
    ),
    "norm of a batch": (
        lambda: moments.test_a_norm_of_a_batch((3, 5, 9), 0.0),
        {"batch_kernel_backward"},
    ),
    "moments of rows": (
        lambda: moments.test_moments_of_rows("rows", 11),
        {"rows_kernel_backward"},
    ),
    "product before silu": (
        lambda: moments.test_a_product_that_is_stored_is_loaded("silu"),
        {"product_kernel_watched", "product_kernel_backward"},
    ),
    "weights of 8 bits": (
        lambda: halves.test_weights_of_eight_bits(torch.float8_e4m3fn),
        {"weighted_kernel_backward"},
    ),
} | {
    f"{name} in {str(kind).removeprefix('torch.')}": (
        lambda name=name, kind=kind: halves.test_what_is_computed_in_sixteen_bits(name, kind),
        {"chosen_kernel_backward"},
    )
    for name in halves.RIGHT
    for kind in (torch.bfloat16, torch.float16)
}


@pytest.fixture
def orders(monkeypatch: Any) -> Iterator[dict[str, Order]]:
    """The derived kernels that operators launch, by name, with the types of what they are given."""
    made: dict[str, Order] = {}
    launch = Operator.launch

    def noted(self: Any, kernel: Any, call: Any, arguments: Any) -> None:
        if kernel is not self.kernel:
            given = [arguments[n] for n in kernel.arg_names]
            types = tuple(map(operator._type, given))
            path = kernel.fn.__code__.co_filename
            pointers = tuple(n for n, kind in enumerate(types) if kind.startswith("*"))
            made[kernel.fn.__name__] = Order(path, kernel.fn.__name__, types, pointers)
        launch(self, kernel, call, arguments)

    monkeypatch.setattr(Operator, "launch", noted)
    yield made


@pytest.mark.sampled(27)
@pytest.mark.parametrize("name", LAUNCHED)
def test_a_derived_kernel_compiles(name: str, orders: dict[str, Order]) -> None:
    run, wanted = LAUNCHED[name]
    run()
    assert wanted <= orders.keys()
    for order, binary in zip(
        orders.values(), offline.compiled([*orders.values()], CAPABILITY), strict=True
    ):
        spills = binary.stack and ".local" not in binary.texts["ptx"]
        assert binary.cubin and binary.registers <= REGISTERS and not spills, order.name


def test_a_compiler_that_is_killed_is_told_and_replaced(tmp_path: Path) -> None:
    """While it compiles: its last words; before: another one is started."""
    path = tmp_path / "k.py"
    text = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n"
    path.write_text(text)
    with pytest.raises(DeviceError, match="its process ended with -9") as error:
        offline.compiled([Order(str(path), "k", ())], CAPABILITY)
    assert error.value.code == "E415"
    good = tmp_path / "good.py"
    good.write_text("import triton\n\n\n@triton.jit\ndef k():\n    pass\n")
    orders = [Order(str(good), "k", ())] * 9
    assert [b.name for b in offline.compiled(orders, CAPABILITY, most=2)] == ["k"] * 9
    assert len(offline.COMPILERS._idle) >= 2
    for compiler in offline.COMPILERS._idle:
        os.kill(compiler._process.pid, signal.SIGKILL)
        compiler._process.wait()
    assert offline.compiled(orders[:1], CAPABILITY)[0].cubin


def test_an_order_that_is_interrupted_leaves_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would have made is not taken for what is asked for next."""
    for name in ("first", "second"):
        text = f"import triton\n\n\n@triton.jit\ndef {name}():\n    pass\n"
        (tmp_path / f"{name}.py").write_text(text)
    orders = [Order(str(tmp_path / f"{n}.py"), n, ()) for n in ("first", "second")]

    def interrupted(self: Any, asked: str) -> Any:
        self._given.write(asked + "\n")
        self._given.flush()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(offline._Compiler, "answer", interrupted)
        offline.compiled(orders[:1], CAPABILITY)
    assert [b.name for b in offline.compiled(orders[1:], CAPABILITY)] == ["second"]
