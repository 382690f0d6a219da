"""A simplification in five lines: ``log(exp(x)) -> x``, which is exact but where exp overflows."""

import pullback as pb
from pullback.ir import expr as E


@pb.rules.simplify(E.Log)
def log_of_exp(e: E.Log) -> E.Expr | None:
    return e.value.value if isinstance(e.value, E.Exp) else None


if __name__ == "__main__":
    plain = pb.jit(lambda x: pb.log(pb.exp(x)))
    simpler = pb.jit(lambda x: pb.log(pb.exp(x)), rules=[log_of_exp])
    print(plain(pb.tensor([1.0, 100.0])), simpler(pb.tensor([1.0, 100.0])))
