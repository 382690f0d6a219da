"""Models of ONNX: read, run, trained; onnx's node tests beside their record; hostile files."""

from __future__ import annotations

import copy
import importlib
import random
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import ArgumentError, PullbackError, StateError, UnsupportedError

onnx = pytest.importorskip("onnx", reason="models of ONNX need onnx")
pytestmark = pytest.mark.onnx

from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
RNG = np.random.default_rng(0)
FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64

onnx_tests = importlib.import_module("onnx_tests")


def info(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def proto(nodes: list[Any], inputs: list[Any], outputs: list[Any], weights: Any = (), **more: Any):
    own = [numpy_helper.from_array(np.asarray(a), n) for n, a in dict(weights).items()]
    graph = helper.make_graph(nodes, "model", inputs, outputs, own)
    versions = [helper.make_opsetid("", more.pop("opset", 21))]
    return helper.make_model(graph, opset_imports=versions, **more)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(operator, inputs.split(), outputs.split(), **attributes)


def perceptron() -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
    weights = {
        "w": RNG.normal(size=(4, 8)).astype("f"),
        "b": RNG.normal(size=8).astype("f"),
        "v": RNG.normal(size=(8, 2)).astype("f"),
    }
    nodes = [node("Gemm", "x w b", "h"), node("Tanh", "h", "t"), node("MatMul", "t v", "y")]
    return proto(nodes, [info("x", ["n", 4])], [info("y", ["n", 2])], weights), weights


def network(x: Any, w: Any) -> Any:
    return np.tanh(x @ w["w"] + w["b"]) @ w["v"]


# --- calls ---------------------------------------------------------------------------------------


def test_inputs_by_place_by_name_and_as_a_dict(tmp_path: Path) -> None:
    model, weights = perceptron()
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    x = RNG.normal(size=(3, 4)).astype("f")
    want = network(x, weights)
    for source in (model, model.SerializeToString(), path, str(path)):
        own = pb.onnx.load(source)
        for got in (own(x), own(x=x), own.run({"x": pb.tensor(x)})["y"], own(pb.tensor(x))):
            np.testing.assert_allclose(got.numpy(), want, rtol=1e-5)


def test_a_program_for_all_sizes_of_a_named_dim() -> None:
    model, weights = perceptron()
    own = pb.onnx.load(model, dims={"n": (1, 16)})
    for n in (1, 3, 16):
        x = RNG.normal(size=(n, 4)).astype("f")
        np.testing.assert_allclose(own(x).numpy(), network(x, weights), rtol=1e-5)
    (program,) = own.programs.values()
    assert program.traces == 1


def test_initialisers_are_trained() -> None:
    model, weights = perceptron()
    own = pb.onnx.load(model)
    assert {n: p.shape for n, p in own.named_parameters()} == {
        n: w.shape for n, w in weights.items()
    }
    x = RNG.normal(size=(3, 4)).astype("f")

    @pb.jit
    def gradients(x: Any) -> Any:
        pb.sum(own(x) ** 2).backward()
        return own.v.grad, own.w.grad

    dv, dw = gradients(pb.tensor(x))
    y = network(x, weights)
    hidden = np.tanh(x @ weights["w"] + weights["b"])
    np.testing.assert_allclose(own.state_dict()["v"].numpy(), weights["v"])
    np.testing.assert_allclose(dv.numpy(), hidden.T @ (2 * y), rtol=1e-4)
    inner = (2 * y @ weights["v"].T) * (1 - hidden**2)
    np.testing.assert_allclose(dw.numpy(), x.T @ inner, rtol=1e-4)
    own.load_state_dict({n: np.zeros_like(w) for n, w in weights.items()})
    assert not own(x).numpy().any()


def test_a_copy_has_weights_of_its_own() -> None:
    model, weights = perceptron()
    own = pb.onnx.load(model)
    x = RNG.normal(size=(3, 4)).astype("f")
    want = own(x).numpy()
    twin = copy.deepcopy(own)
    twin.load_state_dict({n: 2 * w for n, w in weights.items()})
    doubled = network(x, {n: 2 * w for n, w in weights.items()})
    np.testing.assert_allclose(twin(x).numpy(), doubled, rtol=1e-5)
    np.testing.assert_array_equal(own(x).numpy(), want)


def test_a_parameter_that_decides_a_shape_is_none() -> None:
    """Scales of an Upsample are floats: their values are needed, and then they are constants."""
    nodes = [node("Cast", "s", "i", to=INT64), node("Expand", "x i", "y")]
    weights = {"s": np.array([3.0, 2.0], "f")}
    own = pb.onnx.load(proto(nodes, [info("x", [2])], [info("y", None)], weights))
    assert own(np.array([1, 2], "f")).shape == (3, 2)
    assert not list(own.parameters())


def test_an_input_that_decides_a_shape_makes_a_program_for_each_value() -> None:
    nodes = [node("Reshape", "x s", "y")]
    own = pb.onnx.load(proto(nodes, [info("x", [6]), info("s", [2], INT64)], [info("y", None)]))
    x = np.arange(6, dtype="f")
    assert own(x, np.array([2, 3])).shape == (2, 3)
    assert own(x, np.array([3, -1])).shape == (3, 2)
    assert own(x, np.array([2, 3])).numpy()[1, 0] == 3.0


def test_a_function_of_the_model_and_attributes_that_it_refers_to() -> None:
    inner = node("LeakyRelu", "a", "b")
    inner.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    function = helper.make_function(
        "own", "Bent", ["a"], ["b"], [inner], [helper.make_opsetid("", 21)], ["slope"]
    )
    call = helper.make_node("Bent", ["x"], ["y"], domain="own", slope=0.5)
    graph = helper.make_graph([call], "model", [info("x", [2])], [info("y", [2])])
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=versions)
    assert pb.onnx.load(model)(np.array([-2, 2], "f")).numpy().tolist() == [-1, 2]


