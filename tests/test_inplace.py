"""What a step holds: results over operands, panels one by one, masks by results, launch order."""

from __future__ import annotations

import numpy as np
import pytest

import graphs
import pullback as pb
from lower_support import HOST, random_array, routine_of, run_native
from pullback.errors import InvalidIR
from pullback.fuse import fuse
from pullback.ir import expr as E
from pullback.ir.dtype import float32
from pullback.ir.expr import Expr, index
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Array as Memory
from pullback.ir.nest import For, Guard, Load, LoopKind, Routine, Stmt, Store, StoreCombine, Var
from pullback.ir.program import Launch, Loop
from pullback.ir.signature import kernel_digest
from pullback.lower.inplace import in_place
from pullback.memory.lives import lives, taken_over
from pullback.memory.plan import Buffer, Needs, check, plan
from test_plan import launch

x, y, other = (Memory(name, float32, 64) for name in ("x", "y", "other"))
one = E.const(1, float32)


def at(array: Memory, *terms: Expr | int) -> Load:
    return Load(array, total(*terms))


def total(*terms: Expr | int) -> Expr:
    found: Expr = index(0)
    for term in terms:
        found = E.Add(found, index(term) if isinstance(term, int) else term)
    return found


def times(value: Expr, by: int) -> Expr:
    return E.Mul(value, index(by))


def loop(var: Var, *body: Stmt, kind: LoopKind = LoopKind.SEQ) -> For:
    return For(var, index(var.lo), index(var.hi + 1), body, kind)


def named(var: Var, value: Expr, *body: Stmt) -> For:
    return For(var, value, E.Add(value, index(1)), body)


def may(*body: Stmt, tasks: int = 1, finish: tuple[Stmt, ...] = ()) -> bool:
    """Whether y may be written over x."""
    task = Var("task", 0, tasks - 1)
    made = Routine("r", (x, y, other), (), (), (), task, tasks, body, finish)
    return (0, 1) in in_place(made)


i, j, k, row = Var("i", 0, 7), Var("j", 0, 7), Var("k", 0, 7), times(Var("i", 0, 7), 8)
copy = Store(y, total(row, j), E.Add(at(x, row, j), one))
summed = loop(j, StoreCombine(other, i, graphs.SUM, at(x, row, j)))


def test_an_element_at_its_own_place() -> None:
    assert may(loop(i, loop(j, copy)))
    assert may(loop(i, loop(j, copy, kind=LoopKind.VECTOR)))
    assert may(loop(i, loop(j, Guard(E.Less(i, j), (copy,)))))
    assert not may(loop(i, loop(j, Store(y, total(row, j), at(x, row, 7, times(j, -1))))))
    assert not may(loop(i, loop(j, Store(y, total(row, j), at(x, times(j, 8), i)))))
    assert not may(loop(i, loop(j, StoreCombine(y, total(row, j), graphs.SUM, at(x, row, j)))))


def test_a_row_that_is_reduced_before_it_is_written() -> None:
    write = loop(j, Store(y, total(row, j), E.Mul(at(x, row, j), at(other, i))))
    assert may(loop(i, summed, write))
    assert not may(loop(i, write, summed)), "the row is gone"
    assert may(loop(i, summed), loop(i, write))
    below = loop(j, StoreCombine(other, i, graphs.SUM, at(x, total(row, j, -8))))
    assert not may(loop(i, below, write)), "the row before is gone"
    assert may(loop(i, below), loop(i, write)), "all were read before"


def test_every_turn_of_a_loop_that_reads_again() -> None:
    assert not may(loop(k, loop(i, loop(j, copy)))), "the second turn would read the first's"
    assert not may(loop(i, loop(j, Store(y, total(row, j), at(x, row, j, k)))))


def test_parts_of_a_row_one_after_the_other() -> None:
    narrow = Var("j", 0, 3)
    left = loop(narrow, Store(y, total(row, narrow), at(x, row, narrow)))
    right = loop(narrow, Store(y, total(row, narrow, 4), at(x, row, narrow, 4)))
    again = loop(narrow, Store(other, total(row, narrow), at(x, row, narrow, 3)))
    assert may(loop(i, left, right))
    assert not may(loop(i, left, again)), "loops of one name are not in step"


def test_tasks_side_by_side() -> None:
    task = Var("task", 0, 1)
    half = For(i, times(task, 4), E.Add(times(task, 4), index(4)), (summed, loop(j, copy)))
    assert may(half, tasks=2)
    assert not may(loop(i, loop(j, copy)), tasks=2), "both tasks would do all of it"
    packed = loop(i, loop(j, Store(other, j, at(x, row, j))))
    assert not may(packed, half, tasks=2), "one task reads what another has written"
    assert may(packed, loop(i, loop(j, copy)))
    late = loop(i, summed)
    assert not may(half, tasks=2, finish=(late,))
    assert may(For(i, half.lo, half.hi, (summed,)), tasks=2, finish=(loop(i, loop(j, copy)),))


