"""`pb.torch`: operators and modules beside PyTorch's own, through each of its interpreters."""

from __future__ import annotations

import copy
import io
import logging
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.bridge.layout import memory
from pullback.errors import DTypeError, OptionError, ShapeError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from pullback.bridge.private import private  # noqa: E402  # it needs PyTorch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of PyTorch's own imports
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
opcheck = torch.library.opcheck
func = torch.func
dual = torch.autograd.forward_ad


def affine(x: pb.Tensor, w: pb.Tensor, k: int = 2) -> pb.Tensor:
    return pb.tanh(x @ pb.permute_dims(w, (1, 0)) * k)


def parts(x: pb.Tensor, scale: float = 1.0) -> tuple[pb.Tensor, pb.Tensor, pb.Tensor]:
    """Two floats and an integer."""
    return pb.sum(x * x, axis=1) * scale, pb.argmax(x, axis=1), pb.sin(x)


OP = pb.torch.op(affine)
PARTS = pb.torch.op(parts)


def plain(x: Any, w: Any, k: int = 2) -> Any:
    return torch.tanh(x @ w.T * k)


def draws(*shape: int, seed: int = 0, grad: bool = True, dtype: Any = torch.float64) -> Any:
    made = torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)
    return made.requires_grad_(grad)


def near(a: Any, b: Any, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


X, W = draws(5, 4), draws(3, 4, seed=1)
XD, WD = X.detach(), W.detach()

# --- derivatives ---------------------------------------------------------------------------------


def test_gradcheck_of_both_modes_and_orders() -> None:
    assert torch.autograd.gradcheck(
        OP,
        (X, W, 3),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )
    assert torch.autograd.gradgradcheck(OP, (X, W), check_fwd_over_rev=True)


def test_opcheck() -> None:
    for args in ((X, W, 3), (XD.T.contiguous().T, W), (XD, WD)):
        assert set(opcheck(OP.overload, args).values()) == {"SUCCESS"}
    assert set(opcheck(PARTS.overload, (X, 2.0)).values()) == {"SUCCESS"}


def test_several_outputs_one_of_them_an_integer() -> None:
    norm, place, wave = PARTS(X, scale=2.0)
    assert place.dtype == torch.int64 and not place.requires_grad and norm.requires_grad
    near(norm, 2 * (XD * XD).sum(1).detach())
    assert torch.equal(place, XD.argmax(1))
    (found,) = torch.autograd.grad(norm.sum() + (3 * wave).sum(), X)
    near(found, 4 * XD + 3 * XD.cos())
    (only,) = torch.autograd.grad(PARTS(X)[2].sum(), X)
    near(only, XD.cos())
    assert torch.autograd.gradcheck(lambda x: PARTS(x)[::2], (X,), check_forward_ad=True)


TRANSFORMS: dict[str, Callable[[Callable[..., Any]], Any]] = {
    "grad": lambda f: func.grad(lambda x: f(x).sum())(XD),
    "hessian": lambda f: func.hessian(lambda x: f(x).sum())(XD),
    "reverse twice": lambda f: func.jacrev(func.jacrev(lambda x: f(x).sum()))(XD),
    "forward twice": lambda f: func.jacfwd(func.jacfwd(lambda x: f(x).sum()))(XD),
    "reverse over forward": lambda f: func.jacrev(func.jacfwd(lambda x: f(x).sum()))(XD),
    "jvp": lambda f: func.jvp(f, (XD,), (XD.cos(),))[1],
    "vmap": lambda f: torch.vmap(f)(XD[:, None]),
    "vmap of the last axis": lambda f: torch.vmap(f, in_dims=2)(XD[:, :, None].expand(5, 4, 2)),
    "vmap of grad": lambda f: torch.vmap(func.grad(lambda x: f(x).sum()))(XD[:, None]),
    "grad of vmap": lambda f: func.grad(lambda x: torch.vmap(f)(x[:, None]).sum())(XD),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_of_torch_func(name: str) -> None:
    near(TRANSFORMS[name](lambda x: OP(x, WD)), TRANSFORMS[name](lambda x: plain(x, WD)), 1e-10)


def test_samples_of_two_outputs_and_of_integers() -> None:
    stacked = torch.vmap(PARTS)(XD.reshape(5, 2, 2))
    near(stacked[0], (XD * XD).reshape(5, 2, 2).sum(2))
    assert torch.equal(stacked[1], XD.reshape(5, 2, 2).argmax(2))


def test_dual_numbers_without_requires_grad() -> None:
    with dual.dual_level():
        moved = dual.make_dual(XD, torch.ones_like(XD))
        tangent = dual.unpack_dual(OP(moved, WD)).tangent
        near(tangent, dual.unpack_dual(plain(moved, WD)).tangent)


def test_only_what_needs_a_gradient_has_one() -> None:
    table, rows = draws(6, 3), torch.tensor([1, 4, 1])

    @pb.torch.op(name="picked_rows")
    def picked(table: pb.Tensor, rows: pb.Tensor) -> pb.Tensor:
        return pb.take(table, rows, axis=0)

    found = picked(table, rows)
    near(found, table[rows])
    found.sum().backward()
    near(table.grad, torch.tensor([0.0, 2, 0, 0, 1, 0], dtype=torch.float64)[:, None].expand(6, 3))
    assert torch.autograd.gradcheck(lambda t: picked(t, rows), (table,))


# --- memory --------------------------------------------------------------------------------------

LAYOUTS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "as it is": (lambda x: x.clone(), (6, 4)),
    "transposed": (lambda x: x.T.contiguous().T, (4, 6)),
    "narrowed": (lambda x: torch.cat([x, x], 1)[:, :4], (5 * 8 + 4,)),
    "an offset": (lambda x: torch.cat([x, x])[3:9].roll(3, 0), (6, 4)),
    "every other one": (lambda x: x.repeat_interleave(2, 1)[:, ::2], (5 * 8 + 7,)),
    "one row": (lambda x: x[:1].expand(6, 4), (4,)),
    "one number": (lambda x: x[0, 0].expand(6, 4), ()),
    "unused gaps": (lambda x: torch.cat([x, x], 1)[::2, 1:3], (2 * 16 + 2,)),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_strides_are_read_where_they_are(name: str) -> None:
    view, box = LAYOUTS[name]
    x = view(draws(6, 4, grad=False))
    head = view(draws(6, 4, seed=9, grad=False))
    w = draws(3, x.shape[1], seed=2)

    def both(f: Callable[..., Any]) -> list[Any]:
        moved = x.detach().requires_grad_()
        y = f(moved, w)
        return [y, *torch.autograd.grad(y, (moved, w), head[:, :1].expand_as(y))]

    for mine, other in zip(both(OP), both(plain), strict=True):
        near(mine, other)
        assert mine.is_contiguous()
    assert memory(tuple(x.shape), x.stride()) == box
    near(OP(x, w.detach()), plain(x, w))
    shapes = [v.shape for v in OP.programs._known[_key(x, w)].entry.executable.program.state]
    assert shapes[0] == box


def _key(x: Any, w: Any) -> Any:
    return ((x.dtype, x.shape, x.stride()), (w.dtype, w.shape, w.stride()), 2)


def test_a_lazy_negative_is_read_as_the_number_it_is() -> None:
    z = torch.complex(XD, XD.sin())
    negative = z.conj().imag
    assert negative.is_neg()
    near(OP(negative, WD), plain(negative, WD))


def test_nothing_is_made_but_results() -> None:
    x = torch.ones(64, 1024)[:, ::2]
    OP_BIG(x)
    with torch.profiler.profile(profile_memory=True, activities=_CPU) as told:
        kept = OP_BIG(x)
    made = [e.self_cpu_memory_usage for e in told.events() if e.self_cpu_memory_usage > 4096]
    assert made == [kept.numel() * 4]


@pb.torch.op
def doubled_rows(x: pb.Tensor) -> pb.Tensor:
    return x * 2.0


OP_BIG = doubled_rows
_CPU = [torch.profiler.ProfilerActivity.CPU]


@pytest.mark.parametrize("kind", ["float32", "float64", "float16", "bfloat16"])
def test_floats(kind: str) -> None:
    dtype = getattr(torch, kind)
    x = draws(3, 4, grad=False).to(dtype).requires_grad_()
    y = doubled_rows(x)
    y.backward(torch.ones_like(y))
    assert y.dtype == x.grad.dtype == dtype
    assert torch.equal(y.detach(), 2 * x.detach()) and x.grad.unique().tolist() == [2.0]


def test_bools_integers_nothing_and_no_axes() -> None:
    @pb.torch.op(name="any_of")
    def some(mask: pb.Tensor, x: pb.Tensor) -> pb.Tensor:
        return pb.where(mask, x, 0)

    mask = torch.tensor([[True, False], [False, True]])
    near(some(mask, torch.arange(4).reshape(2, 2)), torch.tensor([[0, 0], [0, 3]]))
    near(some(mask[:, 0], torch.ones(2, dtype=torch.int32)), torch.tensor([1, 0]).int())
    assert doubled_rows(torch.ones(0, 3)).shape == (0, 3)
    near(doubled_rows(torch.tensor(3.0)), torch.tensor(6.0))


def test_the_reference_backend() -> None:
    op = pb.torch.op(lambda x: x * 2.0, name="interpreted", options=REFERENCE)
    near(op(XD), 2 * XD)
    near(op(XD.to(torch.bfloat16).T), 2 * XD.to(torch.bfloat16).T)


REFERENCE = pb.Options(backend="reference")

# --- what is refused -----------------------------------------------------------------------------


def test_another_device_is_refused_by_name() -> None:
    with pytest.raises(
        UnsupportedError, match=r"`pullback::affine` on tensors of cpu and cpu .torch.sparse_coo"
    ):
        OP(XD.to_sparse(), WD)
    with pytest.raises(UnsupportedError, match=r"on tensors of meta(.*\n)*.*x.cpu\(\)") as told:
        OP._elsewhere(XD.to("meta"))
    assert told.value.origin is not None and told.value.origin.code.co_filename == __file__


def test_types_that_are_not_here() -> None:
    with pytest.raises(DTypeError, match=r"torch\.complex64.*\n.*test_torch_bridge"):
        doubled_rows(torch.ones(3, dtype=torch.complex64))


def test_states_and_wrong_results_are_refused() -> None:
    count = pb.State(pb.zeros(()))

    @pb.torch.op(name="counting")
    def counting(x: pb.Tensor) -> pb.Tensor:
        count.assign(count + 1.0)
        return x * count

    with pytest.raises(UnsupportedError, match="assigns"):
        counting(XD)
    two = pb.torch.op(lambda x: (x, x), name="two_undeclared")
    with pytest.raises(UnsupportedError, match="returns 2 tensors, its signature says 1"):
        two(XD)
    twice = pb.torch.op(lambda x: (x, x), name="two_declared", outputs=2)
    assert len(twice(XD)) == 2


def test_an_error_of_the_function_points_into_it() -> None:
    @pb.torch.op(name="unequal")
    def unequal(a: pb.Tensor, b: pb.Tensor) -> pb.Tensor:
        return a + b

    with pytest.raises(ShapeError) as told:
        unequal(torch.ones(3), torch.ones(4))
    assert "return a + b" in str(told.value)


def test_captured_tensors_are_read_at_each_call() -> None:
    scale = pb.State(pb.tensor(2.0))
    op = pb.torch.op(lambda x: x * scale, name="captured_scale")
    near(op(torch.ones(2)), torch.full((2,), 2.0))
    scale.assign(pb.tensor(5.0))
    near(op(torch.ones(2)), torch.full((2,), 5.0))


# --- names ---------------------------------------------------------------------------------------


def test_names() -> None:
    assert OP.name == "pullback::affine" and torch.ops.pullback.affine.default is OP.overload
    assert pb.torch.op(affine, name="mine_here::affine").name == "mine_here::affine"
    for name in ("", "a b", "x::y::z"):
        with pytest.raises(OptionError, match="no name"):
            pb.torch.op(lambda x: x, name=name)
    with pytest.raises(
        OptionError, match=r"already an operator, made of `.*affine`.*\n(.*\n)*.*name="
    ):
        pb.torch.op(lambda x: x, name="affine")
    with pytest.raises(OptionError, match="another library"):
        pb.torch.op(lambda x: x, name="aten::relu")


def test_a_module_that_is_read_again_replaces_its_operators() -> None:
    text = "import pullback as pb\n@pb.torch.op\ndef once_more(x):\n    return x * FACTOR\n"
    spaces: list[dict[str, Any]] = []
    for factor in (2.0, 3.0):
        space: dict[str, Any] = {"FACTOR": factor, "__name__": "read_again"}
        exec(text, space)
        spaces.append(space)
    for space in spaces:  # who holds the old one runs the new one
        near(space["once_more"](torch.ones(2)), torch.full((2,), 3.0))


def test_signatures() -> None:
    schemas = {
        "(Tensor x, Tensor? bias=None, int n=3, float eps=1e-05) -> Tensor": _one,
        '(Tensor a, Tensor b, str mode="sum", bool? flag=None) -> (Tensor, Tensor)': _two,
    }
    for schema, function in schemas.items():
        assert pb.torch.op(function).function.signature.schema == schema
    near(torch.ops.pullback._one(XD, XD), 2 * XD + 3)
    near(torch.ops.pullback._one(XD, n=5), XD + 5)
    near(torch.ops.pullback._two(XD, XD, mode="prod")[0], XD * XD)
    with pytest.raises(UnsupportedError, match=r"\*xs"):
        pb.torch.op(lambda *xs: xs[0], name="many")
    with pytest.raises(UnsupportedError, match="needs a tensor"):
        pb.torch.op(lambda n=1: pb.ones(n), name="none")


def _one(x: pb.Tensor, bias: Any = None, n: int = 3, *, eps: float = 1e-5) -> pb.Tensor:
    return x + n if bias is None else x + bias + n


def _two(
    a: pb.Tensor, b: pb.Tensor, mode: str = "sum", flag: bool | None = None
) -> tuple[pb.Tensor, pb.Tensor]:
    return (a + b if mode == "sum" else a * b), b


def test_zeros_and_nothing_are_told_apart_among_static_arguments() -> None:
    op = pb.torch.op(lambda x, c=1.0: x / c, name="signed_zero")
    assert op(torch.ones(1), 0.0) == -op(torch.ones(1), -0.0)
    op(torch.ones(1), float("nan"))
    before = op.programs.jit.traces
    op(torch.ones(1), float("nan"))
    assert op.programs.jit.traces == before


def test_the_reference_names_all_that_is_public() -> None:
    page = (Path(__file__).parent.parent / "docs" / "reference.md").read_text()
    rows = page.split("## pullback.torch")[1].split("\n## ")[0]
    assert sorted(re.findall(r"^\| `(\w+)`", rows, re.MULTILINE)) == sorted(pb.torch.__all__)
    assert all(getattr(pb.torch, name).__doc__ for name in pb.torch.__all__)


# --- compiled, saved, old ------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_no_graph_break_under_compile(backend: str) -> None:
    torch._dynamo.reset()

    def loss(x: Any, w: Any) -> Any:
        return (OP(x, w) * 2).sum() + PARTS(x)[0].sum()

    compiled = torch.compile(loss, fullgraph=True, backend=backend)
    mine, other = [torch.autograd.grad(f(X, W), (X, W)) for f in (compiled, loss)]
    near(mine, other)


def test_sizes_stay_symbolic() -> None:
    torch._dynamo.reset()
    frames = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(
        lambda x: doubled_rows(x) + 1, fullgraph=True, backend=frames, dynamic=True
    )
    for n in (3, 5, 9):
        near(compiled(torch.ones(n, 4)), torch.full((n, 4), 3.0))
    assert frames.frame_count == 1
    scaled = pb.torch.op(lambda x: x * x.shape[1] ** 0.5, name="scaled_by_width")
    frames = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(lambda x: scaled(x) + 1, backend=frames, dynamic=True)
    for n in (3, 5, 9):  # only the width, that the function computes with, is a number
        near(compiled(torch.ones(n, 4)), torch.full((n, 4), 3.0))
    assert frames.frame_count == 1
    rows = torch.export.Dim("rows", min=2, max=64)
    made = torch.export.export(Net(), (draws(3, 4, grad=False),), dynamic_shapes=({0: rows},))
    assert made.module()(draws(7, 4, grad=False)).shape == (7, 3)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(WD.clone())
        self.op = OP

    def forward(self, x: Any) -> Any:
        return self.op(x, self.weight)


def test_modules_are_copied_saved_and_exported(tmp_path: Any) -> None:
    net = Net()
    assert list(net.state_dict()) == ["weight"]
    near(copy.deepcopy(net)(XD), net(XD))
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    near(torch.load(file, weights_only=False)(XD), net(XD))
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(net, (XD,)), path)
    script = (
        "import sys, torch, pullback as pb\n"
        "def affine(x: pb.Tensor, w: pb.Tensor, k: int = 2) -> pb.Tensor:\n"
        "    return pb.tanh(x @ pb.permute_dims(w, (1, 0)) * k)\n"
        "pb.torch.op(affine)\n"
        "net = torch.export.load(sys.argv[1]).module()\n"
        "print(net(torch.ones(5, 4, dtype=torch.float64)).sum().item())\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True
    )
    assert float(found.stdout) == pytest.approx(net(torch.ones_like(XD)).sum().item(), rel=1e-12)


def test_old_versions_have_an_autograd_function() -> None:
    made = pb.torch.Operator(OP.function, "old", {2: 2}, dispatched=False)
    near(made(XD, w=WD), plain(XD, WD))
    assert torch.autograd.gradcheck(made, (X, W, 3), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(made, (X, W, 3))


def test_import_alone_does_not_import_torch() -> None:
    script = (
        "import sys, pullback as pb\nassert 'torch' not in sys.modules\n"
        "sys.modules['torch'] = None\n"
        "try:\n    pb.torch\nexcept ImportError as error:\n    print(error)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "pip install 'pullback[torch]'" in found.stdout


def test_a_call_costs_no_more_than_five_microseconds_more() -> None:
    """Counted: functions of Python that a warm call runs, beside an operator of PyTorch's own."""

    @torch.library.custom_op("bridge_test::trivial", mutates_args=())
    def trivial(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(x.shape)

    x = torch.ones(4, 4)
    assert _calls(lambda: doubled_rows(x)) <= _calls(lambda: trivial(x)) + 4


def _calls(function: Callable[[], Any]) -> int:
    for _ in range(3):
        function()
    found = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal found
        found += event == "call"

    sys.setprofile(count)
    try:
        function()
    finally:
        sys.setprofile(None)
    return found


# --- modules -------------------------------------------------------------------------------------


def network() -> Any:
    nn = torch.nn
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1, stride=2),
        nn.BatchNorm2d(4),
        nn.GELU(approximate="tanh"),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64, 6, bias=False),
        nn.LayerNorm(6, eps=1e-3),
        nn.ReLU(inplace=True),
    )


def test_a_module_runs_on_the_parameters_that_it_has() -> None:
    model = network()
    net = pb.torch.module(model)
    x = draws(2, 3, 8, 8, grad=False, dtype=torch.float32)
    assert list(net.state_dict()) == list(model.state_dict())
    assert net[0].weight is model[0].weight and isinstance(net[0], torch.nn.Conv2d)
    told = pb.torch.report(net)
    assert list(told.replaced) == ["0", "2", "3", "5", "6"]
    assert {n: why.split()[0] for n, why in told.left.items()} == {
        "1": "in",
        "4": "it",
        "7": "inplace=True:",
    }
    assert "left: in training" in str(told)

    def run(m: Any) -> list[Any]:
        torch.manual_seed(3)
        m.zero_grad()
        y = m(x)
        y.square().sum().backward()
        return [y, *[p.grad.clone() for p in m.parameters()], m[1].running_mean.clone()]

    model[1].running_mean.zero_()
    mine = run(net)
    model[1].running_mean.zero_()
    near(mine, run(model), 2e-4)
    model.eval()
    net.eval()
    assert "1" in pb.torch.report(net).replaced
    near(net(x), model(x), 2e-5)
    torch._dynamo.reset()
    near(torch.compile(net, fullgraph=True, backend="eager")(x), model(x), 2e-5)
    near(copy.deepcopy(net)(x), model(x), 2e-5)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    near(torch.load(file, weights_only=False)(x), model(x), 2e-5)


N = torch.nn
IMAGE, SIGNAL = (2, 4, 6, 6), (2, 4, 9)
LAYERS: list[tuple[Any, tuple[int, ...]]] = [
    (N.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), SIGNAL),
    (N.Conv1d(4, 2, 3, dilation=2, padding="same", padding_mode="circular"), SIGNAL),
    (N.MaxPool2d(3, 2, 1, ceil_mode=True, return_indices=True), IMAGE),
    (N.AvgPool2d(3, 2, 1, count_include_pad=False), IMAGE),
    (N.GroupNorm(2, 4, eps=0.1), IMAGE),
    (N.InstanceNorm2d(4, affine=True), IMAGE),
    (N.RMSNorm((6, 6), eps=0.2), IMAGE),
    (N.Softplus(2.0, 0.5), SIGNAL),
    (N.PReLU(4), SIGNAL),
    (N.Softmax(1), SIGNAL),
    (N.Upsample(scale_factor=2, mode="bilinear", align_corners=True), IMAGE),
    (N.PixelShuffle(2), IMAGE),
    (N.ReflectionPad2d((1, 2, 0, 1)), IMAGE),
    (N.Unflatten(1, (2, 2)), IMAGE),
]


