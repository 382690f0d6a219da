"""One table of element-wise operations, shared by tensors and by the scalars inside a definition.

A `Rule` is a scalar builder and how its operands' types meet.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pullback.errors import DTypeError
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import DType
from pullback.ir.expr import Expr
from pullback.tensor.values.elementwise import Operand, Scalar, as_float, common_dtype, numeric
from pullback.tensor.values.functions import (
    TESTS,
    UNARY,
    UNARY_ANY,
    constant_power,
    copysign,
    fmod,
    invert,
    log_add,
    shift_left,
    shift_right,
)

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Rule:
    """`function` over operands promoted as `kind` says: any, number, integer, bits, .."""

    name: str
    function: Callable[..., Expr]
    kind: str = "any"

    def dtype(self, operands: Sequence[Operand | Expr]) -> DType:
        """The type that operands are cast to. Raises: DTypeError where they do not suit."""
        if self.kind in ("number", "integer"):
            kind = numeric(self.name, operands)
            if self.kind == "integer" and kind.is_float:
                raise DTypeError(f"{self.name} is not defined for {kind}", help="it takes integers")
            return kind
        kind = common_dtype(operands)
        if self.kind == "float":
            return as_float(kind)
        if self.kind == "bits" and kind.is_float:
            raise DTypeError(
                f"{self.name} is not defined for {kind}", help="it takes integers or booleans"
            )
        return kind

    def body(self, *args: Expr) -> Expr:
        """The scalar expression over operands of one type."""
        if self.kind == "truth":
            return self.function(*(F.truth(a) for a in args))
        return self.function(*args)


def _greater(a: Expr, b: Expr) -> Expr:
    return E.Less(b, a)


def _greater_equal(a: Expr, b: Expr) -> Expr:
    return F.less_equal(b, a)


def _not_equal(a: Expr, b: Expr) -> Expr:
    return E.logical_not(E.Equal(a, b))


def _positive(a: Expr) -> Expr:
    return a


_TABLE: tuple[Rule, ...] = (
    Rule("add", E.Add, "number"),
    Rule("subtract", E.subtract, "number"),
    Rule("multiply", E.Mul, "number"),
    Rule("divide", E.Div, "float"),
    Rule("floor_divide", E.FloorDiv, "number"),
    Rule("remainder", E.Mod, "number"),
    Rule("fmod", fmod, "number"),
    Rule("copysign", copysign, "float"),
    Rule("pow", F.power, "number"),
    Rule("negative", E.negate, "number"),
    Rule("positive", _positive, "number"),
    Rule("maximum", E.maximum, "number"),
    Rule("minimum", E.minimum, "number"),
    Rule("logaddexp", log_add, "float"),
    Rule("atan2", F.atan2, "float"),
    Rule("less", E.Less),
    Rule("less_equal", F.less_equal),
    Rule("greater", _greater),
    Rule("greater_equal", _greater_equal),
    Rule("equal", E.Equal),
    Rule("not_equal", _not_equal),
    Rule("bitwise_and", E.And, "bits"),
    Rule("bitwise_or", E.Or, "bits"),
    Rule("bitwise_xor", E.Xor, "bits"),
    Rule("bitwise_invert", invert, "bits"),
    Rule("bitwise_left_shift", shift_left, "integer"),
    Rule("bitwise_right_shift", shift_right, "integer"),
    Rule("logical_and", E.And, "truth"),
    Rule("logical_or", E.Or, "truth"),
    Rule("logical_xor", E.Xor, "truth"),
    Rule("logical_not", E.logical_not, "truth"),
    *(Rule(name, f, "float") for name, f in UNARY.items()),
    *(Rule(name, f, "number") for name, f in UNARY_ANY.items()),
    *(Rule(name, f) for name, f in TESTS.items()),
)
RULES: dict[str, Rule] = {rule.name: rule for rule in _TABLE}


def power_by(exponent: Scalar, base: DType) -> Rule:
    """``x ** exponent`` of a Python number: exact where it is a whole number or a half.

    Raises: DTypeError for a negative power of integers.
    """
    if isinstance(exponent, float) or base.is_float:
        number = float(exponent)
        return Rule("pow", lambda x: constant_power(x, number), "float")
    if exponent < 0:
        raise DTypeError(
            "integers to a negative power are not integers",
            help="cast the base to a float first",
            code="E158",
        )
    return Rule("pow", lambda x: F.integer_power(x, int(exponent)), "number")


_REFLECTED = {
    "add": "__radd__", "subtract": "__rsub__", "multiply": "__rmul__", "divide": "__rtruediv__",
    "floor_divide": "__rfloordiv__", "remainder": "__rmod__", "pow": "__rpow__",
    "bitwise_and": "__rand__", "bitwise_or": "__ror__", "bitwise_xor": "__rxor__",
    "bitwise_left_shift": "__rlshift__", "bitwise_right_shift": "__rrshift__",
    "less": "__gt__", "less_equal": "__ge__", "greater": "__lt__", "greater_equal": "__le__",
    "matmul": "__rmatmul__",
}  # fmt: skip


def left_to(name: str, one: Any, operands: Sequence[Any]) -> Any:
    """NotImplemented where Python, or the class of the other operand of `one`, may know better.

    That is ``x == None``, which is False; and classes that are not Python's own with a method for
    the operation. Raises: DTypeError elsewhere.
    """
    first = operands[0] is one
    other = type(operands[-1] if first else operands[0])
    if name in ("equal", "not_equal"):
        return NotImplemented
    if name == "multiply" and other in SEQUENCES and getattr(one, "shape", None) == ():
        return NotImplemented  # so many times the list, where `one` is an integer
    foreign = other.__module__ not in ("builtins", "numpy")
    reflected = _REFLECTED.get(name, "__eq__")
    if (
        first
        and foreign
        and getattr(other, reflected, None) is not getattr(object, reflected, None)
    ):
        return NotImplemented
    own = type(one).__name__
    raise DTypeError(
        f"{name} of a {_SHOWN.get(own, own)} and a {_SHOWN.get(other.__name__, other.__name__)}",
        code="E143",
    )


SEQUENCES = (list, tuple, str, bytes)
_SHOWN = {"ScalarHandle": "scalar expression", "ndarray": "NumPy array"}


class Arithmetic(Generic[R]):
    """Python's operators. `_apply` gives what `left_to` says for an operand it does not know."""

    __slots__ = ()

    @abstractmethod
    def _apply(self, name: str, *operands: Any) -> R:
        """The operation `name` over operands."""

    def __add__(self, other: Any) -> R:
        return self._apply("add", self, other)

    def __radd__(self, other: Any) -> R:
        return self._apply("add", other, self)

    def __sub__(self, other: Any) -> R:
        return self._apply("subtract", self, other)

    def __rsub__(self, other: Any) -> R:
        return self._apply("subtract", other, self)

    def __mul__(self, other: Any) -> R:
        return self._apply("multiply", self, other)

    def __rmul__(self, other: Any) -> R:
        return self._apply("multiply", other, self)

    def __truediv__(self, other: Any) -> R:
        return self._apply("divide", self, other)

    def __rtruediv__(self, other: Any) -> R:
        return self._apply("divide", other, self)

    def __floordiv__(self, other: Any) -> R:
        return self._apply("floor_divide", self, other)

    def __rfloordiv__(self, other: Any) -> R:
        return self._apply("floor_divide", other, self)

    def __mod__(self, other: Any) -> R:
        return self._apply("remainder", self, other)

    def __rmod__(self, other: Any) -> R:
        return self._apply("remainder", other, self)

    def __pow__(self, other: Any) -> R:
        return self._apply("pow", self, other)

    def __rpow__(self, other: Any) -> R:
        return self._apply("pow", other, self)

    def __and__(self, other: Any) -> R:
        return self._apply("bitwise_and", self, other)

    def __rand__(self, other: Any) -> R:
        return self._apply("bitwise_and", other, self)

    def __or__(self, other: Any) -> R:
        return self._apply("bitwise_or", self, other)

    def __ror__(self, other: Any) -> R:
        return self._apply("bitwise_or", other, self)

    def __xor__(self, other: Any) -> R:
        return self._apply("bitwise_xor", self, other)

    def __rxor__(self, other: Any) -> R:
        return self._apply("bitwise_xor", other, self)

    def __lshift__(self, other: Any) -> R:
        return self._apply("bitwise_left_shift", self, other)

    def __rshift__(self, other: Any) -> R:
        return self._apply("bitwise_right_shift", self, other)

    def __rlshift__(self, other: Any) -> R:
        return self._apply("bitwise_left_shift", other, self)

    def __rrshift__(self, other: Any) -> R:
        return self._apply("bitwise_right_shift", other, self)

    def __lt__(self, other: Any) -> R:
        return self._apply("less", self, other)

    def __le__(self, other: Any) -> R:
        return self._apply("less_equal", self, other)

    def __gt__(self, other: Any) -> R:
        return self._apply("greater", self, other)

    def __ge__(self, other: Any) -> R:
        return self._apply("greater_equal", self, other)

    def __eq__(self, other: Any) -> R:  # type: ignore[override]  # element-wise, as the array API
        return self._apply("equal", self, other)

    def __ne__(self, other: Any) -> R:  # type: ignore[override]  # element-wise, as the array API
        return self._apply("not_equal", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> R:
        return self._apply("negative", self)

    def __pos__(self) -> R:
        return self._apply("positive", self)

    def __abs__(self) -> R:
        return self._apply("abs", self)

    def __invert__(self) -> R:
        return self._apply("bitwise_invert", self)