def test_branches_are_taken_by_data() -> None:
    parts = {}
    for name, operator in (("then_branch", "Exp"), ("else_branch", "Neg")):
        parts[name] = helper.make_graph([node(operator, "x", "r")], name, [], [info("r", [2])])
    model = proto(
        [node("If", "c", "y", **parts)],
        [info("c", [], TensorProto.BOOL), info("x", [2])],
        [info("y", [2])],
    )
    own = pb.onnx.load(model)
    x = np.array([0, 1], "f")
    np.testing.assert_allclose(own(np.array(True), x).numpy(), np.exp(x), rtol=1e-6)
    np.testing.assert_allclose(own(np.array(False), x).numpy(), -x)
    assert len(own.programs) == 1


def ran(case: list[Any], inputs: dict[str, Any], weights: dict[str, Any]) -> list[Any]:
    """What a model of some nodes gives, all of what they make."""
    ins = [info(n, a.shape, helper.np_dtype_to_tensor_dtype(a.dtype)) for n, a in inputs.items()]
    outs = [helper.make_empty_tensor_value_info(o) for n in case for o in n.output if o]
    model = proto(case, ins, outs, weights)
    return model, [np.asarray(y) for y in pb.onnx.load(model).run(inputs).values()]


def normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype("f")


RESIZED = {
    "linear": {"coordinate_transformation_mode": "half_pixel"},
    "cubic": {"coordinate_transformation_mode": "align_corners", "cubic_coeff_a": -0.5},
    "nearest": {"nearest_mode": "ceil", "coordinate_transformation_mode": "asymmetric"},
}


@pytest.mark.parametrize("kind", [TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E5M2])
def test_floats_of_eight_bits(kind: int, tmp_path: Path) -> None:
    """At their ends, if it is asked for; a cast of ours is written as one that does not."""
    x = np.array([0.3, -500.0, 1e6, np.inf, np.nan], "f")
    largest = 448.0 if kind == TensorProto.FLOAT8E4M3FN else 57344.0
    for saturate in (0, 1):
        nodes = [node("Cast", "x", "y", to=kind, saturate=saturate)]
        model = proto(nodes, [info("x", [5])], [info("y", [5], kind)])
        got = pb.onnx.load(model)(x).numpy()
        clipped = np.clip(x, -largest, largest) if saturate else x
        with np.errstate(all="ignore"):
            want = clipped.astype(got.dtype)
        np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))
    nodes = [
        node("QuantizeLinear", "x s", "q", output_dtype=kind),
        node("DequantizeLinear", "q s", "y"),
    ]
    model = proto(nodes, [info("x", [5])], [info("y", [5])], {"s": np.float32(0.5)})
    with np.errstate(all="ignore"):
        want = np.clip(x / 0.5, -largest, largest).astype(got.dtype).astype("f") * 0.5
    np.testing.assert_array_equal(pb.onnx.load(model)(x).numpy(), want)
    own = pb.jit(lambda x: pb.astype(x, str(got.dtype)))
    pb.onnx.save(own, [x], tmp_path / "own.onnx")
    back = pb.onnx.load(tmp_path / "own.onnx")(x).numpy()
    np.testing.assert_array_equal(back.view(np.uint8), own(x).numpy().view(np.uint8))