@pytest.mark.parametrize("layer, shape", LAYERS, ids=lambda v: type(v).__name__)
def test_settings_of_layers_are_kept(layer: Any, shape: tuple[int, ...], monkeypatch: Any) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")
    net = pb.torch.module(layer)
    assert pb.torch.report(net).replaced
    x = draws(*shape, grad=False, dtype=torch.float32)
    near(net(x), layer(x), 2e-5)


def test_layers_of_two_inputs_and_of_integers(monkeypatch: Any) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")
    weight = torch.tensor([1.0, 2.0, 0.5])
    scores, labels = draws(5, 3, grad=False, dtype=torch.float32), torch.tensor([0, 2, 1, 1, 0])
    loss = N.CrossEntropyLoss(weight, label_smoothing=0.1)
    near(pb.torch.module(loss)(scores, labels), loss(scores, labels), 1e-5)
    table = N.Embedding(7, 3, padding_idx=1)
    near(pb.torch.module(table)(labels), table(labels))
    join = N.Bilinear(3, 3, 2)
    near(pb.torch.module(join)(scores, scores), join(scores, scores), 1e-5)


def test_what_is_left_is_told(caplog: pytest.LogCaptureFixture) -> None:
    class Own(torch.nn.Linear):
        """Someone's own."""

    model = N.ModuleDict(
        {
            "own": Own(2, 2),
            "rows": N.Embedding(3, 2, max_norm=1.0),
            "steps": N.LSTM(2, 2),
            "distance": N.PairwiseDistance(p=3.0),
            "complex": N.Linear(2, 2, dtype=torch.complex64),
            "plain": N.Linear(2, 2),
        }
    )
    with caplog.at_level(logging.INFO, "pullback"):
        net = pb.torch.module(model)
    left = pb.torch.report(net).left
    assert list(left) == ["own", "rows", "steps", "distance", "complex"]
    assert "a class of its own" in left["own"] and "complex64" in left["complex"]
    assert "max_norm" in left["rows"] and "`p`" in left["distance"]
    assert "pullback::nn_Linear" in caplog.text
    assert type(net["own"]) is Own and type(net["steps"]) is N.LSTM


