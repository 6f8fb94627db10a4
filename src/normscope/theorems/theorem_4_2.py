"""Theorem 4.2: the curvature of the loss along its gradient, through batch normalization."""

from __future__ import annotations

from torch import Tensor

from normscope.theorems.layer_case import LayerCase, Units, inner
from normscope.theorems.statement import Sides, statement

PRINTED_PREMISE = "H preserves the relative norms of g and d"
EXACT_PREMISE = PRINTED_PREMISE + ", d is no longer than g, and g'Hg >= 0"


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
