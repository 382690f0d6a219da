"""daten: programs in text, what they compute, which gradients, training, wrong texts and data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from daten_support import BODIES, SEED, SEVERAL, TEXTS, mutated, tried
from pullback.backends import registry
from pullback.cli.main import commands
from pullback.daten import Model, parse, read
from pullback.daten.train import settings_of, train
from pullback.errors import PullbackError, StateError
from pullback.operations.code import FileOrigin
from test_backends import OWN

ROOT = Path(__file__).parent.parent
NET = ROOT / "examples" / "net.daten"
TOML = 'name = "{}"\ninputs = ["P[M, N]", "Q[M, N]"]\noutputs = ["R[{}]"]\ncode = "{}"\n'


def plugins(folder: Path) -> Path:
    """L1 and L2 of the seed's text, as files."""
    one = TOML.format("L1", "M, N", "R[m, n] = P[m, n] + Q[m, n]")
    other = TOML.format("L2", "M, M", "R[m, k] = sum[n](P[m, n] * Q[k, n])")
    (folder / "L1.toml").write_text(one)
    (folder / "L2.toml").write_text(other)
    return folder


def invoked(*words: str) -> Any:
    return CliRunner().invoke(commands, ["run", *words])


def kernels(model: Model) -> str:
    assert model.program is not None
    return model.program.explain()


@pytest.mark.parametrize("backend", ["reference", "kernels", "llvm", "c"])
def test_the_seeds_text_beside_numpy(backend: str, tmp_path: Path) -> None:
    """As it stands: modules without bodies are files, shapes follow from that of A."""
    model = parse(SEED, plugins=[plugins(tmp_path)])
    model.shapes = {"A": (3, 4)}
    model.options = pb.Options(backend=backend, threads=1)
    rng = np.random.default_rng(0)
    c = rng.normal(size=(3, 3)).astype(np.float32)
    made, slopes = model.gradients(C=c)
    a, b = model.values["A"], model.values["B"]
    np.testing.assert_allclose(made["output"], a @ b.T + c, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slopes["A"], np.tile(b.sum(0), (3, 1)), rtol=1e-5)
    np.testing.assert_allclose(slopes["B"], np.tile(a.sum(0), (3, 1)), rtol=1e-5)
    again = parse(BODIES)
    assert np.array_equal(again.gradients(C=c)[1]["A"], slopes["A"]) or backend != "llvm"


def test_only_marked_parameters_have_gradients() -> None:
    both = parse(BODIES)
    both.gradients()
    assert "dA" in kernels(both) and "dB" in kernels(both)
    one = parse(BODIES.replace("B{Grad}", "B"))
    assert set(one.gradients()[1]) == {"A"}
    assert "dA" in kernels(one) and "dB" not in kernels(one)
    one.infer()
    assert "dA" not in kernels(one)
    assert [{s.target.name for s in k.stages} for k in one.program.kernels] == [{"z1"}]