# --- one program for all sizes of a batch ---------------------------------------------------------

SOME = pb.dim("n", 1, 64)
OPEN = pb.torch.op(affine, name="open_affine", dynamic={"x": SOME})


def compiled(op: Any) -> tuple[int, int]:
    """Programs of the forward, and of the backward."""
    forward = op.programs.jit.traces + op.residuals.forward.jit.traces
    return forward, op.traces - forward


def test_a_sweep_of_batches_compiles_once() -> None:
    closed = pb.torch.op(affine, name="closed_affine")
    for n in (1, 2, 7, 16, 33, 64):
        x, w, head = draws(n, 4), draws(3, 4, seed=1), draws(n, 3, seed=2, grad=False)
        near(OPEN(x, w), plain(x, w))
        for op in (OPEN, closed):
            found = torch.autograd.grad(op(x, w), (x, w), head)
            for a, b in zip(found, torch.autograd.grad(plain(x, w), (x, w), head), strict=True):
                near(a, b)
    assert compiled(OPEN) == (1, 1)
    assert compiled(closed) == (6, 6)
    for n in (1, 2, 7):  # adjoints that are one number, and one row
        x = draws(n, 4)
        near(*[torch.autograd.grad(f(x, W).sum(), x)[0] for f in (OPEN, plain)])
        near(*[torch.autograd.grad((f(x, W) * X[0, :3]).sum(0)[0], x)[0] for f in (OPEN, plain)])
    assert compiled(OPEN)[1] == 2
    turned = draws(3, 7, grad=False).T
    near(*[torch.autograd.grad(f(x, W), x, turned)[0] for f in (OPEN, plain)])