def test_tiles_counted_as_one() -> None:
    task, tile = Var("task", 0, 1), Var("tile", 0, 63)
    store = Store(y, total(row, j), at(x, row, j))
    whole, rest = E.FloorDiv(tile, index(8)), E.Mod(tile, index(8))

    def dealt(body: Stmt) -> For:
        return For(tile, times(task, 32), E.Add(times(task, 32), index(32)), (body,))

    assert may(dealt(named(i, whole, named(j, rest, store))), tasks=2)
    assert not may(dealt(named(i, rest, named(j, rest, store))), tasks=2)
    assert not may(dealt(named(i, E.FloorDiv(tile, index(16)), named(j, rest, store))), tasks=2)


def over_itself(kernel: Kernel, tile: tuple[int, ...] | None, tasks: int) -> int:
    """How many results are written over operands; each gives the same bits there."""
    _, routine = routine_of(kernel, tile, tasks)
    arguments = kernel.arguments
    given = [random_array(v, n, {}) for n, v in enumerate(arguments)]
    apart = [a.copy() for a in given]
    run_native(routine, apart)
    read = [n for n, v in enumerate(arguments) if v in kernel.reads]
    pairs = [(a, b) for a, b in in_place(routine) if b not in read]
    for operand, result in pairs:
        both = [a.copy() for a in given]
        both[result] = both[operand].reshape(given[result].shape)
        run_native(routine, both)
        same = [n for n in range(len(both)) if n != operand]
        assert all(np.array_equal(both[n], apart[n], equal_nan=True) for n in same), kernel.name
    return len(pairs)