@pytest.mark.parametrize(
    "name", ["gru", "quantised", "depth", "moved", "regions", "spectrum", *RESIZED]
)
def test_layers_beside_the_reference(name: str) -> None:
    """Of onnx itself, in NumPy."""
    x = normal(2, 3, 5, 4)
    weights: dict[str, Any] = {}
    if name == "gru":
        x = normal(5, 2, 3)
        weights = {"w": normal(1, 12, 3), "r": normal(1, 12, 4), "b": normal(1, 24)}
        nodes = [node("GRU", "x w r b", "y h", hidden_size=4)]
    elif name == "quantised":
        weights = {"s": np.float32(0.05), "z": np.uint8(120)}
        nodes = [node("QuantizeLinear", "x s z", "q"), node("DequantizeLinear", "q s z", "y")]
    elif name == "moved":
        weights = {"w": normal(2, 3, 2, 2), "o": normal(2, 8, 4, 3), "b": normal(2)}
        nodes = [node("DeformConv", "x w o b", "y")]
    elif name == "regions":
        boxes = np.array([[0, 0, 3, 4], [1, 0.5, 2.5, 4.5], [-1, -1, 1, 2]], "f")
        weights = {"r": boxes, "n": np.array([0, 1, 1])}
        sizes = {"output_height": 2, "output_width": 3, "sampling_ratio": 2}
        nodes = [node("RoiAlign", "x r n", "y", **sizes)]
    elif name == "spectrum":
        x = normal(2, 8, 3, 1)
        weights = {"a": np.array(1)}
        nodes = [helper.make_node("DFT", ["x", "", "a"], ["y"], onesided=1)]
    elif name == "depth":
        x = normal(1, 8, 2, 3)
        nodes = [node("DepthToSpace", "x", "y", blocksize=2, mode="CRD")]
    else:
        weights = {"e": np.array([], "f"), "n": np.array([2, 3, 7, 3])}
        nodes = [node("Resize", "x e e n", "y", mode=name, **RESIZED[name])]
    model, got = ran(nodes, {"x": x}, weights)
    want = ReferenceEvaluator(model).run(None, {"x": x})
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["conv", "pool", "lstm"])
def test_layers_beside_pytorch(name: str) -> None:
    """What is padded unlike, and gates in another order."""
    torch = pytest.importorskip("torch")
    x = normal(2, 3, 6, 5)
    if name == "lstm":
        x = normal(5, 2, 3)
        layer = torch.nn.LSTM(3, 4)
        order = [0, 3, 1, 2]  # i, o, f, g
        rows = [p.detach().numpy().reshape(4, 4, *p.shape[1:])[order] for p in layer.parameters()]
        w, r = (p.reshape(1, 16, -1) for p in rows[:2])
        weights = {"w": w, "r": r, "b": np.concatenate([p.reshape(-1) for p in rows[2:]])[None]}
        nodes = [node("LSTM", "x w r b", "y h c", hidden_size=4)]
        out, (h, c) = layer(torch.from_numpy(x))
        want = [out[:, None], h, c]
    elif name == "conv":
        weights = {"w": normal(4, 3, 3, 3), "b": normal(4)}
        nodes = [node("Conv", "x w b", "y", pads=[0, 2, 1, 0], strides=[2, 1])]
        grown = torch.nn.functional.pad(torch.from_numpy(x), (2, 0, 0, 1))
        own = (torch.from_numpy(a) for a in weights.values())
        want = [torch.nn.functional.conv2d(grown, *own, stride=(2, 1))]
    else:
        weights, x = {}, -np.abs(x)
        nodes = [node("MaxPool", "x", "y", kernel_shape=[3, 2], pads=[1, 0, 0, 1])]
        grown = torch.nn.functional.pad(torch.from_numpy(x), (0, 1, 1, 0), value=-np.inf)
        want = [torch.nn.functional.max_pool2d(grown, (3, 2), 1)]
    _, got = ran(nodes, {"x": x}, weights)
    for one, other in zip(got, want, strict=True):
        np.testing.assert_allclose(one, other.detach().numpy(), rtol=1e-4, atol=1e-5)


# --- what is refused -----------------------------------------------------------------------------


def refused(code: str, model: Any, *inputs: Any) -> str:
    with pytest.raises(PullbackError) as error:
        pb.onnx.load(model)(*inputs)
    assert error.value.code == code, error.value
    return str(error.value)


