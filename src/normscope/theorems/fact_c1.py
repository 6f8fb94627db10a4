"""Fact C.1: the gradient through batch normalization."""

from __future__ import annotations

from normscope.theorems.situation import Situation
from normscope.theorems.statement import Sides, statement

__all__ = ["fact_c1"]


@statement(forms=("exact", "printed"))
def fact_c1(subject: Situation, form: str) -> Sides:
    r"""The gradient by the inputs is that by the outputs without two of its directions, scaled.

    .. math:: \frac{\partial L}{\partial y} = \frac{\gamma}{m s}\left(m g - 1 \langle 1, g\rangle
        - \hat y \langle g, \hat y\rangle\right), \qquad s^2 = \mathrm{var}(y) + \epsilon

    Printed: the same with eps = 0 in s and in the normalized output. True for any eps with both as
    the layer has them.

    Reference: santurkar2018, Fact C.1, Eq. (4).

    Args:
        subject: left the gradient by autograd, right the closed form.
        form: "exact" or "printed".

    Returns:
        The sides, an identity of vectors.
    """
    units = subject.units if form == "exact" else subject.units.without_eps()
    size = (units.gamma / subject.units.scale).abs() * units.g.abs().amax(-1)
    return Sides("identity", subject.gradient, units.gradient, size)
