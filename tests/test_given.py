"""What loops, branches, transformations, options and random numbers are given: errors by code.

Each mistake is told at the line that makes it, outside of a program and inside of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import PullbackError

R = pb.random
X = np.array([0.5, 1.5])


def same(*args: Any) -> Any:
    return args[-1]


def once(c: Any) -> Any:
    return pb.sum(c) < 9.0


CONTROL: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "steps that are half": ("E360", lambda x: pb.loop(2.5, same, x)),
    "steps that are text": ("E360", lambda x: pb.loop("3", same, x)),
    "steps that are none": ("E360", lambda x: pb.loop(None, same, x)),
    "steps that are a list": ("E360", lambda x: pb.loop([1, 2], same, x)),
    "a body that is a number": ("E223", lambda x: pb.loop(3, 5, x)),
    "a condition that is a float": ("E146", lambda x: pb.cond(1.0, once, once, x)),
    "a condition that is text": ("E146", lambda x: pb.cond("yes", once, once, x)),
    "a condition that is none": ("E146", lambda x: pb.cond(None, once, once, x)),
    "a condition of two": ("E146", lambda x: pb.cond(x > 0.0, once, once, x)),
    "branches that are tensors": ("E223", lambda x: pb.cond(once(x), x, x)),
    "a test that gives a float": ("E146", lambda x: pb.while_loop(lambda c: 1.0, same, x)),
    "a test that gives nothing": ("E146", lambda x: pb.while_loop(lambda c: None, same, x)),
    "a test that is none": ("E223", lambda x: pb.while_loop(None, same, x)),
    "half a step at most": ("E360", lambda x: pb.while_loop(once, same, x, max_steps=2.5)),
    "less than no step": ("E123", lambda x: pb.while_loop(once, same, x, max_steps=-1)),
    "a scan without a pair": ("E224", lambda x: pb.scan(lambda c, r: c, x, None, 3)),
    "a scan of three": ("E224", lambda x: pb.scan(lambda c, r: (c, c, c), x, None, 3)),
    "a scan of nothing": ("E224", lambda x: pb.scan(lambda c, r: None, x, None, 3)),
    "no step without a pair": ("E224", lambda x: pb.scan(lambda c, r: c, x, None, 0)),
    "chunks without a pair": (
        "E224",
        lambda x: pb.scan(lambda c, r: c, x, None, 9, checkpoint="sqrt"),
    ),
    "a length that is half": ("E360", lambda x: pb.scan(same, x, None, 2.5)),
    "a length below none": ("E123", lambda x: pb.scan(same, x, None, -2)),
    "a scan by no function": ("E223", lambda x: pb.scan(5, x, x)),
    "a checkpoint of no function": ("E223", lambda x: pb.checkpoint(5)(x)),
}
OTHERS: dict[str, tuple[str, Callable[[], Any]]] = {
    "vmap of a number": ("E223", lambda: pb.vmap(5)),
    "vmap along half an axis": ("E360", lambda: pb.vmap(same, in_axes=1.5)(X)),
    "a rule for a number": ("E223", lambda: pb.custom_vjp(5)),
    "gradients by half an argument": ("E360", lambda: pb.grad(same, argnums=1.5)),
    "gradients by text": ("E360", lambda: pb.grad(same, argnums="x")),
    "tangents of a number": ("E201", lambda: pb.jvp(5, (X,), (X,))),
    "jit of a number": ("E223", lambda: pb.jit(5)),
    "a shape that is a number": ("E134", lambda: pb.jit(same, shapes=3)),
    "a shape of text": ("E119", lambda: pb.jit(same, shapes=[("n",)])),
    "options that are none": ("E225", lambda: pb.jit(same, options=5)),
    "threads that are text": ("E523", lambda: pb.Options(threads="2")),
    "no threads": ("E523", lambda: pb.Options(threads=0)),
    "half a thread": ("E523", lambda: pb.Options(threads=1.5)),
    "memory that is text": ("E522", lambda: pb.Options(memory="much")),
    "no memory": ("E522", lambda: pb.Options(memory=0)),
    "a level that is text": ("E225", lambda: pb.Options(debug="2")),
    "a folder that is a number": ("E225", lambda: pb.Options(dump=3)),
    "a cache that is a number": ("E225", lambda: pb.Options(cache=3)),
    "a seed of text": ("E360", lambda: R.manual_seed("a")),
    "half a seed": ("E360", lambda: R.manual_seed(2.5)),
    "a key of text": ("E360", lambda: R.key("a")),
    "keys of text": ("E176", lambda: R.split(R.key(0), "a")),
    "keys below none": ("E176", lambda: R.split(R.key(0), -1)),
    "a number for a key": ("E157", lambda: R.split(3)),
    "a fold by text": ("E360", lambda: R.fold_in(R.key(0), "a")),
    "fewer than no draws": ("E119", lambda: R.uniform((-3,))),
    "half a draw": ("E119", lambda: R.normal((2.5,))),
    "a bound of text": ("E176", lambda: R.uniform((2,), "a", 1.0)),
    "bounds turned": ("E176", lambda: R.uniform((2,), 3.0, 1.0)),
    "a bound that is no number": ("E176", lambda: R.uniform((2,), float("nan"), 1.0)),
    "a spread below none": ("E176", lambda: R.normal((2,), 0.0, -1.0)),
    "a probability of more": ("E176", lambda: R.bernoulli(1.5, (2,))),
    "whole numbers of text": ("E176", lambda: R.integers("a")),
    "whole numbers of half": ("E360", lambda: R.integers(2.5)),
    "a permutation of text": ("E360", lambda: R.permutation("a")),
    "a permutation of half": ("E360", lambda: R.permutation(2.5)),
    "a state of text": ("E142", lambda: R.set_state("a")),
    "a state of two": ("E133", lambda: R.set_state([1, 2])),
    "an extent of text": ("E360", lambda: pb.dim("n", "a", 1)),
    "an extent without a name": ("E123", lambda: pb.dim(3, 1, 3)),
}


def told(code: str, call: Callable[[], Any]) -> None:
    with pytest.raises(PullbackError, match=rf"\[{code}\]") as caught:
        call()
    origin = caught.value.origin
    assert origin is not None and origin.code.co_filename == __file__


@pytest.mark.parametrize("name", CONTROL)
def test_what_control_forms_are_given(name: str) -> None:
    code, call = CONTROL[name]
    told(code, lambda: call(pb.tensor(X)))
    told(code, lambda: pb.jit(call)(X))


@pytest.mark.parametrize("name", OTHERS)
def test_what_others_are_given(name: str) -> None:
    told(*OTHERS[name])


@pytest.mark.parametrize("jit", [False, True])
def test_numbers_and_truths_of_other_kinds_are_taken(jit: bool) -> None:
    def f(x: Any) -> Any:
        thrice = pb.loop(np.int64(3), lambda i, c: c * 2.0, x)
        bounded = pb.while_loop(lambda c: True, lambda c: c + 1.0, thrice, max_steps=np.int32(2))
        return pb.cond(np.bool_(True), lambda: bounded, lambda: x)

    found = (pb.jit(f) if jit else f)(pb.tensor(X))
    assert found.tolist() == [6.0, 14.0]


def test_options_take_text(tmp_path: Any) -> None:
    options = pb.Options(memory="30KB", dump=str(tmp_path), cache=str(tmp_path / "cache"))
    assert options.memory == 30 * 2**10
    assert options.dump == tmp_path
    assert pb.jit(lambda x: x * 2.0, options=options)(X).tolist() == [1.0, 3.0]
    assert any(tmp_path.iterdir())