def test_what_does_not_fit_the_extent_has_a_program_of_its_own() -> None:
    before = compiled(OPEN)[0]
    for n in (65, 65, 66):
        near(OPEN(draws(n, 4), W), plain(draws(n, 4), W))
    near(OPEN(draws(4, 8).T, W), plain(draws(4, 8).T, W))  # rows among each other are copied
    assert compiled(OPEN)[0] == before + 2


def test_derivatives_of_open_batches() -> None:
    for n in (2, 3):
        assert torch.autograd.gradcheck(OPEN, (draws(n, 4), W), check_forward_ad=True)
        assert torch.autograd.gradgradcheck(OPEN, (draws(n, 4), W))
    x = draws(2, 3, 4, grad=False)
    near(func.vmap(OPEN, (0, None))(x, WD), plain(x, WD))


def test_two_open_tensors_are_of_one_size() -> None:
    op = pb.torch.op(lambda x, y: x + y, name="open_add", dynamic={"x": SOME, "y": SOME})
    near(op(XD, XD), 2 * XD)
    near(op(XD, XD[:1]), XD + XD[:1])  # of two sizes: a program for these
    slow = pb.torch.op(
        lambda x: pb.sum(x, axis=1), name="open_slow", dynamic={"x": SOME}, options=REFERENCE
    )
    near(slow(XD), XD.sum(1))
    near(slow(XD[:2]), XD[:2].sum(1))
    assert slow.programs.jit.traces == 1
    with pytest.raises(OptionError, match="`z` is no tensor"):
        pb.torch.op(affine, name="open_none", dynamic={"z": SOME})


def test_a_private_name_that_is_gone_is_named() -> None:
    with pytest.raises(UnsupportedError, match=r"has no `_C\._gone`") as caught:
        private(torch, "_C._gone")
    assert "2.13" in str(caught.value)
