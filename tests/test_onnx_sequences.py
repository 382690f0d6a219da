"""Sequences and optional values of ONNX: lists, of lengths that are known while tracing."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback.errors import ArgumentError, UnsupportedError

pytest.importorskip("onnx")
from onnx import parser

HEAD = '<ir_version: 10, opset_import: ["" : 21]> '
X = np.arange(12, dtype=np.float32).reshape(4, 3)


def model(text: str) -> pb.onnx.Model:
    return pb.onnx.load(parser.parse_model(HEAD + text))


def test_parts_are_taken_joined_and_counted() -> None:
    own = model(
        """f (float[m, n] x) => (float[k, n] y, int64 c, float[r, n] last) {
        size = Constant <value = int64 {3}> ()
        two = Constant <value = int64 {-1}> ()
        one = Constant <value = int64 {1}> ()
        s = SplitToSequence <axis = 0> (x, size)
        t = SequenceInsert (s, x)
        u = SequenceErase (t, two)
        w = SequenceInsert (u, x, two)
        c = SequenceLength (w)
        y = ConcatFromSequence <axis = 0> (w)
        last = SequenceAt (u, one)
    }"""
    )
    y, c, last = own(X)
    assert np.array_equal(y.numpy(), np.concatenate([X[:3], X, X[3:]]))
    assert int(c) == 3 and np.array_equal(last.numpy(), X[3:])


@pytest.mark.parametrize("kept", [0, 1])
def test_one_by_one_and_an_axis_of_its_own(kept: int) -> None:
    own = model(
        f"""f (float[m, n] x) => (y) {{
        s = SplitToSequence <axis = 1, keepdims = {kept}> (x)
        y = ConcatFromSequence <axis = -1, new_axis = 1> (s)
    }}"""
    )
    wanted = np.stack([X[:, [n]] if kept else X[:, n] for n in range(3)], axis=-1)
    assert np.array_equal(own(X).numpy(), wanted)


def test_sequences_as_inputs_and_outputs() -> None:
    own = model(
        "f (seq(float[n]) s) => (seq(float[n]) t) { n = SequenceLength (s) t = Identity (s) }"
    )
    for lengths in ((1, 2), (), (3,)):
        given = [np.ones(n, np.float32) for n in lengths]
        made = own.run({"s": given})["t"]
        assert isinstance(made, list) and [y.shape for y in made] == [(n,) for n in lengths]
    with pytest.raises(ArgumentError, match="a list is wanted"):
        own(X)
    with pytest.raises(ArgumentError, match="is int64, float32 is wanted"):
        own([np.ones(2, np.int64)])


def test_gradients_pass_through_sequences() -> None:
    own = model(
        """f (float[m, n] x) => (float[k, n] y) {
        s = SplitToSequence <axis = 0> (x)
        y = ConcatFromSequence <axis = 0> (s)
    }"""
    )
    dx = pb.jit(pb.grad(lambda x: pb.sum(own(x) * X)))(pb.tensor(X))
    assert np.array_equal(dx.numpy(), X)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("y = SequenceAt (s, seven)", "place 7 of 4"),
        ("t = SequenceInsert (s, x, seven) y = SequenceAt (t, seven)", "place 7 of 4"),
        ("t = SequenceErase (s, seven) y = SequenceAt (t, seven)", "place 7 of 4"),
        ("t = SequenceEmpty () y = ConcatFromSequence <axis = 0> (t)", "a sequence of none"),
        ("t = SplitToSequence <axis = 0> (x, seven) y = SequenceAt (t, seven)", "place 7 of 1"),
        ("t = SplitToSequence <axis = 0> (x, parts) y = SequenceAt (t, seven)", "parts of"),
        ("y = Add (s, x)", "a sequence stands where a tensor is wanted"),
        ("y = SequenceAt (x, seven)", "no sequence"),
        ("t = Optional <type = float[n]> () y = OptionalGetElement (t)", "a value of none"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(line: str, why: str) -> None:
    text = f"""f (float[m, n] x) => (y) {{
        seven = Constant <value = int64 {{7}}> ()
        parts = Constant <value = int64[2] {{1, 2}}> ()
        s = SplitToSequence <axis = 0> (x)
        {line}
    }}"""
    if "<type" in line:
        text = text.replace(" <type = float[n]>", "")
    with pytest.raises(UnsupportedError, match=why) as caught:
        model(text)(X)
    assert caught.value.code == "E570"
