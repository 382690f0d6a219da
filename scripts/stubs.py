#!/usr/bin/env python
"""Writes the stubs of `pb`, `pb.nn`, `pb.special` and the array API for type checkers and editors.

A stub says what the source cannot in one line: that `pb.exp` of a tensor is a tensor and of a
scalar inside a definition a scalar, and what a layer that is made of a function is told.

    python scripts/stubs.py            writes them
    python scripts/stubs.py --check    ends with 1 where one is not as it would be written
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pullback as pb
from pullback import array_api, nn, special
from pullback.nn.base.layer import Layer

ROOT = Path(__file__).parent.parent
HEAD = '"""Written by scripts/stubs.py."""\n'
MODULES = (pb, array_api, nn, special)
KNOWN = {  # where what annotations name is defined
    "Any": "typing",
    "Axes": "pullback.tensor.values.reduction",
    "Callable": "collections.abc",
    "Extent": "pullback.ir.expr",
    "Ints": "pullback.nn.base.space",
    "Layer": "pullback.nn.base.layer",
    "ScalarHandle": "pullback.tensor.face.handles",
    "Sequence": "collections.abc",
    "Tensor": "pullback.tensor.face.tensor",
    "overload": "typing",
}
BUILTIN = re.compile(r"\bbool\b")  # which `pb.bool` hides
SEVERAL = "return_indices"  # a layer told this gives two tensors


def scalar_too(value: Any) -> bool:
    """Whether a function takes scalars of definitions too: tensors or scalars give the same."""
    if not inspect.isfunction(value) or not value.__module__.startswith("pullback."):
        return False
    made = inspect.signature(value)
    first = next(iter(made.parameters.values()), None)
    elementwise = value.__module__.startswith(("pullback.tensor.", "pullback.special."))
    named = first is not None and first.name in ("x", "x1", "a", "n", "p", "condition")
    return elementwise and named and made.return_annotation == "Any"


def listed(parameters: list[inspect.Parameter]) -> str:
    """Parameters as in source; defaults that are no literals are an ellipsis."""
    shown = []
    for p in parameters:
        literal = p.default is None or isinstance(p.default, bool | int | float | str | tuple)
        default = p.empty if p.default is p.empty else p.default if literal else ...
        shown.append(p.replace(default=default))
    text = str(inspect.Signature(shown)).replace("Ellipsis", "...")
    for p in shown:
        text = text.replace(f"'{p.annotation}'", str(p.annotation))
    return text[1:-1]


def overloads(name: str, value: Any) -> Iterator[str]:
    """One for each tensor argument that may be a scalar instead, and one of tensors."""
    parameters = list(inspect.signature(value).parameters.values())
    tensors = [p.name for p in parameters if p.name in ("x", "x1", "x2", "a", "b", "y", "p", "q")]
    required = [n for n in tensors if inspect.signature(value).parameters[n].annotation == "Any"]
    for scalar in (*required, None):
        own = [p.replace(annotation="ScalarHandle") if p.name == scalar else p for p in parameters]
        result = "Tensor" if scalar is None else "ScalarHandle"
        yield f"@overload\ndef {name}({listed(_ordered(own, scalar))}) -> {result}: ...\n"


def _ordered(parameters: list[inspect.Parameter], scalar: str | None) -> list[inspect.Parameter]:
    """A scalar that is given has no default, and so have those before it."""
    names = [p.name for p in parameters]
    last = names.index(scalar) if scalar in names else -1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [
        p.replace(default=p.empty) if n <= last and p.kind in kinds else p
        for n, p in enumerate(parameters)
    ]


def layer(name: str, value: type[Layer]) -> str:
    """A class made of a function, with what it is told and what it is called with."""
    settings = list(value.settings.parameters.values())
    told = {p.name for p in settings} | {"training"}
    function: Callable[..., Any] = value.function
    inputs = [p for p in inspect.signature(function).parameters.values() if p.name not in told]
    result = "Any" if any(p.name == SEVERAL for p in settings) else "Tensor"
    made = f", {listed(settings)}" if settings else ""
    called = f", {listed(inputs)}" if inputs else ""
    return (
        f"class {name}(Layer):\n"
        f"    def __init__(self{made}) -> None: ...\n"
        f"    def forward(self{called}) -> {result}: ...\n"
    )


EXTRAS = ("onnx", "torch", "triton")  # what they need may not be installed


def written(module: ModuleType) -> str:
    """The text of a stub, as ruff formats it."""
    imports, body = [], ["__all__: list[str]\n"]
    for name in (
        *module.__all__,
        *(
            (
                *EXTRAS,
                "fft",
                "gguf",
                "linalg",
                "models",
                "nn",
                "optim",
                "quantised",
                "sparse",
                "winograd",
            )
            * (module is pb)
        ),
    ):
        if name == "__array_api_version__":
            body.append(f"{name}: str\n")
            continue
        value = getattr(module, name) if name not in EXTRAS else None
        if isinstance(value, float) or name == "newaxis":
            body.append(f"{name}: {'None' if value is None else 'float'}\n")
        elif isinstance(value, type) and issubclass(value, Layer) and value is not Layer:
            body.append(layer(name, value))
        elif scalar_too(value):
            body += overloads(name, value)
        else:
            imports.append(where(module, name, value))
    text = "\n".join(body)
    if "bool" in module.__all__:
        text = BUILTIN.sub("builtins.bool", text)
        imports.append("import builtins\n")
    named = [n for n in KNOWN if n in text and f" as {n}\n" not in "".join(imports)]
    imports += [f"from {KNOWN[n]} import {n}\n" for n in named]
    return formatted("".join([HEAD, *imports, "\n", text]))


def where(module: ModuleType, name: str, value: Any) -> str:
    """The import of a name from where it is defined."""
    if inspect.ismodule(value) or (value is None and name in EXTRAS):
        home = "pullback" if name in EXTRAS else value.__name__.rpartition(".")[0]
        return f"from {home} import {name} as {name}\n"
    home = getattr(value, "__module__", "")
    own = getattr(value, "__name__", name)
    if isinstance(value, pb.DType):
        home, own = "pullback.ir.dtype", str(value) + "_" * (str(value) == "bool")
    elif not hasattr(value, "__name__"):
        home, own = "pullback.tensor.complex.functions", name
    return f"from {home} import {own} as {name}\n"


def formatted(text: str) -> str:
    for command in (["check", "--fix", "--select", "I,F401"], ["format"]):
        made = subprocess.run(
            ["ruff", *command, "-q", "--stdin-filename", "x.pyi", "-"],
            input=text, capture_output=True, text=True, cwd=ROOT, check=True,
        )  # fmt: skip
        text = made.stdout
    return text


def main() -> int:
    stale = []
    for module in MODULES:
        path = Path(str(module.__file__)).with_suffix(".pyi")
        text = written(module)
        if not path.exists() or path.read_text() != text:
            stale.append(path)
            if "--check" not in sys.argv:
                path.write_text(text)
    for path in stale:
        print(f"{path.relative_to(ROOT)}: {'stale' if '--check' in sys.argv else 'written'}")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
