"""Norms, distances, and the linear algebra that says nothing of failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pullback as pb
from pullback.bridge.aten.table import aten, axes, pulled, rule
from pullback.bridge.complexes import ELEMENTS


@rule(aten.linalg_vector_norm.default)
def vector_norm(
    x: Any, ord: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> Any:
    given = x if dtype is None else pb.astype(x, ELEMENTS[dtype])
    return pb.linalg.vector_norm(given, ord=ord, axis=axes(dim, x.ndim), keepdims=keepdim)


@rule(aten._cdist_forward.default)
def cdist(x: Any, y: Any, p: float, mode: Any) -> Any:
    del mode
    return pb.cdist(x, y, p=p)


@rule(aten._cdist_backward.default)
def cdist_backward(head: Any, x: Any, y: Any, p: float, distances: Any) -> Any:
    del distances
    return pulled(lambda t: pb.cdist(t, y, p=p), [x], head)[0]


@rule(aten._pdist_forward.default)
def pdist(x: Any, p: float = 2) -> Any:
    return pb.pdist(x, p=p)


@rule(aten._pdist_backward.default)
def pdist_backward(head: Any, x: Any, p: float, distances: Any) -> Any:
    del distances
    return pulled(lambda t: pb.pdist(t, p=p), [x], head)[0]


@rule(aten.linalg_cross.default)
def cross(x: Any, y: Any, *, dim: int = -1) -> Any:
    return pb.cross(x, y, axis=dim)


@rule(aten.dist.default)
def dist(x: Any, y: Any, p: float = 2) -> Any:
    return pb.linalg.vector_norm(x - y, ord=p)


@rule(aten._trilinear.default)
def trilinear(
    x: Any, y: Any, z: Any, first: Sequence[int], second: Sequence[int], third: Sequence[int],
    dims: Sequence[int], unroll_dim: int = 1,
) -> Any:  # fmt: skip
    """The sum over `dims` of the products of three tensors, each with axes of 1 put in."""
    del unroll_dim
    pairs = zip((x, y, z), (first, second, third), strict=True)
    a, b, c = (pb.expand_dims(t, axis=tuple(at)) if at else t for t, at in pairs)
    return pb.sum(a * b * c, axis=tuple(dims)) if dims else a * b * c


@rule(aten.vdot.default)
def vdot(x: Any, y: Any) -> Any:
    return pb.vecdot(x, y)


@rule(aten.linalg_solve_triangular.default)
def solve_triangular(
    a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Any:
    return pb.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unitriangular)


@rule(aten.linalg_matrix_exp.default)
def matrix_exp(x: Any) -> Any:
    return pb.linalg.matrix_exp(x)
