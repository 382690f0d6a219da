"""Rules of a user's own: what simplifies, what may not share a kernel, what is replaced.

A rule is a function under a decorator of this module. It does nothing until a program is given it:
`pb.jit(f, rules=[mine])`, or `pb.Options(rules=[mine])`. Rules run after differentiation, so
derivatives go by them too.
"""

from pullback.rules.installed import named, names
from pullback.rules.kinds import fusion, rewrite, simplify
from pullback.rules.rewriting import on_host, product, stored

__all__ = [
    "fusion",
    "named",
    "names",
    "on_host",
    "product",
    "rewrite",
    "simplify",
    "stored",
]


def __dir__() -> list[str]:
    """What is public."""
    return list(__all__)