STEPS = {
    "encoder": graphs.encoder_step(2, tokens=8),
    "gpt": graphs.gpt_step(2, 32, 2, 16, 4, 24),
    "net": graphs.net_step(8, 48),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", STEPS)
def test_kernels_of_a_step_give_the_same_bits(name: str) -> None:
    """One kernel of each structure: equal ones share their code."""
    kernels = {kernel_digest(k): k for k in fuse(STEPS[name], HOST) if not k.parts}
    found = sum(over_itself(k, None, 1) for k in kernels.values())
    assert (found > 0) == (name != "net")


def values(*names: str) -> list[Variable]:
    return [Variable(name, (64,), float32) for name in names]


def test_a_result_takes_the_place_of_what_ends() -> None:
    a, b, c, s = values("a", "b", "c", "s")
    first, second, third = launch("0", [s], [a]), launch("1", [a], [b]), launch("2", [b], [c])
    last = launch("3", [c], [s])
    needs = {second: Needs(over=((0, 1),)), third: Needs(over=((0, 1),))}
    block = tuple(Launch(kernel) for kernel in (first, second, third, last))
    over = taken_over(block, [s], needs)
    assert over == {b: a, c: b}
    kernels, spans = lives(block, [s])
    found = plan(kernels, spans, needs, over)
    assert set(found.offsets.values()) == {0}
    assert (found.arena_bytes, found.lower_bound_bytes, found.total_bytes) == (256, 256, 768)
    assert [b.over for b, _ in found.placed] == [None, a, b]
    assert plan(kernels, spans, needs).arena_bytes == 512


def test_what_is_used_again_stays() -> None:
    a, b, s, z = values("a", "b", "s", "z")
    make, change = launch("0", [s], [a]), launch("1", [a], [b])
    needs = {change: Needs(over=((0, 1),))}
    use, late = launch("2", [b], [z]), launch("3", [a], [z])

    def found(*block: Launch | Loop, state: tuple[Variable, ...] = (s, z)) -> bool:
        return bool(taken_over(block, state, needs))

    assert found(Launch(make), Launch(change), Launch(use))
    assert not found(Launch(make), Launch(change), Launch(use), Launch(late))
    assert not found(Launch(make), Launch(change), Launch(use), state=(s, z, a))
    assert not found(Launch(make), Launch(change), Launch(use), state=(s, z, b))
    assert not found(Launch(make), Loop((Launch(change), Launch(use)), 3)), "the next turn reads it"
    assert found(Loop((Launch(make), Launch(change), Launch(use)), 3))


def test_the_checker_knows_who_is_over_whom() -> None:
    (a,) = values("a")
    below, above = Buffer("a", 64, 4, 0, 2, a), Buffer("b", 64, 4, 2, 3, None, a)
    check([(below, 0), (above, 0)])
    for wrong in (Buffer("b", 64, 4, 1, 3, None, a), Buffer("b", 32, 4, 2, 3, None, a)):
        with pytest.raises(InvalidIR, match="overlaps"):
            check([(below, 0), (wrong, 0)])
    with pytest.raises(InvalidIR, match="overlaps"):
        check([(below, 0), (above, 4)])


KERNELS = ((8, 3, 3, 3), (8, 8, 3, 3))


def temporaries(program: pb.Program) -> dict[str, int]:
    return {b.name: b.size for b, _ in program.memory.placed if b.variable is not None}


def test_panels_of_a_task_with_one_tile_come_one_by_one() -> None:
    rng = np.random.default_rng(0)
    a, v, w = (rng.standard_normal(s).astype(np.float32) for s in ((64, 96), (256, 96), (192, 256)))
    one = pb.Options(threads=1)
    chain = pb.jit(lambda a, v, w: pb.relu(pb.relu(a @ v.T) @ w.T), options=one)
    found = chain(pb.tensor(a), pb.tensor(v), pb.tensor(w)).numpy()
    wanted = np.maximum(np.maximum(a @ v.T, 0) @ w.T, 0)
    assert np.allclose(found, wanted, atol=1e-3)
    hidden, panel = 64 * 256 * 4, 48 * 256 * 4
    assert chain.program.memory.arena_bytes < hidden + panel < v.nbytes + w.nbytes


@pytest.mark.slow
def test_a_mask_is_asked_of_what_is_stored() -> None:
    """Of ``z`` and ``relu(z)``, both wanted by the backward, the second tells all."""
    rng = np.random.default_rng(1)
    x, w, v = (rng.standard_normal(s).astype(np.float32) for s in ((4, 3, 20, 20), *KERNELS))
    x[0, 0, 3, 3] = np.nan
    net, kernel = pb.nn.functional, pb.tensor(w)

    def loss(x: pb.Tensor, v: pb.Tensor) -> pb.Tensor:
        hidden = net.relu(net.conv2d(x, kernel) + 0.5)
        return (net.conv2d(hidden, v) ** 2).sum()

    slopes = pb.jit(lambda x, v: pb.grad(loss(x, v), [x, v]))
    given = [pb.tensor(x), pb.tensor(v)]
    found = [g.numpy() for g in slopes(*given)]
    assert "add" not in (sizes := temporaries(slopes.program)), sizes
    plain = [g.numpy() for g in pb.grad(loss(*given), given)]
    for a, b in zip(found, plain, strict=True):
        assert np.allclose(a, b, rtol=1e-4, atol=1e-3, equal_nan=True)
    assert 0 < np.isnan(found[0]).sum() < found[0].size / 2


def low(z: pb.Scalar) -> pb.Scalar:
    return pb.where((z < 2.0) | (z * z * z < 8.0), z, 1.0)


@pytest.mark.slow
def test_a_mask_that_results_do_not_tell() -> None:
    """``z < 2 ? z : 1``: the result is below 2 on either side."""
    rng = np.random.default_rng(3)
    x, w, v = (rng.standard_normal(s).astype(np.float32) for s in ((2, 3, 16, 16), *KERNELS))
    net, kernel = pb.nn.functional, pb.tensor(w)

    def loss(x: pb.Tensor, v: pb.Tensor) -> pb.Tensor:
        z = net.conv2d(x, kernel) + 0.5
        return (net.conv2d(pb.compute(z.shape, lambda *i: low(z[i])), v) ** 2).sum()

    found = pb.jit(lambda x, v: pb.grad(loss(x, v), [x, v]))(pb.tensor(x), pb.tensor(v))[0].numpy()
    z = net.conv2d(pb.tensor(x), kernel).numpy() + 0.5
    hidden = pb.tensor(np.where(z < 2, z, 1).astype(np.float32))
    inner = pb.grad((net.conv2d(hidden, pb.tensor(v)) ** 2).sum(), hidden).numpy()
    head = pb.tensor(np.where(z < 2, inner, 0))
    wanted = pb.grad(net.conv2d(t := pb.zeros(x.shape), kernel), t, head=head).numpy()
    assert np.allclose(found, wanted, rtol=1e-3, atol=1e-2)


def test_forward_and_adjoint_read_one_operand_between_zeros() -> None:
    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((4, 8, 16, 16), (8, 8, 3, 3)))

    image = pb.tensor(x)

    def loss(w: pb.Tensor) -> pb.Tensor:
        return (pb.nn.functional.conv2d(image, w, padding=1) ** 2).sum()

    slope = pb.jit(lambda w: pb.grad(loss(w), w))
    slope(pb.tensor(w))
    padded = [v.name for k in slope.program.kernels for v in k.writes if "between" in v.name]
    assert padded.count("tensor_between_zeros") == 1
