"""Declared shapes: what a declaration says is what is checked, before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import ArgumentError, DTypeError, ShapeError, SyntaxFormError
from pullback.tensor.shaped import shaped
from pullback.tensor.shaped.declaration import parse
from pullback.tensor.shaped.matching import result_sizes
from shape_pages import document


def declared(text: str, where: str = "") -> Any:
    """A function of tensors a, b and numbers p, shape that gives back what is bound."""

    @shaped(text, where=where)
    def function(a: Any, b: Any = None, p: Any = 0, shape: Any = (), mode: int | str = 0) -> Any:
        return None

    return function


def bound_sizes(text: str, *arrays: Any, **settings: Any) -> Any:
    """The sizes that the declared result would have."""
    function = declared(text)
    own = function.__shapes__
    return result_sizes(own.declared.results[0], own.check(own.bind(arrays, settings).arguments))


def of(*shape: Any) -> Any:
    """A tensor, or of shapes several."""
    return (
        [pb.zeros(s) for s in shape] if shape and isinstance(shape[0], tuple) else pb.zeros(shape)
    )


FITS = [
    ("a[n, k], b[k, m] -> [n, m]", [(3, 4), (4, 5)], {}, (3, 5)),
    ("a[*b, n], b[*b, n] -> [*b]", [(2, 1, 3), (5, 3)], {}, (2, 5)),
    ("a[c..., n], b[c...] -> [c..., n]", [(2, 3, 4), (2, 3)], {}, (2, 3, 4)),
    ("a[n?], b[n] -> [n]", [(1,), (7,)], {}, (7,)),
    ("a[n], b[n?] -> [n]", [(7,), (1,)], {}, (7,)),
    ("a[n, 3], b[2 * n] -> [n]", [(5, 3), (10,)], {}, (5,)),
    ("a[c, _ * p], b[c // p] -> [c, _ * p]", [(6, 1, 2), (3,)], {"p": 2}, (6, None, None)),
    ("a[*b, *shape], b[*shape] -> [*b]", [(9, 2, 3), (2, 3)], {"shape": (2, 3)}, (9,)),
    ("a[n, c] or [c], b[c] -> [c]", [(4,), (4,)], {}, (4,)),
    ("a[n, c] or [c], b[c] -> [c]", [(2, 4), (4,)], {}, (4,)),
    ("a[], b[0] -> []", [(), (0,)], {}, ()),
    ("a[c..., _ @ p], b[c...] -> [c...]", [(2, 3, 4), (2, 4)], {"p": 1}, (2, 4)),
    ("a[c..., n @ p], b[n] -> [c..., n @ p]", [(2, 3, 4), (3,)], {"p": -2}, (2, 3, 4)),
    ("a[c..., n @ p], b[n] -> [c..., n @ p]", [(2, 3, 4), (4,)], {"p": -1}, (2, 3, 4)),
    ("a[c...], b[c...<] -> [c...]", [(2, 3), (2, 1)], {}, (2, 3)),
    ("a[c..., _ @ p], b[c...<, _ @ p] -> [c...]", [(2, 3), (9, 3)], {"p": 0}, (3,)),
    ("a[*shape?], b[*shape?] -> [*shape]", [(3,), ()], {"shape": (2, 3)}, (2, 3)),
    ("a[*shape?], b[*shape?] -> [*shape]", [(3,), (2, 1)], {"shape": None}, (2, 3)),
    ("*a[c..., _ @ p] -> [c...]", [[(2, 3), (5, 3), (0, 3)]], {"p": 0}, (3,)),
    ("*a[*c] -> [*c]", [[(2, 1), (3,)]], {}, (2, 3)),
]


@pytest.mark.parametrize(("text", "shapes", "settings", "want"), FITS, ids=[f[0] for f in FITS])
def test_what_fits(text: str, shapes: Any, settings: Any, want: Any) -> None:
    assert bound_sizes(text, *(of(*s) for s in shapes), **settings) == want


MISFITS = [
    ("a[n, k], b[k, m]", [(3, 4), (5, 5)], "axis 0 of `b` has 5 elements, k is 4, axis 1 of `a`"),
    ("a[*b, n], b[*b]", [(2, 3), (4,)], "axis 0 of `b` has 4 elements, 2 in *b of `a`"),
    ("a[c..., n], b[c...]", [(2, 3, 4), (2, 1)], "axis 1 of `b` has 1 elements, axis 1 of c..."),
    ("a[c..., n], b[c...]", [(2, 3), (2, 3)], "`b` of (2, 3) has 2 axes"),
    ("a[n, 3]", [(5, 4)], "axis 1 of `a` has 4 elements, it must be 3"),
    ("a[n], b[2 * n]", [(5,), (9,)], "axis 0 of `b` has 9 elements, 2 * n is 10"),
    ("a[2 * n], b[n]", [(9,), (5,)], "axis 0 of `a` has 9 elements, 2 * n is 10"),
    ("a[n?], b[n]", [(3,), (1,)], "axis 0 of `b` has 1 elements, n is 3"),
    ("a[n, c] or [c]", [(2, 3, 4)], "`a` of (2, 3, 4) has 3 axes"),
    ("a[n, c] or [c], b[c]", [(2, 3), (2,)], "axis 0 of `b` has 2 elements, c is 3"),
    ("a[]", [(1,)], "`a` of (1,) has 1 axes, [] has 0"),
    (
        "a[c..., _ @ p], b[c...]",
        [(2, 3, 4), (2, 4)],
        "axis 0 of `b` has 2 elements, axis 0 of c...",
    ),
    ("a[c..., n @ p], b[n]", [(2, 3), (3,)], "axis 0 of `b` has 3 elements, n is 2, axis 0 of `a`"),
    ("a[c..., _ @ p], b[c..., _ @ p]", [(2, 3), (2, 3, 1)], "`b` of (2, 3, 1) has 2 other axes"),
    ("a[c..., _ @ p], b[c..., _ @ p]", [(2, 3), ()], "`b` of () has 0 axes, and no axis 0"),
    ("a[c...], b[c...<]", [(2, 3), (2, 4)], "axis 1 of `b` has 4 elements, axis 1 of c... has at"),
    ("a[c...], b[c...<]", [(2, 3), (2,)], "`b` of (2,) has 1 axes"),
    (
        "*a[c..., _ @ p]",
        [[(2, 3), (2, 4)]],
        "axis 1 of `a[1]` has 4 elements, axis 0 of c... has 3",
    ),
    ("*a[n]", [[(2,), (3,)]], "axis 0 of `a[1]` has 3 elements, n is 2, axis 0 of `a[0]`"),
]


@pytest.mark.parametrize(("text", "shapes", "message"), MISFITS, ids=[m[0] for m in MISFITS])
def test_what_does_not_fit(text: str, shapes: Any, message: str) -> None:
    with pytest.raises(ShapeError, match="E175") as caught:
        declared(text)(*(of(*s) for s in shapes))
    assert message in caught.value.what
    assert "test_shaped.py" in str(caught.value)


@pytest.mark.parametrize("value", [0, -1, 1.5, float("nan"), "2", (1, 0), None])
def test_integers_have_limits(value: Any) -> None:
    function = declared("a[n]", where="int(p) >= 1")
    if value is None:
        function(of(2), p=value)
        return
    with pytest.raises(ArgumentError, match="E176"):
        function(of(2), p=value)


PROBABILITIES = [
    (0.0, True), (1, True), (np.float32(0.5), True), (-0.1, False), (1.5, False),
    (float("nan"), False), ((0.2, 2.0), False), ("x", False),
]  # fmt: skip


@pytest.mark.parametrize(("value", "good"), PROBABILITIES)
def test_numbers_have_limits(value: Any, good: bool) -> None:
    function = declared("a[n]", where="0 <= p <= 1")
    if good:
        function(of(2), p=value)
        return
    with pytest.raises(ArgumentError):
        function(of(2), p=value)


@pytest.mark.parametrize("limit", ["p >= 0", "p > 0", "p <= 9", "p < 9", "p == 3", "p != 3"])
def test_what_is_no_number_keeps_no_limit(limit: str) -> None:
    with pytest.raises(ArgumentError):
        declared("a[n]", where=limit)(of(2), p=float("nan"))


def test_limits_of_extents() -> None:
    function = declared("a[c]", where="c % p == 0")
    function(of(6), p=3)
    with pytest.raises(ArgumentError, match="c % p == 0"):
        function(of(6), p=4)


def test_an_argument_that_may_be_text() -> None:
    declared("a[n]", where="int(mode) >= 1")(of(2), mode="same")


KINDS = [
    ("int", "int8", True), ("int", "float32", False), ("float", "bfloat16", True),
    ("float", "int32", False), ("bool", "bool", True), ("bool", "int8", False),
    ("number", "bool", False), ("any", "bool", True),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "dtype", "good"), KINDS)
def test_kinds(kind: str, dtype: str, good: bool) -> None:
    function = declared(f"a: {kind}[n]")
    if good:
        function(pb.zeros(3, dtype=dtype))
        return
    with pytest.raises(DTypeError, match="E177"):
        function(pb.zeros(3, dtype=dtype))


def test_symbolic_extents_are_themselves() -> None:
    n = pb.dim("n", 1, 8)

    def fits(x: pb.Tensor, w: pb.Tensor) -> Any:
        declared("a[n, k], b[n]")(x, w)
        return x.sum() + w.sum()

    assert float(pb.jit(fits, shapes=[(n, 3), (n,)])(pb.ones((5, 3)), pb.ones(5))) == 20.0
    with pytest.raises(ShapeError, match="axis 0 of `b` has 8 elements, n is n"):
        pb.jit(fits, shapes=[(n, 3), (8,)])(pb.ones((8, 3)), pb.ones(8))


def test_a_declaration_is_read_back() -> None:
    for text, *_ in FITS:
        assert str(parse(text)) == text


@pytest.mark.parametrize("text", ["a[n", "a(n)", "a: odd[n]", "a[n +]"])
def test_a_declaration_that_cannot_be_read(text: str) -> None:
    with pytest.raises(SyntaxFormError):
        declared(text)


def test_an_argument_that_is_not_there() -> None:
    with pytest.raises(SyntaxFormError, match="no argument 'c'"):
        declared("c[n]")


def test_help_shows_the_declaration() -> None:
    assert "input[*b, k], weight[n, k], bias[n] -> [*b, n]" in (
        pb.nn.functional.linear.__doc__ or ""
    )


def test_the_page_of_shapes_is_what_is_declared() -> None:
    """`python scripts/pages.py E175` writes it."""
    page = Path(__file__).parent.parent / "docs" / "shapes.md"
    assert page.read_text(encoding="utf-8") == document()


def test_what_is_listed_bounds_what_broadcasts() -> None:
    function = declared("a[*shape?]")
    with pytest.raises(ShapeError, match="`a` of \\(2, 3\\) has more axes than `shape`"):
        function(of(2, 3), shape=(3,))
    with pytest.raises(ShapeError, match="axis 0 of `a` has 2 elements"):
        function(of(2), shape=(4, 3))


def test_an_axis_that_is_none_is_left_to_the_function() -> None:
    function = declared("a[c..., _ @ p], b[c...]")
    assert function(of(2, 3), of(2), p=5) is None
    assert function(of(2, 3), of(2), p=None) is None


def test_several_are_remembered_by_their_shapes() -> None:
    """Tensors in a list are no part of the key, only their shapes: none is kept alive."""
    function = declared("*a[n]")
    for _ in range(3):
        function([pb.ones(2), pb.ones(2)])
    with pytest.raises(ShapeError, match="E175"):
        function([pb.ones(2), pb.ones(3)])
    (key,) = function.__shapes__.passed
    assert "Tensor" not in repr(key)


def test_one_of_a_list_has_limits() -> None:
    function = declared("a[n]", where="0 < shape[0] < shape[1]")
    function(of(2), shape=(1, 2))
    with pytest.raises(ArgumentError, match=r"shape=\(2, 1\)"):
        function(of(2), shape=(2, 1))


def test_errors_are_told_once() -> None:
    """What a function raises itself stands behind what its declaration raises."""
    text = pb.index_reduce.__doc__ or ""
    assert text.count("Raises:") == 1
    assert "ShapeError (E175) for other sizes\n    DTypeError (E177)" in text
    assert text.index("DTypeError (E177)") < text.index("OptionError for another reduction")