def test_an_operator_without_a_rule_is_named() -> None:
    model = proto([node("Unique", "x", "y", name="few")], [info("x", [2])], [info("y", None)])
    text = refused("E570", model, np.ones(2, "f"))
    assert "node 'few', operator Unique of version 11: it has no rule" in text


def test_an_operator_of_another_version_is_another() -> None:
    """Of version 1 a Softmax is over all axes from one on."""
    x = RNG.normal(size=(2, 3, 4)).astype("f")
    for opset, shape in ((9, (2, 12)), (21, (2, 3, 4))):
        nodes = [node("Softmax", "x", "y", axis=1)]
        model = proto(nodes, [info("x", [2, 3, 4])], [info("y", [2, 3, 4])], opset=opset)
        rows = np.exp(x.reshape(shape))
        want = (rows / rows.sum(axis=1, keepdims=True)).reshape(x.shape)
        np.testing.assert_allclose(pb.onnx.load(model)(x).numpy(), want, rtol=1e-5)


def test_graphs_that_do_not_fit_together() -> None:
    x, y = [info("x", [2])], [info("y", [2])]
    refused("E572", proto([node("Relu", "z", "y"), node("Relu", "y", "z")], x, y))
    refused("E572", proto([node("Relu", "x", "y"), node("Relu", "x", "y")], x, y))
    refused("E572", proto([node("Relu", "x", "x")], x, y))
    refused("E572", proto([], x, y))
    refused("E572", proto([node("Relu", "x", "y")], [*x, *x], y))
    refused("E574", proto([node("Relu", "x", "y")], [info("x", [2], TensorProto.STRING)], y))
    refused("E578", proto([node("Relu", "x", "y z")], x, y), np.ones(2, "f"))


def test_calls_that_do_not_fit() -> None:
    model, _ = perceptron()
    own = pb.onnx.load(model)
    x = np.ones((2, 4), "f")
    with pytest.raises(ArgumentError, match="float64, float32 is wanted"):
        own(x.astype("d"))
    for args, named in (((x, x), {}), ((), {}), ((x,), {"x": x}), ((x,), {"z": x})):
        with pytest.raises(ArgumentError, match="E576"):
            own(*args, **named)


def external(folder: Path, location: str, **told: str) -> bytes:
    w = TensorProto(name="w", data_type=FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": location, **told}.items():
        w.external_data.add(key=key, value=value)
    graph = helper.make_graph([node("Neg", "w", "y")], "model", [], [info("y", [4])], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    return folder / "model.onnx"


def test_external_data_stay_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    numbers = np.arange(6, dtype="f")
    for place in (tmp_path, folder):
        (place / "data").write_bytes(numbers.tobytes())
    (folder / "link").symlink_to(tmp_path / "data")
    y = pb.onnx.load(external(folder, "data", offset="8", length="16"))().numpy()
    assert y.tolist() == [-2, -3, -4, -5]
    for location in ("../data", str(tmp_path / "data"), "link", "none", ".", "", "a\0b"):
        with pytest.raises(StateError) as error:
            pb.onnx.load(external(folder, location))
        assert error.value.code == "E573", location
    for told in ({"offset": "12"}, {"length": "8"}, {"offset": "-4"}, {"offset": "9" * 30}):
        with pytest.raises(StateError) as error:
            pb.onnx.load(external(folder, "data", **told))
        assert error.value.code == "E573", told


def test_names_are_texts() -> None:
    data = bytearray(proto([node("Relu", "input", "y")], [info("input", [2])],
                           [info("y", [2])]).SerializeToString())  # fmt: skip
    at = data.index(b"input")
    data[at] = 0xFF
    refused("E571", bytes(data))


def test_a_value_is_not_larger_than_the_machine() -> None:
    weights = {"s": np.array([1 << 30, 1 << 20])}
    model = proto([node("Expand", "x s", "y")], [info("x", [1])], [info("y", None)], weights)
    assert "bytes, where this machine has" in refused("E578", model, np.ones(1, "f"))


def test_tensors_have_the_bytes_that_their_shape_says() -> None:
    for fields in (
        {"dims": [1 << 40], "raw_data": b"1234"}, {"dims": [-1], "raw_data": b"1234"},
        {"dims": [1 << 40], "float_data": [1.0]}, {"dims": [2]},
    ):  # fmt: skip
        w = TensorProto(name="w", data_type=FLOAT, **fields)
        graph = helper.make_graph([node("Neg", "w", "y")], "model", [], [info("y", None)], [w])
        refused("E573", helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]))
    refused("E571", b"")
    refused("E571", b"\x08\x0a\x12")
    refused("E571", 3)


