"""torch.special: special functions of the registry under their public names."""

from __future__ import annotations

from refruntime._ops.opdef import ops

# Public name -> name of the operator, where it is another.
_RENAMED = {
    "expit": "sigmoid", "gammaln": "lgamma", "multigammaln": "mvlgamma", "psi": "digamma",
}  # fmt: skip
_SAME = (
    "digamma", "entr", "erf", "erfc", "erfcx", "erfinv", "exp2", "expm1", "i0", "i0e", "i1", "i1e",
    "log1p", "log_ndtr", "log_softmax", "logit", "logsumexp", "ndtr", "ndtri", "polygamma", "round",
    "sinc", "softmax", "xlog1py", "xlogy", "zeta",
)  # fmt: skip

__all__ = [*_SAME, *_RENAMED]

globals().update({name: getattr(ops, name) for name in _SAME})
globals().update({public: getattr(ops, name) for public, name in _RENAMED.items()})
