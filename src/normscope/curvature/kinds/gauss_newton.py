"""The Fisher and the Gauss-Newton matrix."""

from __future__ import annotations

from normscope.curvature.kinds import KINDS, BatchPoint
from normscope.curvature.output_hessian import ScaledIdentity, output_hessian
from normscope.curvature.products import GaussNewtonProduct
from normscope.errors import StateError


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
    _require_loss_of_output(at)
    with at.context():  # a loss may draw random numbers
        metric = output_hessian(at.loss, jacobian.output, at.target)
    return GaussNewtonProduct(jacobian, metric)


def _require_loss_of_output(at: BatchPoint) -> None:
    """Refuse a loss that depends on parameters beside the output: the matrix would lack that."""
    name = at.evaluator.direct_parameter()
    if name is not None:
        raise StateError(
            f"the loss uses the parameter {name!r} beside the model's output, which a Gauss-Newton "
            "matrix does not include; use kind='hessian'."
        )
