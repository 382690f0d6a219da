"""Special functions with derivatives, under the names of `scipy.special` and `torch.special`.

Values are within 4 units in the last place of float64 where docs/accuracy.md does not say
otherwise; other floats are computed in float64 and rounded once.
"""

from pullback.special.elementary import (
    entr,
    expit,
    i0,
    i0e,
    i1,
    i1e,
    log_expit,
    logit,
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
from pullback.tensor.boundary import bounded as _bounded
from pullback.tensor.dialect import shown as _shown
from pullback.tensor.dialect import unknown as _unknown
from pullback.tensor.maths import erf, expm1, log1p
from pullback.tensor.ops import log_softmax, logsumexp, softmax
from pullback.tensor.scalars import exp2

__all__ = [
    "beta", "betaln", "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expit",
    "expm1", "gammainc", "gammaincc", "gammaln", "i0", "i0e", "i1", "i1e", "lgamma", "log1p",
    "log_expit", "log_ndtr", "log_softmax", "logit", "logsumexp", "multigammaln", "ndtr", "ndtri",
    "polygamma", "psi", "sinc", "softmax", "xlog1py", "xlogy", "zeta",
]  # fmt: skip


def __getattr__(name: str) -> object:
    raise _unknown("pullback.special", name, __all__)


__dir__ = _shown(__all__)
_bounded(globals(), __all__)
