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


# --- Airy's function ----------------------------------------------------------------------------

# Rational approximations beyond 2.09 on either side, of z = 3 / (2 |x|^(3/2)) or its square.
# Source: Moshier 1989, Methods and programs for mathematical functions (Cephes, airy.c).
AIRY_AN = (
    0.346538101525629, 12.007595273964581, 76.27960536152345, 168.08922493463058,
    159.75639135016442, 70.53609068404442, 14.026469116338967, 1.0,
)  # fmt: skip
AIRY_AD = (
    0.5675945326387702, 14.75625625848472, 84.51389701414746, 177.31808814540045,
    164.2346928715297, 71.47784008255756, 14.095913560783403, 1.0,
)  # fmt: skip
AIRY_AFN = (
    -0.1316963234183318, -0.6264565444319123, -0.6931580360369335, -0.2797799815451191,
    -0.04919001326095003, -0.004062659235948854, -0.0001592764962392621, -2.776491081552329e-06,
    -1.6778769848911465e-08,
)  # fmt: skip
AIRY_AFD = (
    13.356042070655324, 32.682503279522464, 26.736704094149957, 9.187074029072596,
    1.4752914677166642, 0.11568717379518804, 0.004402916416152112, 7.547203482874142e-05,
    4.5185009297058035e-07,
)  # fmt: skip
AIRY_AGN = (
    0.01973399320916857, 0.39110302961568827, 1.0657989759959559, 0.9391692298166502,
    0.35146565610554764, 0.06338889196289255, 0.005858041130483885, 0.000282851600836737,
    6.98793669997261e-06, 8.117892395543892e-08, 3.415517847659236e-10,
)  # fmt: skip
AIRY_AGD = (
    9.30892908077442, 19.835292871831214, 15.564662893286462, 5.476860694229755,
    0.9542936116189619, 0.08645808263523921, 0.004126565238242226, 0.00010125908511650914,
    1.1716673321441352e-06, 4.9183457006293e-09,
)  # fmt: skip
AIRY_APART = 2.09
AIRY_ZERO, AIRY_SLOPE = 0.355028053887817239260, 0.258819403792806798405  # Ai(0), -Ai'(0)
AIRY_TERMS = 12  # of the series: within 2.09 the next one is less than 2^-53 of the sum


def _horner(z: Any, coefficients: tuple[float, ...]) -> Any:
    y = pb.full(tuple(z.shape), coefficients[0], dtype=z.dtype)
    for c in coefficients[1:]:
        y = y * z + c
    return y


def _airy_series(x: Any) -> Any:
    """``Ai(0) f - slope g``, by powers of the cube."""
    cube, f, g = x * x * x, pb.ones(tuple(x.shape), dtype=x.dtype), x
    even, odd = f, x
    for n in range(1, AIRY_TERMS + 1):
        even = even * cube / (3 * n * (3 * n - 1))
        odd = odd * cube / (3 * n * (3 * n + 1))
        f, g = f + even, g + odd
    return AIRY_ZERO * f - AIRY_SLOPE * g


@rule(aten.special_airy_ai.default)
def airy_ai(x: Any) -> Any:
    """By the series near 0, an oscillation on the left, a decay on the right; NaN at infinity.

    PyTorch 2.13 leaves out the leading 1 of two denominators: 3e-6 from SciPy's at -2.1.
    """
    t = pb.astype(x, pb.float64)
    away = pb.maximum(pb.abs(t), AIRY_APART)
    root = pb.sqrt(away)
    zeta = 2.0 / 3.0 * away * root
    scale = 1.0 / (pb.pi**0.5 * pb.sqrt(root))
    z = 1.0 / zeta
    right = scale / 2.0 * _horner(z, AIRY_AN) / _horner(z, AIRY_AD) * pb.exp(-zeta)
    f = 1.0 + z * z * _horner(z * z, AIRY_AFN) / _horner(z * z, (1.0, *AIRY_AFD))
    g = z * _horner(z * z, AIRY_AGN) / _horner(z * z, (1.0, *AIRY_AGD))
    turn = zeta + pb.pi / 4.0
    left = scale * (pb.sin(turn) * f - pb.cos(turn) * g)
    y = pb.where(t < -AIRY_APART, left, _airy_series(pb.clip(t, -AIRY_APART, AIRY_APART)))
    y = pb.where(t >= AIRY_APART, right, y)
    return pb.astype(pb.where(pb.isfinite(t), y, pb.nan), x.dtype)
