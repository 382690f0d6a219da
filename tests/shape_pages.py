"""docs/shapes.md: what every public function declares of its arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import pullback as pb
from pullback.tensor.shaped import declaration
from pullback.tensor.shaped.declaration import Declaration, Limit

HEAD = """# Shapes of arguments

What every function says of its arguments' shapes, once: the text is checked at each call before
anything is built, shown by `help(function)`, and fed with sizes one off by a test. A tensor that
does not fit raises [E175](errors.md#e175-a-tensor-of-another-size-than-declared), a number out of
its limits [E176](errors.md#e176-a-number-out-of-its-limits), a tensor of another kind
[E177](errors.md#e177-a-tensor-of-another-kind-than-declared). Yours may declare theirs:

```python
import pullback as pb
from pullback.errors import ShapeError
from pullback.tensor.shaped import shaped


@shaped("x[*b, n], w[n, m] -> [*b, m]", where="0 <= p < 1")
def project(x: pb.Tensor, w: pb.Tensor, p: float = 0.0) -> pb.Tensor:
    return x @ w


try:
    project(pb.ones((2, 3)), pb.ones((4, 5)))
except ShapeError as problem:
    assert "axis 0 of `w` has 4 elements, n is 3, axis 1 of `x`" in str(problem)
```

"""


def declared(module: Any) -> Iterator[tuple[str, Declaration]]:
    """Public functions of a module that declare something."""
    for name in sorted(getattr(module, "__all__", ())):
        own = getattr(getattr(module, name), "__shapes__", None)
        if own is not None and not isinstance(getattr(module, name), type):
            yield name, own.declared


def methods(module: Any) -> Iterator[tuple[str, Declaration]]:
    """Layers whose own constructor or `forward` declares something."""
    for name in sorted(module.__all__):
        made = getattr(module, name)
        if not isinstance(made, type):
            continue
        for method in ("__init__", "forward"):
            own = getattr(vars(made).get(method), "__shapes__", None)
            if own is not None:
                yield f"{name}.{method}", own.declared


def table(title: str, rows: Iterator[tuple[str, Declaration]]) -> str:
    lines = [
        f"| `{name}` | {_code([d] * bool(d.arguments))} | {_code(d.limits)} |" for name, d in rows
    ]
    if not lines:
        return ""
    return f"## {title}\n\n| | shapes | limits |\n|---|---|---|\n" + "\n".join(lines) + "\n\n"


def _code(parts: Sequence[Declaration | Limit]) -> str:
    return ", ".join(f"`{part.text if isinstance(part, Limit) else part}`" for part in parts)


def optimisers() -> Iterator[tuple[str, Declaration]]:
    """What each optimiser says of its settings."""
    for name in pb.optim.__all__:
        made = getattr(pb.optim, name)
        if isinstance(made, type) and issubclass(made, pb.optim.Optimizer):
            yield name, Declaration((), (), declaration.limits(f"0 <= lr < inf, {made.limits}"))


def notation() -> str:
    """The table of `declaration`'s docstring."""
    text = inspect.getdoc(declaration) or ""
    return "## What may be written\n\n" + text.partition("\n\n")[2] + "\n\n"


def modules() -> list[tuple[str, Any]]:
    """Where public functions of tensors are."""
    listed = [("pb", pb), ("pb.random", pb.random), ("pb.nn.functional", pb.nn.functional)]
    more = ("fft", "linalg", "quantised", "sparse", "special", "stats")
    listed += [(f"pb.{name}", getattr(pb, name)) for name in more]
    return [*listed, ("pb.optim", pb.optim), ("pb.optim.schedules", pb.optim.schedules)]


def document() -> str:
    """The page."""
    parts = [HEAD, notation(), *(table(title, declared(m)) for title, m in modules())]
    parts.append(table("Optimisers", optimisers()))
    parts.append(table("Layers, where they say more than their function", methods(pb.nn)))
    return "".join(parts).rstrip() + "\n"
