"""Statements with closed forms: Facts C.1 and C.2, Theorems 4.1, 4.2 and 4.4."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from normscope.theorems.layer_case import LayerCase, Units, inner
from normscope.theorems.statement import Sides, statement

PRINTED_PREMISE = "H preserves the relative norms of g and d"
EXACT_PREMISE = PRINTED_PREMISE + ", d is no longer than g, and g'Hg >= 0"


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
    units = case.units_in(form)
    size = (units.gamma / case.units.scale).abs() * units.g.abs().amax(-1)
    return Sides("identity", case.gradient, units.gradient, size)


@statement(forms=("exact", "printed"), needs=("y",))
def fact_c2(case: LayerCase, form: str) -> Sides:
    r"""The Jacobian of the normalized outputs is a scaled projection, up to eps.

    .. math:: \frac{\partial \hat y^{(b)}}{\partial y^{(k)}} = \frac1s \left(\delta_{bk} - \frac1m
        - \frac1m \hat y^{(b)} \hat y^{(k)}\right)

    Printed: the same with eps = 0 in s and in the normalized output, where it is a projection
    divided by s. With eps in both, as in the layer, it is true for any eps.

    Reference: santurkar2018, Fact C.2, Eq. (1).

    Args:
        case: left is the Jacobian by autograd, as a matrix or times probe vectors; right the
            closed form.
        form: "exact" or "printed".

    Returns:
        The sides, an identity of matrices.
    """
    units = case.units_in(form)
    probes = case.probes
    if probes is None:
        probes = torch.eye(units.batch_size, dtype=units.y.dtype).unsqueeze(0)
    columns = [units.jacobian_times(probe) for probe in probes.unbind(1)]
    size = probes.abs().amax((-1, -2)) / case.units.scale
    return Sides("identity", case.jacobian(probes), torch.stack(columns, 1), size)


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
    units = case.units_in(form)
    m = units.batch_size
    other = {"exact": 1 / m, "printed": 1 / math.sqrt(m), "article": 1 / m}[form]
    factor = other * (2 - units.ratio)  # the ratio is 1 without eps
    front = (units.gamma / units.scale).square()
    whole, mean = inner(units.g, units.g), units.g.sum(-1).square() / m
    along = factor * units.along.square()
    lhs = inner(case.gradient, case.gradient)
    kind = "identity" if form == "exact" else "bound"
    return Sides(kind, lhs, front * (whole - mean - along), lhs + front * (whole + mean + along))


@statement(variants=("", "norm_preserving"), needs=("y", "g", "H"))
def theorem_4_2(case: LayerCase, form: str, variant: str = "") -> Sides:
    r"""The curvature along the gradient is that of the outputs, scaled, minus an alignment term.

    .. math:: d^\top \hat H d = \gamma^2 (Jd)^\top H (Jd) - \frac{\gamma}{s m}\left(
        2\langle\hat y,d\rangle\langle g,Jd\rangle + \langle g,\hat y\rangle\langle d,Jd\rangle
        \right), \qquad d = \nabla_y \hat L

    with J of Fact C.2: an identity for any eps. For eps = 0 it is

    .. math:: d^\top \hat H d = \frac{\gamma^2}{s^2} d^\top H d - \frac{\gamma}{m s^2}
        \langle g,\hat y\rangle |d|^2,

    which paper and article print as "at most".

    Variant ``norm_preserving``: the paper replaces d by g in the first term,

    .. math:: d^\top \hat H d \le \frac{\gamma^2}{s^2}\left(g^\top H g - \frac{1}{m\gamma}
        \langle g,\hat y\rangle |d|^2\right),

    if "H preserves the relative norms" of both, tested here as
    :math:`d^\top H d / |d|^2 \le g^\top H g / |g|^2`. That is not enough: it needs :math:`|d| \le
    |g|` too (and :math:`g^\top H g \ge 0`); with H = I it fails if gamma/s makes d longer than g.
    The exact form has these in its premise, with s J d for d, and keeps the terms of eps.

    Reference: santurkar2018, Theorem 4.2, Eqs. (50) and (51).

    Args:
        case: left is the quadratic form along the gradient, both by autograd.
        form: "exact", "printed" or "article".
        variant: "" or "norm_preserving".

    Returns:
        The sides.
    """
    d = case.direction
    lhs = inner(d, case.curvature(d))
    if form == "exact":
        units = case.units
        first, second, size = units.curvature_terms(d, case.hessian)
    else:
        units = case.units.without_eps()
        first = (units.gamma / units.scale).square() * inner(d, case.hessian(d))
        second = -units.gamma / (units.batch_size * units.scale.square())
        second = second * units.along * inner(d, d)
        size = first.abs() + second.abs()
    if variant:
        moved = d if form != "exact" else units.scale.unsqueeze(-1) * units.jacobian_times(d)
        return _norm_preserving(case, form, units, moved, Sides("", lhs, second, size))
    kind = "identity" if form == "exact" else "bound"
    return Sides(kind, lhs, first + second, lhs.abs() + size)


def _norm_preserving(case: LayerCase, form: str, units: Units, moved: Tensor, kept: Sides) -> Sides:
    """Return the second form: the terms kept of the first, and that of g instead of d."""
    g = units.g
    curved_g, curved_d = inner(g, case.hessian(g)), inner(moved, case.hessian(moved))
    first = (units.gamma / units.scale).square() * curved_g
    long_g, long_d = inner(g, g), inner(moved, moved)
    preserved, allowed = curved_d * long_g, curved_g * long_d
    # allow for rounding errors in equality, as for H = I
    met = preserved <= allowed + 1e-12 * (preserved.abs() + allowed.abs())
    if form == "exact":
        met = met & (long_d <= long_g) & (curved_g >= 0)
    premise = EXACT_PREMISE if form == "exact" else PRINTED_PREMISE
    size = kept.lhs.abs() + first.abs() + kept.size
    return Sides("bound", kept.lhs, first + kept.rhs, size, premise, met)


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
    units = case.units_in(form)
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
