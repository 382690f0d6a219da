"""What is public: `dir` shows it and nothing else, `help` is complete, its examples run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import array_api as xp
from pullback import nn, optim

F = nn.functional
NAMESPACE = {"pb": pb, "np": np, "nn": nn, "F": F, "xp": xp, "optim": optim}
MODULES = [
    "pullback",
    "pullback.array_api",
    "pullback.array_api.fft",
    "pullback.array_api.linalg",
    "pullback.distributed",
    "pullback.fft",
    "pullback.linalg",
    "pullback.models",
    "pullback.nn",
    "pullback.nn.functional",
    "pullback.nn.init",
    "pullback.nn.utils",
    "pullback.optim",
    "pullback.quantised",
    "pullback.optim.schedules",
    "pullback.special",
    "pullback.tree",
    "pullback.random",
    "pullback.rules",
    "pullback.sparse",
    "pullback.torch",
    "pullback.bridge.jax",
    "pullback.onnx",
    "pullback.winograd",
]
LAZY = {
    "array_api",
    "distributed",
    "fft",
    "gguf",
    "linalg",
    "models",
    "nn",
    "onnx",
    "optim",
    "quantised",
    "rules",
    "sparse",
    "torch",
    "jax",
    "tree",
    "triton",
    "winograd",
}  # of `pb`


def public(name: str) -> ModuleType:
    extra = name.rpartition(".")[2]
    if extra in ("jax", "onnx", "torch") and find_spec(extra) is None:
        pytest.skip(f"{extra} is not installed")
    return importlib.import_module(name)


def members(name: str) -> Iterator[tuple[str, Any]]:
    """The functions and classes of a module."""
    module = public(name)
    for own in module.__all__:
        value = getattr(module, own)
        if callable(value):
            yield own, value


@pytest.mark.parametrize("name", MODULES)
def test_dir_shows_what_is_public_and_nothing_else(name: str) -> None:
    module = public(name)
    lazy = LAZY if module is pb else set()
    assert set(dir(module)) == set(module.__all__) | lazy
    assert len(module.__all__) == len(set(module.__all__))
    hidden = [n for n in module.__all__ if n.startswith("_") and not n.startswith("__array")]
    assert not hidden


@pytest.mark.parametrize("name", MODULES)
def test_every_signature_is_whole(name: str) -> None:
    """It is there, without `self`; no argument is said to be just anything to pass on."""
    for own, value in members(name):
        parameters = inspect.signature(value).parameters
        assert "self" not in parameters, own
        kinds = {p.kind for p in parameters.values()}
        passed_on = {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds
        assert not passed_on or own in ("Layer",), f"{own}{inspect.signature(value)}"


def parts(value: Any) -> list[str]:
    return inspect.cleandoc(value.__doc__ or "").split("\n\n")


@pytest.mark.parametrize("name", MODULES)
def test_every_docstring_tells_and_has_an_example(name: str) -> None:
    for own, value in members(name):
        texts = parts(value)
        assert texts[0].strip() and not texts[0].startswith("Example:"), f"{own}: what it is"
        examples = [t for t in texts if t.startswith("Example:")]
        assert len(examples) == 1 and ">>> " in examples[0], f"{own}: one example that runs"


@pytest.mark.parametrize("name", MODULES)
def test_methods_of_public_classes_tell_what_they_do(name: str) -> None:
    for own, value in members(name):
        for method in dir(value) if inspect.isclass(value) else ():
            found = inspect.getattr_static(value, method)
            found = found.fget if isinstance(found, property) else found
            if inspect.isfunction(found) and method[0] != "_":
                told = inspect.getdoc(getattr(value, method)) or found.__doc__
                assert told, f"{own}.{method}"


@pytest.mark.parametrize("name", MODULES)
def test_what_is_declared_is_told(name: str) -> None:
    for own, value in members(name):
        declared = getattr(value, "__shapes__", None)
        if declared is not None:
            told = next(t for t in parts(value) if t.startswith(("Shapes:", "Limits:")))
            assert not declared.declared.arguments or str(declared.declared) in told, own
            assert all(limit.text in told for limit in declared.declared.limits), own


def test_help_of_a_loss() -> None:
    text = inspect.getdoc(nn.MSELoss) or ""
    assert "(x - t)^2" in text and "Shapes:\n    input[" in text and "nn.MSELoss()(" in text
    assert "F.mse_loss(" not in text
    expected = "(reduction: 'str' = 'mean', weight: 'Tensor | None' = None)"
    assert str(inspect.signature(nn.MSELoss)) == expected
    assert inspect.isfunction(F.conv2d) and F.conv2d.__name__ == "conv2d"


class Near(doctest.OutputChecker):
    """Numbers as near as the last digits that a kernel may differ in; white space is one."""

    NUMBER = re.compile(r"(?<![\w])-?\d+\.\d*(?:e[+-]?\d+)?")

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        pair = [re.sub(r"\s+", "", text) for text in (want, got)]
        wanted, given = ([float(n) for n in self.NUMBER.findall(text)] for text in pair)
        shapes = [self.NUMBER.sub("#", text) for text in pair]
        same = shapes[0] == shapes[1] and len(wanted) == len(given)
        return same and np.allclose(wanted, given, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the interpreter, which takes no time to compile; docs/ runs compiled code."""
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")
    monkeypatch.chdir(tmp_path)
    parser = doctest.DocTestParser()
    runner = doctest.DocTestRunner(checker=Near(), verbose=False)
    failures: list[str] = []
    seen = set()
    for own, value in members(name):
        text = inspect.cleandoc(value.__doc__ or "")
        if text in seen:
            continue
        seen.add(text)
        example = parser.get_doctest(text, dict(NAMESPACE), f"{name}.{own}", None, None)
        runner.run(example, out=failures.append)
    assert not runner.failures, "".join(failures)


def test_stubs_are_as_they_would_be_written() -> None:
    pytest.importorskip("ruff", reason="it formats them")
    script = Path(__file__).parent.parent / "scripts" / "stubs.py"
    made = subprocess.run(
        [sys.executable, str(script), "--check"], capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, f"{made.stdout}{made.stderr}run scripts/stubs.py"


def test_numbers_are_near_and_words_are_the_same() -> None:
    check = Near().check_output
    assert check("Tensor([1., 2.718282])", "Tensor([1.0, 2.7182817])", 0)
    assert not check("Tensor([1., 2.71])", "Tensor([1., 2.72])", 0)
    assert not check("(2, 3)", "(2, 4)", 0)
    assert not check("Tensor([1.])", "Tensor([1., 1.])", 0)
