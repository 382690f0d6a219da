"""Every operation of TTIR with its derivative, or the reason why it has none: a table."""

from __future__ import annotations

from collections.abc import Iterator

from pullback.triton import words

_HEAD = "| operation | values | derivative |\n|---|---|---|\n"


def table() -> str:
    """Markdown, written out of what the derivation itself reads."""
    return _HEAD + "".join(sorted(_rows()))


def _rows() -> Iterator[str]:
    for name, text in words.ELEMENTWISE.items():
        formulas = words.DERIVATIVES.get(name)
        if formulas is None:
            yield f"| `{name}` | `{_shown(text)}` | none: of whole numbers |\n"
        else:
            rule = "; ".join(_rule(f) for f in formulas)
            yield f"| `{name}` | `{_shown(text)}` | {rule} |\n"
    for name in words.UNSIGNED.keys() - words.ELEMENTWISE.keys():
        text = _shown(words.UNSIGNED[name])
        yield f"| `{name}` | `{text}`, unsigned | none: of whole numbers |\n"
    for name in (*words.CASTS, *words.UNSIGNED_CASTS):
        if name not in words.STRUCTURED:
            yield f"| `{name}` | yes | none: to or from whole numbers |\n"
    for name, text in words.STRUCTURED.items():
        yield f"| `{name}` | yes | {text} |\n"
    for name, reason in words.REASONS.items():
        yield f"| `{name}` | refused | {reason} |\n"


def _shown(text: str) -> str:
    return text.format("x", "z", "w").replace("|", "\\|")


def _rule(formula: str) -> str:
    text = formula.format(g="g", x="x", y="y", z="z", w="w").replace("|", "\\|")
    return f"`{text}`" if text else "none"
