"""The examples that train reach what PyTorch reaches from the same weights, on the same batches."""

from __future__ import annotations

import argparse
import inspect
import itertools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pullback as pb
from example_support import example, hand_over, one_thread, train_torch, twin

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

FIRST = 10  # steps before rounding has grown through batch norms and maxima
NETS = {"digits_mlp": 150, "digits_convnet": 150, "digits_resnet": 60, "digits_vit": 100}
FLOOR = {"digits_mlp": 0.94, "digits_convnet": 0.92, "digits_resnet": 0.9, "digits_vit": 0.88}
# Images of 360. Nets without batch norm agree on all; a flipped sign before a batch norm of few
# pixels grows: PyTorch in float32 and in float64 differ by as much.
MARGIN = {"digits_mlp": 1, "digits_convnet": 1, "digits_resnet": 6, "digits_vit": 1}


@pytest.fixture(autouse=True, scope="module")
def quiet() -> Iterator[None]:
    with one_thread(torch):
        yield


def beside(losses: list[float], exact: list[float]) -> None:
    """The first losses are those of PyTorch in float64, to float32's rounding."""
    np.testing.assert_allclose(losses[:FIRST], exact[:FIRST], rtol=0, atol=3e-6)


def exactly(
    module: ModuleType, made: Any, model: Any, loss_of: Callable[..., Any], batches: Iterator[Any]
) -> list[float]:
    """The first losses of the same net in float64."""
    hand_over(model, made, torch)
    made.double()
    wide = (tuple(_double(a) for a in batch) for batch in batches)
    return train_torch(torch, module.optimizer(made), lambda *b: loss_of(made, *b), wide, FIRST)


def _double(array: Any) -> Any:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def cross_entropy(model: Any, pixels: Any, digits: Any) -> Any:
    return torch.nn.functional.cross_entropy(model(pixels), digits)


@pytest.mark.parametrize("name", NETS)
def test_digits(name: str) -> None:
    digits = example("digits.py", "digits")
    own, theirs = example(f"{name}.py"), twin(f"{name}.py", torch)
    known, unseen = digits.split()
    pb.random.manual_seed(2)
    model, other = own.net(), theirs.net()
    exact = exactly(theirs, theirs.net(), model, cross_entropy, digits.batches(known))
    hand_over(model, other, torch)
    losses = digits.train(model, own.optimizer(model), known, NETS[name])
    beside(losses, exact)
    opt = theirs.optimizer(other)
    loss_of = lambda *batch: cross_entropy(other, *batch)
    train_torch(torch, opt, loss_of, digits.batches(known), NETS[name])
    other.eval()
    scores = other(torch.from_numpy(unseen.pixels)).detach().numpy()
    found = digits.accuracy(model, unseen)
    wanted = (scores.argmax(1) == unseen.digits).mean()
    assert found > FLOOR[name]
    assert abs(found - wanted) <= (MARGIN[name] + 0.5) / len(scores)
    # Steps grow every rounding, so late losses are held to float64 from the same late weights.
    exact = exactly(theirs, theirs.net(), model.train(), cross_entropy, digits.batches(known))
    beside(digits.train(model, own.optimizer(model), known, FIRST), exact)
    assert np.mean(losses[-20:]) < 0.5 * np.mean(losses[:FIRST])


def test_gpt(capsys: pytest.CaptureFixture[str]) -> None:
    own, theirs = example("gpt.py"), twin("gpt.py", torch)
    text = own.Text.of(inspect.getsource(argparse))
    pb.random.manual_seed(0)
    model, other = own.GPT(len(text.known)), theirs.GPT(len(text.known))
    exact = exactly(theirs, theirs.GPT(len(text.known)), model, theirs.loss_of, text.batches())
    hand_over(model, other, torch)
    losses = own.train(model, own.optimizer(model), text, 60)
    beside(losses, exact)
    loss_of = lambda *batch: theirs.loss_of(other, *batch)
    ends = train_torch(torch, theirs.optimizer(other), loss_of, text.batches(), 60)
    assert abs(losses[-1] - ends[-1]) < 1e-3
    assert losses[-1] < 2.5
    assert len(own.write(model, text, "def ", 5)) == 9


def test_regression() -> None:
    own, theirs = example("regression.py"), twin("regression.py", torch)
    known, unseen = own.split()
    pb.random.manual_seed(0)
    model, other = own.Net(), theirs.Net()
    batches = itertools.repeat((known.measured, known.outcome))
    exact = exactly(theirs, theirs.Net(), model, theirs.loss_of, batches)
    hand_over(model, other, torch)
    losses = own.train(model, own.optimizer(model), known, own.STEPS)
    beside(losses, exact)
    loss_of = lambda *batch: theirs.loss_of(other, *batch)
    train_torch(torch, theirs.optimizer(other), loss_of, batches, own.STEPS)
    mean, _ = other(torch.from_numpy(unseen.measured))
    away = unseen.outcome - mean.detach().numpy()
    found, share = own.explained(model, unseen)
    assert abs(found - (1 - (away**2).sum() / (unseen.outcome**2).sum())) < 1e-4
    assert found > 0.48
    assert 0.8 < share < 0.95


@pytest.mark.parametrize("name", ["digits_mlp", "regression", "gpt"])
def test_programs_say_what_came_of_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    module = example(f"{name}.py")
    module.STEPS = 20
    assert np.isfinite(module.main())
    assert "20 steps" in capsys.readouterr().out
