"""Theorem 4.4: the largest weight gradient of the loss, through batch normalization."""

from __future__ import annotations

from normscope.theorems.layer_case import LayerCase, inner
from normscope.theorems.statement import Sides, statement


@statement()
def theorem_4_4(case: LayerCase, form: str) -> Sides:
    r"""The largest squared weight gradient over bounded inputs, beside that without the layer.

    .. math:: \hat g_j = \max_{\|X\| \le \lambda} |X^\top d|^2 = \frac{\gamma^2}{s^2}\left(g_j
        - \lambda^2 m \mu_g^2 - \frac{\lambda^2 (2 - r)}{m} \langle g,\hat y\rangle^2\right),
        \qquad g_j = \max_{\|X\| \le \lambda} |X^\top g|^2

    with the gradients g and d fixed while the input matrix X varies: an identity, since the
    maximum is attained, by :math:`X = \lambda d d^\top / |d|^2`. Printed, in paper and article, as
    "at most": :math:`g_j^2 - m \mu_g^2 - \lambda^2 \langle g,\hat y\rangle^2` in the brackets,
    whose terms have different units of measure; it does not follow from (17) and (18).

    Reference: santurkar2018, Theorem 4.4. Notation: lambda = bound, mu_g = mean of g.

    Args:
        case: left is the maximum, at the X that attains it, with the gradient by autograd.
        form: "exact", "printed" or "article".

    Returns:
        The sides.
    """
    units = case.units if form == "exact" else case.units.without_eps()
    m, bound = units.batch_size, case.bound**2
    lhs = bound * inner(case.gradient, case.gradient)
    steepest, mean = bound * inner(units.g, units.g), m * units.g.mean(-1).square()
    if form == "exact":
        parts = (steepest, bound * mean, bound * (2 - units.ratio) / m * units.along.square())
    else:
        parts = (steepest.square(), mean, bound * units.along.square())
    front = (units.gamma / units.scale).square()
    rhs = front * (parts[0] - parts[1] - parts[2])
    kind = "identity" if form == "exact" else "bound"
    return Sides(kind, lhs, rhs, lhs + front * (parts[0] + parts[1] + parts[2]))