def test_gradients_beside_torch() -> None:
    torch = pytest.importorskip("torch")
    model = read(NET)
    rng = np.random.default_rng(1)
    data = {"x": rng.normal(size=(9, 5)), "t": rng.normal(size=(9, 1))}
    made, slopes = model.gradients(**data)
    own = {n: torch.tensor(v, requires_grad=True) for n, v in model.values.items()}
    x, t = (torch.tensor(v.astype(np.float32)) for v in data.values())
    output = torch.relu(x @ own["w1"] + own["b1"]) @ own["w2"] + own["b2"]
    loss = ((output - t) ** 2).mean()
    loss.backward()
    np.testing.assert_allclose(made["output"], output.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(made["loss"], loss.item(), rtol=1e-5)
    for name, tensor in own.items():
        np.testing.assert_allclose(slopes[name], tensor.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("batch", [0, 16])
def test_training_is_that_of_torch(batch: int) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    x = rng.normal(size=(40, 5)).astype(np.float32)
    t = np.sin(x[:, :1])
    model = read(NET)
    model.infer(x=x)
    own = {n: torch.tensor(v.copy(), requires_grad=True) for n, v in model.values.items()}
    losses = train(model, settings_of(model, steps=25, batch=batch), {"x": x, "t": t})
    optimizer = torch.optim.Adam(own.values(), lr=0.01)
    for step in range(25):
        start = step % 2 * 16
        rows = slice(start, start + batch) if batch else slice(None)
        output = torch.relu(torch.tensor(x[rows]) @ own["w1"] + own["b1"]) @ own["w2"] + own["b2"]
        loss = ((output - torch.tensor(t[rows])) ** 2).mean()
        assert abs(loss.item() - losses[step]) <= 1e-4 * loss.item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, tensor in own.items():
        np.testing.assert_allclose(
            model.values[name], tensor.detach().numpy(), rtol=1e-3, atol=1e-4
        )


@pytest.mark.slow
def test_the_command_trains_saves_and_loads(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(64, 5)).astype(np.float32)
    data, weights = tmp_path / "data.npz", tmp_path / "w.safetensors"
    np.savez(data, x=x, t=np.sin(x[:, :1]))
    done = invoked(str(NET), "-m", "train", "--feed", str(data), "--save", str(weights))
    assert done.exit_code == 0, done.output
    first, *_, last = [float(r.split()[-1]) for r in done.output.splitlines() if ": loss" in r]
    assert last < first / 10
    assert "w1" in done.output.partition("kernels:")[2]
    out = tmp_path / "out.npz"
    words = ("--load", str(weights), "--feed", str(data), "--out", str(out))
    again = invoked(str(NET), *words)
    assert again.exit_code == 0 and "output [64, 1]" in again.output, again.output
    with np.load(out) as made:
        assert np.mean((made["output"] - np.sin(x[:, :1])) ** 2) < first / 10
    drawn = invoked(str(NET), "-m", "train", "--sizes", "B=8", "--steps", "3", "--json")
    assert drawn.exit_code == 0 and drawn.output.count('"loss"') == 4, drawn.output


def test_inference_needs_no_targets() -> None:
    model = read(NET)
    model.infer(x=np.ones((2, 5)))
    assert "loss" not in kernels(model)
    assert set(model.bound(model.outputs, {"x": np.ones((2, 5))})) == {"x", "w1", "b1", "w2", "b2"}


def test_parameters_that_are_not_marked_stay() -> None:
    model = read(NET)
    frozen = parse(NET.read_text().replace("w1{Grad}", "w1"))
    model.sizes = frozen.sizes = {"B": 6}
    model.infer()
    train(frozen, settings_of(frozen, steps=4), {})
    assert np.array_equal(frozen.values["w1"], model.values["w1"])
    assert not np.array_equal(frozen.values["w2"], model.values["w2"])
    assert "dw1" not in kernels(frozen) and "dw2" in kernels(frozen)


def test_several_results_numbers_and_whole_data() -> None:
    model = parse(SEVERAL)
    made, slopes = model.gradients(t=[0, 6, 6, 2])
    w = model.values["w"]
    v = w * np.float32(0.5)
    g = 3 * v[[0, 6, 6, 2]] + v[0]
    np.testing.assert_allclose(made["loss"], g.sum() + v[6], rtol=1e-5)
    np.testing.assert_allclose(slopes["w"], [1.5 + 2, 0, 1.5, 0, 0, 0, 3.5], rtol=1e-5)


def test_plugins_of_every_kind(tmp_path: Path) -> None:
    (tmp_path / "p.daten").write_text(BODIES)
    files = (plugins(tmp_path), tmp_path / "p.daten")
    made = []
    for plugin in ((files[0],), (files[1],), (tmp_path / "L1.toml", tmp_path / "L2.toml")):
        model = parse(SEED, plugins=plugin)
        model.shapes = {"A": (2, 3)}
        made.append(model.infer()["output"])
    assert np.array_equal(made[0], made[1]) and np.array_equal(made[0], made[2])
    file = tmp_path / "own.py"
    file.write_text(OWN)
    done = invoked("-e", BODIES, "--plugin", str(file), "--plugin", str(tmp_path / "L1.toml"))
    assert done.exit_code == 0 and "output [3, 3]" in done.output, done.output
    assert getattr(registry.named(str(file)), "graphs") == 1  # noqa: B009 - of the file's class
    assert invoked("-e", BODIES, "--plugin", str(file), "--backend", "c").exit_code == 2


def test_a_module_of_another_signature_is_told() -> None:
    text = BODIES.replace("A[m, n] + B[m, n]", "A[m, n] + B[n, m]")
    wide = text.replace("A{Grad}[3, 4]", "A{Grad}[3, 3]").replace("(L2 A B)", "A").replace(
        "  B{Grad}\n", "")  # fmt: skip
    assert parse(wide).infer()["output"].shape == (3, 3)
    with pytest.raises(PullbackError) as caught:
        parse(wide.replace("[3, 3]", "[3, 4]")).infer()
    assert isinstance(caught.value.origin, FileOrigin)


WRONG = {
    BODIES.replace("main:", "mian:"): "14:1|no section is called mian .E558",
    BODIES.replace("(L1 (", "(L3 ("): "15:12|no module is called L3",
    BODIES.replace("(L2 A B) C)", "(L2 A B) C"): "15:12|not closed",
    BODIES.replace("B[k, n]", "B[k, q]"): "7:38|'q' is bound by nothing",
    BODIES.replace("A{Dense}[M, N] B{Dense}", "A{Sparse}[M, N] B{Dense}", 1): "3:16|dense .E555",
    BODIES.replace("B{Dense}[M, N] -> A{T}[M, k]\n", "B{Dense}[M N] -> A{T}[M, k]\n"): "3:31|E551",
    BODIES.replace("    return z1\n", "", 1): "3:3|A is given to it",
    BODIES.replace("A{Grad}[3, 4]", "A{Grad, int32}[3, 4]"): "11:3|marked, and no float",
    BODIES.replace("A{Grad}[3, 4]", "A{Grad}[3, 4] = (nrmal 1)"): "11:19|mean normal",
    BODIES.replace("output = ", "C = (L2 A B)\n  output = "): "",
    BODIES + "  output = A\n": "16:3|output is there already",
    BODIES.replace("output", "B"): "15:3|B is there already",
    BODIES.replace("\n  A{Grad}[3", "\n\tA{Grad}[3"): "11:1|a tab",
    BODIES.replace("[3, 4]", "[3, 4]\n  B{Grad}"): "13:3|B is there already",
    SEVERAL.replace("steps = 3", "step = 3"): "19:3|no setting is called step",
    SEVERAL.replace("steps = 3", "steps = many"): "19:3|steps = many is none",
    SEVERAL.replace("(ends v)", "(ends u)"): "15:3|no tensor is called u",
    SEVERAL.replace("a, b = (ends v)", "a = (ends v)"): "15:3|2 tensors are given, 1 are named",
    SEVERAL.replace("(ends v)", "(ends v v)"): "15:10|ends takes 1 tensors, not 2 .E554",
    SEVERAL.replace("loss[] = sum[i](g[i]) + b", "loss[i] = g[i]"): "17:3|no single number .E560",
    SEVERAL.replace("x{T}[~] s{T: float}", "x{T}[~] s{T: int}"): "14:7|no int .E556",
    SEVERAL.replace("w{Grad}", "w"): "|no parameter is marked .E560",
    SEVERAL.replace("f[7] = 3", "u{Grad}[7] = 3\n  f[7] = 3"): "10:3|u is marked, and nothing",
}  # fmt: skip


@pytest.mark.parametrize("number", range(len(WRONG)))
def test_wrong_texts_are_told_by_line_and_column(number: int) -> None:
    text, said = list(WRONG.items())[number]
    place, _, what = said.partition("|")

    def all_of_it() -> None:
        model = parse(text, path="w.daten")
        settings_of(model)
        model.gradients()

    if not said:
        all_of_it()
        return
    with pytest.raises(PullbackError, match=what) as caught:
        all_of_it()
    assert f"w.daten:{place}\n" in str(caught.value) or not place, str(caught.value)


def test_modules_and_names_that_are_known_are_told() -> None:
    with pytest.raises(PullbackError) as caught:
        parse(BODIES.replace("(L2 A", "(L22 A"))
    assert "did you mean L2? these are known: L1, L2" in str(caught.value)
    with pytest.raises(PullbackError, match="L1 has no body") as caught:
        parse(SEED)
    assert "--plugin L1.toml" in caught.value.help
    with pytest.raises(PullbackError, match=r"nothing says what shape A has.*E553"):
        parse(BODIES.replace("A{Grad}[3, 4]", "A{Grad}")).infer()
    unknown = parse(BODIES.replace("A{Grad}[3, 4]", "A{Grad}[D, 4]"))
    with pytest.raises(PullbackError, match=r"nothing says what D is.*E553"):
        unknown.infer()
    unknown.sizes = {"D": 5}
    assert unknown.infer()["output"].shape == (5, 5)


@pytest.mark.parametrize(
    ("kind", "start", "right"),
    [
        ("int8", "= 127", True), ("int8", "= 128", False), ("int8", "= 0.5", False),
        ("int8", "= -128", True), ("uint8", "= -1", False), ("int64", "= (normal 1)", False),
        ("int64", "= (below 1e30)", False), ("int8", "= (below 128)", True),
        ("int8", "= (below 129)", False), ("bool", "= 1", True), ("bool", "= 2", False),
        ("float32", "= 1e400", False), ("float32", "= (uniform -1e308 1e308)", False),
        ("float32", "= (below 5)", True), ("int64", "", True), ("float64", "= (normal 2)", True),
        ("float16", "= 1e6", False),
    ],
)  # fmt: skip
def test_values_to_begin_with(kind: str, start: str, right: bool) -> None:
    model = parse(f"inputs:\n  x{{{kind}}}[40] {start}\nmain:\n  y[i] = x[i]\n")
    if not right:
        with pytest.raises(PullbackError, match=r"x: .* is no .*\[E558\]"):
            model.infer()
        return
    made = model.infer()["y"]
    assert made.dtype.name == kind and np.all(np.isfinite(made.astype(float)))
    if start.startswith("= (below"):
        assert made.min() >= 0 and made.max() < 128
    elif start and "(" not in start:
        assert np.all(made == np.array(float(start[2:])).astype(kind))


def test_data_that_does_not_fit(tmp_path: Path) -> None:
    model = read(NET)
    x, t = np.ones((4, 5)), np.ones((4, 1))
    for data, said in (
        ({"y": x}, "no tensor is called y"),
        ({"x": x, "t": t[:3]}, "B is 4, by axis 0 of `x`"),
        ({"x": x[:, :3], "t": t}, "has 3 elements, not 5"),
        ({"x": x[0], "t": t}, "is given 1 axes"),
        ({"x": np.array(["a"]), "t": t}, "E559"),
    ):
        with pytest.raises(PullbackError, match=said) as caught:
            model.gradients(**data)
        assert caught.value.code in ("E552", "E559")
    with pytest.raises(StateError, match="t is float64, which int64 does not hold"):
        parse(SEVERAL).gradients(t=np.ones(4) * 1.5)
    small = parse(SEVERAL.replace("t{int64}", "t{int8}"))
    with pytest.raises(StateError, match="int8 does not hold"):
        small.gradients(t=np.full(4, 300))
    for batch, rows, said in ((9, 4, "4 rows of data, and 9"), (2, 3, "different numbers of rows")):
        with pytest.raises(StateError, match=said):
            train(model, settings_of(model, batch=batch), {"x": x, "t": t[:rows]})
    weights = tmp_path / "w.safetensors"
    for own, said in (({"w1": x}, "has no b1"), ({"w9": x}, "no tensor is called w9")):
        pb.nn.save(own, weights)
        with pytest.raises(StateError, match=said):
            model.load(weights)
    model.sizes = {"B": 2}
    model.infer()
    model.save(weights)
    other = parse(NET.read_text().replace("w2{Grad}[32, 1]", "w2{Grad}[32, 2]"))
    other.load(weights)
    with pytest.raises(PullbackError, match=r"axis 1 of `w2` has 1 elements, not 2"):
        other.infer(x=x)


def test_files_that_are_none(tmp_path: Path) -> None:
    bad = tmp_path / "bad.npz"
    np.savez(bad, x=np.array([{}], object))
    whole = tmp_path / "w.npz"
    np.savez(whole, x=np.ones((4, 5), np.float32))
    for data in (b"", b"PK\x03\x04 not", bad.read_bytes(), whole.read_bytes()[:90]):
        bad.write_bytes(data)
        done = invoked(str(NET), "--feed", str(bad))
        assert done.exit_code == 2 and "E559" in done.output, done.output
    for words in (("--feed", "/nowhere"), ("--load", "/nowhere"), ("--plugin", "/nowhere"),
                  ("--plugin", str(whole)), ("--shape", "q[3]"), ("--shape", "x(3)"),
                  ("--sizes", "B=x"), ("--optimizer", "none"), ("-e", "main:"),
                  ("--backend", "none")):  # fmt: skip
        done = invoked(str(NET), *words)
        assert done.exit_code == 2 and "Traceback" not in done.output, (words, done.output)
    assert invoked().exit_code == 2 and invoked("/nowhere").exit_code == 2
    big = tmp_path / "big.daten"
    big.write_text("#" * (1 << 19))
    with pytest.raises(StateError, match="characters"):
        read(big)
    with pytest.raises(PullbackError, match="would be"):
        parse(BODIES.replace("[3, 4]", "[999999, 999999]")).infer()


def test_results_that_cannot_be_written(tmp_path: Path) -> None:
    """An output may have any name; nothing is left of what fails."""
    text = "inputs:\n  x[3] = 1\nmain:\n  file[i] = x[i] * 2\n"
    out = tmp_path / "out.npz"
    assert invoked("-e", text, "--out", str(out)).exit_code == 0
    with np.load(out) as made:
        assert made["file"].tolist() == [2, 2, 2]
    for path in (tmp_path, tmp_path / "none" / "out.npz"):
        done = invoked("-e", text, "--out", str(path))
        assert done.exit_code == 2 and "[E619]" in done.output, done.output
    assert [*tmp_path.iterdir()] == [out] and not tmp_path.with_suffix(".npz").exists()
    assert invoked(str(NET), "-m", "train", "--sizes", "B=2", "--out", str(out)).exit_code == 2


def test_deep_and_long_texts_end() -> None:
    with pytest.raises(PullbackError, match="nested too deeply"):
        parse(BODIES.replace("(L2 A B)", "(L2 " * 3000 + "A B" + ")" * 3000))
    lines = "".join(f"  v{n} = (L1 A A)\n" for n in range(500))
    assert parse(BODIES.replace("  output = ", lines + "  output = ")).outputs == ("output",)
    loop = BODIES.replace("z1[m, n] = A[m, n] + B[m, n]", "z1 = L1(A, B)")
    with pytest.raises(PullbackError, match="call each other"):
        parse(loop).infer()


def test_some_changed_texts() -> None:
    for seed in range(150):
        tried(mutated(seed))


@pytest.mark.slow
def test_changed_texts() -> None:
    for seed in range(1000, 5000):
        tried(mutated(seed))


def test_most_changed_texts_are_refused_and_whole_ones_run() -> None:
    assert [tried(text) for text in TEXTS] == ["runs"] * len(TEXTS)
