"""Products, powers and parts of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.errors import ArgumentError, ShapeError
from pullback.linalg.factors import inv
from pullback.linalg.operation import Found, Operation, Tensors, back, matrix, size, written
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.forms.control import while_loop
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.creation import eye, full
from pullback.tensor.shaped import shaped
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.precise import in_float32
from pullback.tensor.values.views import normal_axis


@shaped("x1[*b], x2[*b] -> [*b]")
@in_float32
def cross(x1: Tensor, x2: Tensor, *, axis: int = -1) -> Tensor:
    """``out[i] = x1[i + 1] x2[i + 2] - x1[i + 2] x2[i + 1]``, i modulo 3; the rest broadcasts.

    Raises: ShapeError where either has not 3 elements along `axis`, counted in each.

    Example:
        >>> pb.linalg.cross(pb.tensor([1.0, 0.0, 0.0]), pb.tensor([0.0, 1.0, 0.0]))
        Tensor([0., 0., 1.], dtype=float32)
    """
    if any(not x.shape or x.shape[normal_axis(axis, len(x.shape))] != 3 for x in (x1, x2)):
        raise ShapeError(
            f"cross of {show(x1.shape)} and {show(x2.shape)} along {axis}: 3 elements are needed",
            code="E175",
        )
    first, second = (O.roll(x, -1, axis=axis) for x in (x1, x2))
    third, fourth = (O.roll(x, -2, axis=axis) for x in (x1, x2))
    return first * fourth - third * second


@shaped("x: any[*b, m, n]")
def diagonal(x: Tensor, *, offset: int = 0) -> Tensor:
    """``out[.., i] = x[.., i, i + offset]``

    Example:
        >>> pb.linalg.diagonal(pb.tensor([[4.0, 2.0], [2.0, 5.0]]))
        Tensor([4., 5.], dtype=float32)
    """
    rows, columns = map(size, x.shape[-2:])
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    down, right = max(-offset, 0), max(offset, 0)
    shape = (*x.shape[:-2], count)
    return written("diagonal", shape, lambda *at: x[(*at[:-1], at[-1] + down, at[-1] + right)])


@shaped("x[*b, m, n] -> [*b]")
def trace(x: Tensor, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sum of a diagonal: ``sum[i] x[.., i, i + offset]``

    Example:
        >>> pb.linalg.trace(pb.tensor([[1.0, 2.0], [3.0, 4.0]]))
        Tensor(5., dtype=float32)
    """
    total: Tensor = O.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)
    return total


@shaped("x1[m], x2[n] -> [m, n]")
def outer(x1: Tensor, x2: Tensor) -> Tensor:
    """``out[i, j] = x1[i] x2[j]``

    Example:
        >>> pb.linalg.outer(pb.ones(2), pb.ones(3)).shape
        (2, 3)
    """
    return O.outer(x1, x2)


@shaped("*tensors[_, _] or [_]")
@in_float32
def multi_dot(tensors: Sequence[Any]) -> Tensor:
    """The product of several matrices in the order that takes fewest multiplications.

    The first and the last may be vectors. Raises: ShapeError where neighbours do not fit.

    Example:
        >>> pb.linalg.multi_dot([pb.ones((2, 3)), pb.ones((3, 4)), pb.ones((4, 5))]).shape
        (2, 5)
    """
    given = [t if isinstance(t, Tensor) else Tensor(value_of(t)) for t in tensors]
    ranks = [len(t.shape) for t in given]
    if len(given) < 2 or any(r != 2 for r in ranks[1:-1]) or not {ranks[0], ranks[-1]} <= {1, 2}:
        raise ShapeError(
            f"multi_dot of {', '.join(show(t.shape) for t in given) or 'nothing'}:"
            " two or more matrices, the first and the last may be vectors",
            code="E115",
        )
    first, last = ranks[0] == 1, ranks[-1] == 1
    given[0] = O.expand_dims(given[0], 0) if first else given[0]
    given[-1] = O.expand_dims(given[-1], -1) if last else given[-1]
    sizes = [size(given[0].shape[0]), *(size(t.shape[1]) for t in given)]
    product = _product(given, _cuts(sizes), 0, len(given) - 1)
    product = O.squeeze(product, -1) if last else product
    return O.squeeze(product, 0) if first else product


def _cuts(sizes: Sequence[int]) -> dict[tuple[int, int], int]:
    """Where the product of matrices i .. j is cut, for every i < j."""
    count = len(sizes) - 1
    cost = {(i, i): 0 for i in range(count)}
    cuts: dict[tuple[int, int], int] = {}
    for length in range(1, count):
        for i in range(count - length):
            j = i + length
            options = [
                (cost[i, k] + cost[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1], k)
                for k in range(i, j)
            ]
            cost[i, j], cuts[i, j] = min(options)
    return cuts


