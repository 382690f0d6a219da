"""Arithmetic of one floating type, in lanes or not; functions of the C library lane by lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.backends.llvm.text import BITS, Builder, Val, const


class Floats:
    """Arithmetic on values of one floating type; Python numbers become literals."""

    def __init__(self, builder: Builder, like: Val) -> None:
        self.b = builder
        self.kind = like.kind
        self.lanes = like.lanes
        self.integer = "i32" if like.kind == "float" else "i64"

    def real(self, a: Val | float) -> Val:
        return a if isinstance(a, Val) else const(a, self.kind, self.lanes)

    def add(self, a: Val | float, b: Val | float) -> Val:
        return self.b.binary("fadd", self.real(a), self.real(b))

    def sub(self, a: Val | float, b: Val | float) -> Val:
        return self.b.binary("fsub", self.real(a), self.real(b))

    def mul(self, a: Val | float, b: Val | float) -> Val:
        return self.b.binary("fmul", self.real(a), self.real(b))

    def div(self, a: Val | float, b: Val | float) -> Val:
        return self.b.binary("fdiv", self.real(a), self.real(b))

    def fma(self, a: Val | float, b: Val | float, c: Val | float) -> Val:
        """``a * b + c``, rounded once where the processor does that."""
        return self.b.multiply_add(self.real(a), self.real(b), self.real(c))

    def exact(self, a: Val | float, b: Val | float, c: Val | float) -> Val:
        """``a * b + c``, rounded once; by the C library where the processor does not."""
        return self.b.intrinsic("fma", self.real(a), self.real(b), self.real(c))

    def abs(self, a: Val) -> Val:
        return self.b.intrinsic("fabs", a)

    def neg(self, a: Val) -> Val:
        return self.b.value(f"fneg {a.typed}", a.kind, a.lanes)

    def copysign(self, a: Val, sign: Val) -> Val:
        return self.b.intrinsic("copysign", a, sign)

    def is_(self, op: str, a: Val, b: Val | float) -> Val:
        return self.b.compare(op, a, self.real(b))

    def select(self, condition: Val, yes: Val | float, no: Val | float) -> Val:
        return self.b.select(condition, self.real(yes), self.real(no))

    def at_most(self, a: Val, limit: float) -> Val:
        """``min(a, limit)``; NaN stays."""
        return self.select(self.is_("ogt", a, limit), limit, a)

    def at_least(self, a: Val, limit: float) -> Val:
        """``max(a, limit)``; NaN stays."""
        return self.select(self.is_("olt", a, limit), limit, a)

    def bits(self, a: Val) -> Val:
        return self.b.convert("bitcast", a, self.integer)

    def unbits(self, a: Val) -> Val:
        return self.b.convert("bitcast", a, self.kind)

    def whole(self, op: str, a: Val, b: Val | int) -> Val:
        """Integer arithmetic."""
        other = b if isinstance(b, Val) else const(b, a.kind, a.lanes)
        return self.b.binary(op, a, other)

    def poly(self, x: Val, coefficients: Sequence[float]) -> Val:
        """Horner's rule, highest power first."""
        value = self.real(coefficients[0])
        for c in coefficients[1:]:
            value = self.fma(value, x, c)
        return value

    def power(self, n: Val) -> Val:
        """``2 ** n`` of an integer well inside the exponent's range."""
        bias, shift = (127, 23) if self.kind == "float" else (1023, 52)
        return self.unbits(self.whole("shl", self.whole("add", n, bias), shift))

    def scale(self, p: Val, n: Val) -> Val:
        """``p * 2**n`` of an integer `n`, in two steps: subnormals and infinity are right."""
        half = self.whole("ashr", n, 1)
        rest = self.whole("sub", n, half)
        return self.mul(self.mul(p, self.power(half)), self.power(rest))

    @property
    def powers(self) -> bool:
        """Whether `scalef` is one instruction."""
        target = self.b.module.target
        return target.powers and self.lanes * BITS[self.kind] == 8 * target.vector

    def scalef(self, p: Val, n: Val) -> Val:
        """``p * 2**n`` of a whole number `n` by the AVX-512 instruction."""
        wide, mask = p.type, f"i{p.lanes}"
        name = f"llvm.x86.avx512.mask.scalef.p{'s' if p.kind == 'float' else 'd'}.512"
        self.b.declare(name, [wide, wide, wide, mask, "i32"], wide)
        args = f"{p.typed}, {n.typed}, {wide} zeroinitializer, {mask} -1, i32 4"
        return self.b.value(f"call {wide} @{name}({args})", p.kind, p.lanes)


def where_rare(b: Builder, rare: Val, fast: Val, slow: Callable[[], Val]) -> Val:
    """`fast`; where any lane is `rare`, those lanes by `slow`, which else is not run."""
    before, there, join = b.block, b.name("slow"), b.name("join")
    b.branch(b.any(rare), there, join)
    b.label(there)
    exact = b.select(rare, slow(), fast)
    b.jump(join)
    b.label(join)
    return b.merge(fast, before, exact, there)


def by_lane(b: Builder, function: str, *args: Val) -> Val:
    """A function of the C library on each lane."""
    x = args[0]
    scalar = x.kind
    b.declare(function, [scalar] * len(args), scalar)
    if not x.lanes:
        given = ", ".join(a.typed for a in args)
        return b.value(f"call {scalar} @{function}({given})", scalar)
    name = f"lanes.{function}.{x.lanes}"
    places = range(len(args))
    b.module.helpers[name] = LANES.format(
        name=name,
        wide=x.type,
        scalar=scalar,
        function=function,
        lanes=x.lanes,
        given=", ".join(f"{x.type} %x{n}" for n in places),
        stores="\n".join(KEPT.format(n=n, wide=x.type) for n in places),
        loads="\n".join(TAKEN.format(n=n, scalar=scalar) for n in places),
        args=", ".join(f"{scalar} %v{n}" for n in places),
    )
    passed = ", ".join(a.typed for a in args)
    return b.value(f"call {x.type} @{name}({passed})", scalar, x.lanes)


KEPT = """  %a{n} = alloca {wide}
  store {wide} %x{n}, ptr %a{n}"""
TAKEN = """  %p{n} = getelementptr {scalar}, ptr %a{n}, i64 %i
  %v{n} = load {scalar}, ptr %p{n}"""
LANES = """define internal {wide} @{name}({given}) noinline nounwind {{
entry:
{stores}
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
{loads}
  %r = call {scalar} @{function}({args})
  store {scalar} %r, ptr %p0
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {lanes}
  br i1 %more, label %loop, label %done
done:
  %y = load {wide}, ptr %a0
  ret {wide} %y
}}"""
