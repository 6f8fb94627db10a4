"""Theorem 4.1: the gradient norm of the loss through batch normalization."""

from __future__ import annotations

import math

from normscope.theorems.layer_case import LayerCase, inner
from normscope.theorems.statement import Sides, statement


@statement()
def theorem_4_1(case: LayerCase, form: str) -> Sides:
    r"""The squared gradient without its parts along 1 and the normalized output, scaled.

    .. math:: |\nabla_y \hat L|^2 = \frac{\gamma^2}{s^2}\left(|g|^2 - \frac1m \langle 1,g\rangle^2
        - \frac{2-r}{m} \langle g,\hat y\rangle^2\right), \qquad r = \frac{\mathrm{var}(y)}{s^2}

    An identity. Printed: "at most", with the last factor :math:`1/\sqrt m` and eps = 0; false
    whenever g has a part along the normalized output, since the true factor is 1/m. The article
    has 1/m, which is right for eps = 0.

    Reference: santurkar2018, Theorem 4.1.

    Args:
        case: left is the squared gradient by autograd.
        form: "exact", "printed" or "article".

    Returns:
        The sides.
    """
    units = case.units if form == "exact" else case.units.without_eps()
    m = units.batch_size
    other = {"exact": 1 / m, "printed": 1 / math.sqrt(m), "article": 1 / m}[form]
    factor = other * (2 - units.ratio)  # the ratio is 1 without eps
    front = (units.gamma / units.scale).square()
    whole, mean = inner(units.g, units.g), units.g.sum(-1).square() / m
    along = factor * units.along.square()
    lhs = inner(case.gradient, case.gradient)
    kind = "identity" if form == "exact" else "bound"
    return Sides(kind, lhs, front * (whole - mean - along), lhs + front * (whole + mean + along))