def _product(given: Sequence[Tensor], cuts: dict[tuple[int, int], int], i: int, j: int) -> Tensor:
    if i == j:
        return given[i]
    k = cuts[i, j]
    return O.matmul(_product(given, cuts, i, k), _product(given, cuts, k + 1, j))


@shaped("x[*b, k, k] -> [*b, k, k]", where="int(n) == n")
@in_float32
def matrix_power(x: Tensor, n: int) -> Tensor:
    """``x @ x @ ..``, by squaring; of negative `n` the inverse to that power.

    Example:
        >>> pb.linalg.matrix_power(pb.tensor([[1.0, 1.0], [0.0, 1.0]]), 3).tolist()
        [[1.0, 3.0], [0.0, 1.0]]
    """
    if not isinstance(n, int):
        raise ArgumentError(f"matrix_power to {n}: an integer is needed", code="E176")
    base = inv(x) if n < 0 else x
    power: Tensor | None = None
    for bit in bin(abs(n))[:1:-1]:
        if bit == "1":
            power = base if power is None else O.matmul(power, base)
        base = O.matmul(base, base)
    if power is None:
        return O.broadcast_to(eye(size(x.shape[-1]), dtype=x.dtype), x.shape)
    return power


# --- the exponential -----------------------------------------------------------------------------

HALVINGS = 1100  # more than the largest float64 needs
# Up to what norm the Taylor polynomial of degree 16 is exact to rounding: Al-Mohy, Higham 2011.
LARGEST = {"float32": 2.2, "float64": 0.78}


def _generated_exp(a: Tensor) -> tuple[Tensor]:
    """``e^a = (e^(a / 2^s))^(2^s)``: a polynomial in ``a^4``, then squares."""
    n = size(a.shape[-1])
    if n == 0:
        return (a,)
    norm = O.max(O.sum(M.abs(a), axis=-2), axis=-1)
    halvings = M.ceil(M.log2(norm / LARGEST[a.dtype.name]))
    halvings = O.where(halvings > 0.0, M.minimum(halvings, float(HALVINGS)), 0.0)
    half = M.pow(full((), 2.0, dtype=a.dtype), -M.minimum(halvings, 100.0))
    rest = M.pow(full((), 2.0, dtype=a.dtype), -(halvings - M.minimum(halvings, 100.0)))
    small = a * O.expand_dims(half, (-2, -1)) * O.expand_dims(rest, (-2, -1))
    polynomial = _polynomial(small)

    def step(carry: Any) -> Any:
        x, done = carry
        more = O.expand_dims(halvings > done, (-2, -1))
        return O.where(more, O.matmul(x, x), x), done + 1.0

    def more(carry: Any) -> Any:
        return O.any(halvings > carry[1])

    start = (polynomial, full((), 0.0, dtype=a.dtype))
    return (while_loop(more, step, start, max_steps=HALVINGS)[0],)


def _polynomial(a: Tensor) -> Tensor:
    """``sum[k <= 16] a^k / k!`` by six products."""
    two = O.matmul(a, a)
    three, four = O.matmul(two, a), O.matmul(two, two)
    factors = [1.0]
    for k in range(1, 17):
        factors.append(factors[-1] / k)
    unit = eye(size(a.shape[-1]), dtype=a.dtype)

    def part(k: int) -> Tensor:
        f = factors[4 * k :]
        return unit * f[0] + a * f[1] + two * f[2] + three * f[3]

    total = four * factors[16] + part(3)
    for k in (2, 1, 0):
        total = O.matmul(total, four) + part(k)
    return total


def _corner(a: Tensor, along: Tensor) -> Tensor:
    """The derivative of ``e^a`` along a matrix: of ``[[a, along], [0, a]]`` the upper right."""
    n = size(a.shape[-1])

    def body(*at: Any) -> Any:
        *b, i, j = at
        same = i // n == j // n
        above = O.where(i < n, along[(*b, i % n, j % n)], 0.0)
        return O.where(same, a[(*b, i % n, j % n)], above)

    whole = written("whole", (*a.shape[:-2], 2 * n, 2 * n), body)
    corner: Tensor = EXP(whole)[0][..., :n, n:]
    return corner


def _exp_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    return [_corner(inputs[0].mT, heads[0])]


def _exp_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    return [_corner(inputs[0], tangents[0])]


EXP = Operation("matrix_exp", None, _generated_exp, _exp_pull, _exp_push)


@shaped("a[*b, n, n] -> [*b, n, n]")
def matrix_exp(a: Tensor) -> Tensor:
    """``e^a = sum[k] a^k / k!`` of matrices: a polynomial of a scaled one, squared again.

    A program everywhere. Source: Bader, Blanes, Casas, Computing the matrix exponential with an
    optimized Taylor polynomial approximation, 2019 (degree and scaling); Al-Mohy, Higham 2011.

    Example:
        >>> pb.linalg.matrix_exp(pb.zeros((2, 2))).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    return back(EXP(matrix(a))[0], a.dtype)
