"""A fusion rule: an elementwise map of a product runs in a kernel of its own.

The kernels say so: `apart from tanh: a product keeps its registers to itself`.
"""

import pullback as pb
from pullback.ir.graph import Definition, Reduce

REASON = "a product keeps its registers to itself"


def is_product(definition: Definition) -> bool:
    return isinstance(definition.form, Reduce) and len(definition.sources) > 1


@pb.rules.fusion
def products_alone(a: tuple[Definition, ...], b: tuple[Definition, ...]) -> str | None:
    return REASON if any(map(is_product, a)) else None


if __name__ == "__main__":
    layer = pb.jit(lambda x, w: pb.tanh(x @ w), rules=[products_alone])
    layer(pb.ones((64, 32)), pb.ones((32, 48)))
    for kernel in layer.program.kernels:
        print(kernel.name, *kernel.reasons, sep="\n  ")
