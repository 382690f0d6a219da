"""Special functions, and what else is of one element but rare."""

from __future__ import annotations

from typing import Any

import pullback as pb
from pullback.bridge.aten.elementwise import infinite
from pullback.bridge.aten.table import Rule, aten, rule, same

S = pb.special
same(
    {
        "special_bessel_j0": S.bessel_j0, "special_bessel_j1": S.bessel_j1,
        "special_bessel_y0": S.bessel_y0, "special_bessel_y1": S.bessel_y1,
        "special_entr": S.entr, "special_erfcx": S.erfcx, "special_i0e": S.i0e,
        "special_i1": infinite(S.i1), "special_i1e": S.i1e, "special_log_ndtr": S.log_ndtr,
        "special_ndtri": S.ndtri, "special_spherical_bessel_j0": S.spherical_bessel_j0,
        "special_modified_bessel_i0": S.modified_bessel_i0,
        "special_modified_bessel_i1": S.modified_bessel_i1,
        "special_modified_bessel_k0": S.modified_bessel_k0,
        "special_modified_bessel_k1": S.modified_bessel_k1,
        "special_scaled_modified_bessel_k0": S.scaled_modified_bessel_k0,
        "special_scaled_modified_bessel_k1": S.scaled_modified_bessel_k1,
        "igamma": S.gammainc, "igammac": S.gammaincc, "conj_physical": lambda x: x,
        "frexp": pb.frexp, "logit": S.logit, "mvlgamma": S.multigammaln,
    }
)  # fmt: skip

BINARY: dict[str, Rule] = {
    "special_zeta": S.zeta, "special_xlog1py": S.xlog1py,
    "special_chebyshev_polynomial_t": S.chebyshev_polynomial_t,
    "special_chebyshev_polynomial_u": S.chebyshev_polynomial_u,
    "special_chebyshev_polynomial_v": S.chebyshev_polynomial_v,
    "special_chebyshev_polynomial_w": S.chebyshev_polynomial_w,
    "special_shifted_chebyshev_polynomial_t": S.shifted_chebyshev_polynomial_t,
    "special_shifted_chebyshev_polynomial_u": S.shifted_chebyshev_polynomial_u,
    "special_shifted_chebyshev_polynomial_v": S.shifted_chebyshev_polynomial_v,
    "special_shifted_chebyshev_polynomial_w": S.shifted_chebyshev_polynomial_w,
    "special_hermite_polynomial_h": S.hermite_polynomial_h,
    "special_hermite_polynomial_he": S.hermite_polynomial_he,
    "special_laguerre_polynomial_l": S.laguerre_polynomial_l,
    "special_legendre_polynomial_p": S.legendre_polynomial_p,
}  # fmt: skip


def _binary(name: str, function: Rule) -> None:
    """An operator of two tensors, or of one and a number on either side."""
    packet = getattr(aten, name)
    for overload in ("default", "other_scalar", "self_scalar", "n_scalar", "x_scalar"):
        if overload in packet.overloads():
            rule(getattr(packet, overload))(function)


for _name in BINARY:
    _binary(_name, BINARY[_name])


@rule(aten.polygamma.default)
def polygamma(n: int, x: Any) -> Any:
    return S.polygamma(n, x)


@rule(aten.round.decimals)
def round_decimals(x: Any, *, decimals: int) -> Any:
    if not decimals:
        return pb.round(x)
    by = 10.0 ** abs(decimals)
    return pb.round(x * by) / by if decimals > 0 else pb.round(x / by) * by


@rule(aten._prelu_kernel.default)
def prelu(x: Any, w: Any) -> Any:
    return pb.where(x > 0, x, x * w)


@rule(aten._prelu_kernel_backward.default)
def prelu_backward(head: Any, x: Any, w: Any) -> Any:
    return pb.where(x > 0, head, head * w), pb.where(x > 0, 0, head * x)


@rule(aten._safe_softmax.default)
def safe_softmax(x: Any, dim: int, dtype: Any = None) -> Any:
    del dtype  # the type stands in the graph
    if 0 in x.shape:
        return x
    nothing = pb.all(pb.isneginf(x), axis=dim, keepdims=True)
    return pb.where(nothing, 0, pb.softmax(x, axis=dim))