# --- onnx's own tests -----------------------------------------------------------------------------

RECORD = onnx_tests.recorded()
SAMPLE = (
    "relu", "conv", "softmax", "gather", "slice", "reducemean", "batch_normalization",
    "layernormalization",
)  # fmt: skip


@pytest.fixture(scope="module")
def listed() -> dict[str, Any]:
    return {case.name: case for case in onnx_tests.cases()}


def test_the_record_counts() -> None:
    counts = Counter(line.split()[0] for line in RECORD.values())
    assert len(RECORD) == 1884
    assert counts["right"] >= 1300
    assert set(counts) == {"right", "near", "refused"}
    assert counts["near"] <= 4


def test_a_sample_of_the_node_tests() -> None:
    """Some families, whose cases are made without those of all."""
    from onnx.backend.test.case import node as made

    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name in SAMPLE:
            importlib.import_module(f"onnx.backend.test.case.node.{name}")
    own = {case.name: case for case in made._NodeTestCases}
    chosen = sorted(own)[::4]
    assert len(chosen) > 20
    wrong = [(n, onnx_tests.verdict(own[n])) for n in chosen]
    assert not [w for w in wrong if w[1][0] != RECORD[w[0]]], wrong


@pytest.mark.slow
def test_all_node_tests_are_as_recorded(listed: dict[str, Any]) -> None:
    with np.errstate(all="ignore"):
        own = {name: onnx_tests.verdict(case) for name, case in listed.items()}
    assert {n: v for n, v in own.items() if v[0] != RECORD[n]} == {}


def test_a_node_alone_is_no_model() -> None:
    with pytest.raises(UnsupportedError):
        pb.onnx.Backend.run_node(node("Relu", "x", "y"), [np.ones(2, "f")])
    assert not pb.onnx.Backend.supports_device("CUDA")


@pytest.mark.slow
def test_the_light_models() -> None:
    """Nine networks for images, and what PyTorch wrote."""
    script = importlib.import_module("onnx_light")
    told = {case[0]: script.verdict(case) for case in (*script.light(), *script.written())}
    assert sum(v.startswith("right") for n, v in told.items() if n.startswith("light_")) == 9
    assert sum(v.startswith("right") for v in told.values()) >= 124
    assert not {n: v for n, v in told.items() if v.startswith(("wrong", "raw"))}


@pytest.mark.slow
def test_models_with_bytes_changed_are_refused(tmp_path: Path) -> None:
    script = importlib.import_module("fuzz_onnx")
    known = script.models()
    (tmp_path / "data").write_bytes(np.ones(4, "f").tobytes())
    codes = Counter()
    for seed in range(300):
        rng = random.Random(seed)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            codes[script.tried(script.changed(rng.choice(known), rng), tmp_path)] += 1
    assert codes["runs"] > 20 and codes["E571"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2", "encoder", "recurrent", "unet"])
def test_networks_that_pytorch_exports(name: str) -> None:
    pytest.importorskip("torch")
    script = importlib.import_module("onnx_torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert max(script.differences(name).values()) < script.BOUND


@pytest.mark.slow
@pytest.mark.parametrize("name", ["recurrent", "unet"])
def test_gradients_of_networks_that_pytorch_exports(name: str) -> None:
    """By the input, and by the parameters that kept their names; 8e-7 at most."""
    pytest.importorskip("torch")
    script = importlib.import_module("onnx_torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told = script.slopes(name)
    assert max(told.values()) < 1e-5, told
    assert len(told) == {"recurrent": 1, "unet": 9}[name]


def test_a_gradient_does_not_end_in_silence() -> None:
    """Outside of programs a call is a program of its own: `backward` says that it ends there."""
    x, y = [info("x", [2])], [info("y", [2])]
    model = pb.onnx.load(proto([node("Mul", "x w", "y")], x, y, {"w": np.float32([3, 4])}))
    head = pb.nn.Parameter(pb.ones(2))
    loss = (model(pb.ones(2)) * head).sum()
    with pytest.raises(PullbackError, match="outside of a program") as caught:
        loss.backward()
    assert caught.value.code == "E579"
    (model(pb.ones(2)).detach() * head).sum().backward()
    assert head.grad is not None and head.grad.tolist() == [3, 4]

    @pb.jit
    def step(x: Any) -> Any:
        model(x).sum().backward()
        return model.w.grad

    assert step(pb.tensor(np.float32([5, 6]))).tolist() == [5, 6]
    model.w.requires_grad_(False)
    (model(pb.ones(2)) * head).sum().backward()
    assert head.grad.tolist() == [6, 8]
