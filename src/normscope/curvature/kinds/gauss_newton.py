"""The Fisher and the Gauss-Newton matrix."""

from __future__ import annotations

from normscope.curvature.kinds import KINDS, BatchPoint
from normscope.curvature.output_hessian import ScaledIdentity, output_hessian
from normscope.curvature.products import GaussNewtonProduct


@KINDS.register
def fisher(at: BatchPoint) -> GaussNewtonProduct:
    r"""Fisher matrix: mean over samples of the outer products of the outputs' gradients.

    .. math:: F = \frac1m J^\top J

    Reference: wei2018, Eq. (10).
    """
    jacobian = at.jacobian()
    return GaussNewtonProduct(jacobian, ScaledIdentity(1 / len(jacobian.output)))


@KINDS.register
def ggn(at: BatchPoint) -> GaussNewtonProduct:
    r"""Gauss-Newton matrix: the part of the Hessian that is due to the curvature of the loss.

    .. math:: G = J^\top (\nabla^2_f L)\, J
    """
    jacobian = at.jacobian()
    with at.context():  # a loss may draw random numbers
        metric = output_hessian(at.loss, jacobian.output, at.target)
    return GaussNewtonProduct(jacobian, metric)
