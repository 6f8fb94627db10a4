"""Fact C.1: the gradient through batch normalization."""

from __future__ import annotations

from normscope.theorems.layer_case import LayerCase
from normscope.theorems.statement import Sides, statement


@statement(forms=("exact", "printed"))
def fact_c1(case: LayerCase, form: str) -> Sides:
    r"""The gradient by the inputs is that by the outputs, projected and scaled.

    .. math:: \frac{\partial L}{\partial y} = \frac{\gamma}{m s}\left(m g - 1 \langle 1, g\rangle
        - \hat y \langle g, \hat y\rangle\right), \qquad s^2 = \mathrm{var}(y) + \epsilon

    Printed: the same with eps = 0 in s and in the normalized output. With eps in both, as in the
    layer, it is true for any eps.

    Reference: santurkar2018, Fact C.1, Eq. (4).

    Args:
        case: left is the gradient by autograd, right the closed form.
        form: "exact" or "printed".

    Returns:
        The sides, an identity of vectors.
    """
    units = case.units if form == "exact" else case.units.without_eps()
    size = (units.gamma / case.units.scale).abs() * units.g.abs().amax(-1)
    return Sides("identity", case.gradient, units.gradient, size)
