"""Special functions with derivatives, under the names of `scipy.special` and `torch.special`.

Values are within 4 units in the last place of float64 where docs/accuracy.md does not say
otherwise; other floats are computed in float64 and rounded once.
"""

from pullback.special.bessel import (
    j0,
    j1,
    jn,
    k0,
    k0e,
    k1,
    k1e,
    spherical_bessel_j0,
    y0,
    y1,
)
from pullback.special.elementary import (
    cbrt,
    entr,
    expit,
    i0,
    i0e,
    i1,
    i1e,
    kl_div,
    log_expit,
    logit,
    rel_entr,
    sinc,
    xlog1py,
    xlogy,
)
from pullback.special.gamma import (
    beta,
    betaln,
    digamma,
    gammaln,
    multigammaln,
    polygamma,
    zeta,
)
from pullback.special.gamma import digamma as psi
from pullback.special.gamma import gammaln as lgamma
from pullback.special.incomplete import gammainc, gammaincc
from pullback.special.normal import erfc, erfcx, erfinv, log_ndtr, ndtr, ndtri
from pullback.special.polynomials import (
    chebyshev_polynomial_t,
    chebyshev_polynomial_u,
    chebyshev_polynomial_v,
    chebyshev_polynomial_w,
    hermite_polynomial_h,
    hermite_polynomial_he,
    laguerre_polynomial_l,
    legendre_polynomial_p,
    shifted_chebyshev_polynomial_t,
    shifted_chebyshev_polynomial_u,
    shifted_chebyshev_polynomial_v,
    shifted_chebyshev_polynomial_w,
)
from pullback.tensor.face.boundary import bounded as _bounded
from pullback.tensor.face.dialect import shown as _shown
from pullback.tensor.face.dialect import unknown as _unknown
from pullback.tensor.library.maths import erf, expm1, log1p
from pullback.tensor.library.ops import log_softmax, logsumexp, softmax
from pullback.tensor.library.scalars import exp2

# PyTorch's names.
bessel_j0, bessel_j1, bessel_y0, bessel_y1 = j0, j1, y0, y1
modified_bessel_i0, modified_bessel_i1 = i0, i1
modified_bessel_k0, modified_bessel_k1 = k0, k1
scaled_modified_bessel_k0, scaled_modified_bessel_k1 = k0e, k1e

__all__ = [
    "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "beta", "betaln", "cbrt",
    "chebyshev_polynomial_t",
    "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w", "digamma", "entr",
    "erf", "erfc", "erfcx", "erfinv", "exp2", "expit", "expm1", "gammainc", "gammaincc", "gammaln",
    "hermite_polynomial_h", "hermite_polynomial_he", "i0", "i0e", "i1", "i1e", "j0", "j1", "jn",
    "k0", "k0e", "k1", "k1e", "kl_div", "laguerre_polynomial_l", "legendre_polynomial_p", "lgamma",
    "log1p", "log_expit", "log_ndtr", "log_softmax", "logit", "logsumexp", "modified_bessel_i0",
    "modified_bessel_i1", "modified_bessel_k0", "modified_bessel_k1", "multigammaln", "ndtr",
    "ndtri", "polygamma", "psi", "rel_entr", "scaled_modified_bessel_k0",
    "scaled_modified_bessel_k1",
    "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u",
    "shifted_chebyshev_polynomial_v", "shifted_chebyshev_polynomial_w", "sinc", "softmax",
    "spherical_bessel_j0", "xlog1py", "xlogy", "y0", "y1", "zeta",
]  # fmt: skip


def __getattr__(name: str) -> object:
    raise _unknown("pullback.special", name, __all__)


__dir__ = _shown(__all__)
_bounded(globals(), __all__)
