"""Rules of a user's own: what simplifies, what may not share a kernel, what is replaced.

A rule is a function under a decorator of this module. It does nothing until a program is given it:
`pb.jit(f, rules=[mine])`, or `pb.Options(rules=[mine])`. Rules run after differentiation, so
derivatives go by them too.
"""

from pullback.rules.kinds import FusionRule, RewriteRule, SimplifyRule, fusion, rewrite, simplify
from pullback.rules.named import named, names
from pullback.rules.rewriting import OnHost, PlainProduct, on_host, product, stored

__all__ = [
    "FusionRule",
    "OnHost",
    "PlainProduct",
    "RewriteRule",
    "SimplifyRule",
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
