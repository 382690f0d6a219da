"""GGUF files: what they say, bit for bit beside the `gguf` package, and what is refused."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from gguf_support import BLOCKS, damaged, example, outcome, random_blocks
from pullback.errors import PullbackError, StateError, UnsupportedError

KEEP = 1500  # damaged files of the default run; `scripts/fuzz_gguf.py` takes more


def package() -> Any:
    return pytest.importorskip("gguf", reason="the package `gguf` is not installed")


def same_bits(got: Any, want: Any, name: str) -> None:
    """NaN is any NaN; all else has its bits."""
    assert got.shape == want.shape and got.dtype == want.dtype == np.float32, name
    bits = [np.where(np.isnan(a), np.float32(np.nan), a).view(np.uint32) for a in (got, want)]
    wrong = np.argwhere(bits[0] != bits[1])
    if len(wrong):
        first = tuple(map(int, wrong[0]))
        pytest.fail(f"{name}{list(first)}: got {got[first]!r}, want {want[first]!r}")


def test_facts_and_tensors_come_back(tmp_path: Path) -> None:
    example(tmp_path / "m.gguf")
    file = pb.gguf.read(tmp_path / "m.gguf")
    assert file.version == 3 and list(file.tensors) == ["f32", "f16", "bf16", *BLOCKS]
    assert file.facts["a.truth"] is True and file.facts["a.float"] == 0.5
    assert file.facts["a.large"] == 2**40 and file.facts["a.negative"] == -3
    assert file.facts["a.texts"] == ["x", "", "\u00e9"]
    assert file.facts["a.numbers"].tolist() == [0, 1, 2, 3, 4]
    assert file["f32"].shape == (2, 3, 4) and file["q4_K"].shape == (3, 512)
    assert not file["q8_0"].raw.flags.writeable and file["q8_0"].raw.base is not None


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", *BLOCKS])
def test_dequantised_has_the_bits_of_the_package(kind: str, tmp_path: Path) -> None:
    """Of random bytes: infinite, NaN and subnormal scales among them."""
    theirs, path = package(), tmp_path / "m.gguf"
    rng = np.random.default_rng(1)
    given: Any = (random_blocks(kind, 70, 3), kind) if kind in BLOCKS else None
    if given is None:
        bits = rng.integers(0, 2**32, (40, 16), dtype=np.uint32)
        given = bits.view(
            pb.dtype({"f32": "float32", "f16": "float16"}.get(kind, "bfloat16")).numpy
        )
    pb.gguf.write(path, {}, {"w": given})
    (read,) = theirs.GGUFReader(path).tensors
    with np.errstate(all="ignore"):
        want = theirs.quants.dequantize(np.asarray(read.data), read.tensor_type)
    same_bits(pb.gguf.dequantised(pb.gguf.read(path)["w"]).numpy(), want, kind)


def test_a_file_of_the_package_is_read(tmp_path: Path) -> None:
    theirs, path = package(), tmp_path / "m.gguf"
    writer = theirs.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_token_list([b"a", "\u0120b"])
    writer.add_token_scores([0.0, -1.5])
    writer.add_bool("x.truth", False)
    values = np.linspace(-1, 1, 4 * 64, dtype=np.float32).reshape(4, 64)
    writer.add_tensor("whole", values)
    for name in ("Q8_0", "Q4_0"):
        kind = theirs.GGMLQuantizationType[name]
        writer.add_tensor(name, theirs.quants.quantize(values, kind), raw_dtype=kind)
    for write in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{write}")()
    writer.close()
    file = pb.gguf.read(path)
    assert file.fact("general.architecture", str) == "llama"
    assert file.fact("llama.block_count", int) == 2 and file.facts["x.truth"] is False
    assert file.facts["tokenizer.ggml.tokens"] == ["a", "\u0120b"]
    assert file.facts["tokenizer.ggml.scores"].tolist() == [0.0, -1.5]
    for name, error in (("whole", 0.0), ("Q8_0", 0.5 / 127), ("Q4_0", 1.01 / 8)):
        off = np.abs(pb.gguf.dequantised(file[name]).numpy() - values).max()
        assert off <= error, (name, off)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", *BLOCKS])
def test_products_of_blocks(kind: str, tmp_path: Path) -> None:
    """One row and several, of more rows of weights than a panel: to 1e-6 of the terms' sizes; rows
    that are taken have the bits of the dequantised ones.
    """
    rng = np.random.default_rng(2)
    values = rng.normal(size=(70, 512)).astype(np.float32)
    given: Any = values.astype({"f32": "f4", "f16": "f2"}.get(kind, pb.bfloat16.numpy))
    if kind in BLOCKS:
        size = 2 if kind.endswith("K") else 16
        given = random_blocks(kind, 70, size, scale=0.01), kind
    pb.gguf.write(tmp_path / "m.gguf", {}, {"w": given})
    stored = pb.gguf.read(tmp_path / "m.gguf")["w"]
    whole, w = pb.gguf.dequantised(stored).numpy(), pb.gguf.Weight(stored)
    assert w.nbytes < 2 * stored.raw.size  # of 128 rows, where 70 are
    for lead in ((), (1,), (5,)):
        x = rng.normal(size=(*lead, 512)).astype(np.float32)
        got = pb.jit(lambda x: w(x))(x).numpy()
        want = x.astype(np.float64) @ whole.astype(np.float64).T
        sizes = np.abs(x).astype(np.float64) @ np.abs(whole).T
        off = np.abs(got - want) / sizes
        assert got.shape == want.shape and off.max() < 1e-6, (lead, off.argmax(), off.max())
    places = np.array([69, 0, 64, 63, 7])
    same_bits(pb.jit(lambda n: w.taken(n))(places).numpy(), whole[places], kind)


@pytest.mark.parametrize("kind", BLOCKS)
def test_a_product_expands_no_weights(kind: str, tmp_path: Path) -> None:
    """What a program holds beside its arguments is small beside the matrix in float32."""
    blocks = {"q4_K": 4, "q6_K": 4}.get(kind, 32)
    pb.gguf.write(tmp_path / "m.gguf", {}, {"w": (random_blocks(kind, 1024, blocks), kind)})
    w = pb.gguf.Weight(pb.gguf.read(tmp_path / "m.gguf")["w"])
    run = pb.jit(lambda x: w(x))
    run(np.zeros(1024, np.float32))
    assert run.program.memory.arena_bytes < 1024 * 1024 * 4 / 16
    assert w.nbytes < 1024 * 1024 * 4 / 3


# --- what is refused


def changed(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert data.count(old) == 1
    path.write_bytes(data.replace(old, new))


Q = struct.Struct("<Q").pack
INFO = struct.Struct("<IQQIQ").pack  # axes, extents, kind, offset


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"GGUF\3\0\0\0", b"GGUF\0\0\0\3", "the other byte order"),
        (b"GGUF\3\0\0\0", b"GGUF\1\0\0\0", "version 1"),
        (Q(2) + Q(1), Q(2) + Q(2**60), "keys in the"),
        (Q(2) + Q(1), Q(2**60) + Q(1), "tensors in the"),
        (Q(2) + Q(1), Q(30) + Q(1), "30 tensors in the"),
        (Q(1) + b"k", Q(2**63) + b"k", "bytes wanted"),
        (Q(1) + b"k", Q(1) + b"\xff", "not UTF-8"),
        (b"k" + struct.pack("<IIQ", 9, 5, 6), b"k" + struct.pack("<IIQ", 9, 5, 2**61), "elements"),
        (b"k" + struct.pack("<II", 9, 5), b"k" + struct.pack("<II", 9, 13), "a value of type 13"),
        (INFO(2, 32, 2, 0, 0), INFO(9, 32, 2, 0, 0), "9 axes"),
        (INFO(2, 32, 2, 0, 0), INFO(2, 2**62, 2**62, 0, 0), "ends at"),
        (INFO(2, 32, 2, 0, 0), INFO(2, 32, 2, 0, 32), "share bytes"),
        (INFO(2, 32, 2, 0, 0), INFO(2, 8, 8, 8, 0), "32 a block"),
        (INFO(2, 32, 2, 0, 0), INFO(2, 0, 8, 0, 0), "(8, 0)"),
        (INFO(2, 32, 2, 0, 0), INFO(2, 32, 2, 0, 4), "no multiple of 32"),
        (Q(1) + b"w", Q(1) + b"v", "the tensor `v` twice"),
    ],
    ids=lambda given: given.replace(" ", "-") if isinstance(given, str) else "",
)
def test_what_a_file_may_not_say(old: bytes, new: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    zeros = np.zeros((2, 32), np.float32)
    pb.gguf.write(path, {"k": np.zeros(6, np.int32)}, {"w": zeros, "v": zeros})
    changed(path, old, new)
    with pytest.raises(StateError) as raised:
        pb.gguf.read(path)
    assert raised.value.code == "E580" and said in raised.value.what, raised.value.what
    assert str(path) in raised.value.what


def test_a_key_twice_and_a_wrong_alignment(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    pb.gguf.write(path, {"one": 1, "two": 2}, {})
    changed(path, b"two", b"one")
    with pytest.raises(StateError, match="the key `one` twice"):
        pb.gguf.read(path)
    for wrong in (0, 33, "x"):
        pb.gguf.write(path, {"general.alignment": wrong}, {})
        with pytest.raises(StateError, match="no power of two"):
            pb.gguf.read(path)


def test_other_types_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    pb.gguf.write(path, {}, {"w": np.zeros((2, 256), np.float32)})
    for code, name in ((11, "q3_K"), (16, "iq2_xxs"), (99, "of type 99")):
        data = path.read_bytes().replace(INFO(2, 256, 2, 0, 0), INFO(2, 256, 2, code, 0))
        (tmp_path / "n.gguf").write_bytes(data)
        with pytest.raises(UnsupportedError, match=name) as raised:
            pb.gguf.read(tmp_path / "n.gguf")
        assert raised.value.code == "E581" and "q6_K" in raised.value.help


def test_names_and_types_of_facts(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    pb.gguf.write(path, {"n": 3, "t": True, "s": "x"}, {"w": np.zeros(2, np.float32)})
    file = pb.gguf.read(path)
    assert file.fact("n", float) == 3 and file.fact("none", int, 7) == 7
    for call, code in (
        (lambda: file["v"], "E582"),
        (lambda: file.fact("m", int), "E582"),
        (lambda: file.fact("s", int), "E587"),
        (lambda: file.fact("t", int), "E587"),
    ):
        with pytest.raises(StateError) as raised:
            call()
        assert raised.value.code == code


@pytest.mark.parametrize(
    "tensor",
    [np.zeros(2), np.zeros((2, 0), np.float32), np.float32(1), (np.zeros(33, np.uint8), "q8_0"),
     (np.zeros(34, np.uint8), "q3_K")],
)  # fmt: skip
def test_what_cannot_be_written_leaves_no_file(tensor: Any, tmp_path: Path) -> None:
    with pytest.raises(StateError) as raised:
        pb.gguf.write(tmp_path / "m.gguf", {}, {"w": tensor})
    assert raised.value.code == "E580" and not list(tmp_path.iterdir())


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    data = example(path)
    seen = {
        outcome(_written(tmp_path / "d.gguf", damaged(n, data)), lambda f: f.tensors)
        for n in range(KEEP)
    }
    assert seen >= {"read", "E580", "E581"} and seen <= {"read", "E580", "E581"}, seen


def _written(path: Path, data: bytes) -> Path:
    path.unlink(missing_ok=True)  # another file: the one before may be mapped still
    path.write_bytes(data)
    return path


def test_refusals_are_mistakes_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"")
    with pytest.raises(PullbackError, match="is no GGUF file"):
        pb.gguf.read(tmp_path / "m.gguf")
