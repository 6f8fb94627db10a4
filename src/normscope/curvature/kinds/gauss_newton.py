"""The Fisher and the Gauss-Newton matrix."""

from __future__ import annotations

from torch import Tensor

from normscope.curvature.jacobian import Jacobian
from normscope.curvature.kinds import KINDS, BatchPoint
from normscope.curvature.output_hessian import InnerHessian, ScaledIdentity, output_hessian
from normscope.curvature.products import GaussNewtonProduct
from normscope.errors import ShapeError, StateError
from normscope.problem.batch import batch_count, has_samples


@KINDS.register
def fisher(at: BatchPoint) -> GaussNewtonProduct:
    r"""Fisher matrix: mean over samples of the outer products of the outputs' gradients.

    .. math:: F = \frac1m J^\top J

    Reference: wei2018, Eq. (10).
    """
    jacobian = at.jacobian()
    return GaussNewtonProduct(jacobian, ScaledIdentity(1 / _samples(at, jacobian)))


def _samples(at: BatchPoint, jacobian: Jacobian) -> int:
    """Return m: the samples or graphs of the batch, or the rows of both output and targets."""
    if has_samples(at.batch) or getattr(at.batch, "num_graphs", 1) > 1:
        return batch_count(at.batch)
    output, target = jacobian.output, at.target
    rows_agree = isinstance(target, Tensor) and target.dim() > 0 and len(target) == len(output)
    if at.packed is None and rows_agree:
        return len(output)
    raise ShapeError(
        "the Fisher matrix is a mean over samples, but the tensors of the batch have different "
        "numbers of rows; use kind='ggn' or 'hessian', which need no samples."
    )


@KINDS.register
def ggn(at: BatchPoint) -> GaussNewtonProduct:
    r"""Gauss-Newton matrix: the part of the Hessian that is due to the curvature of the loss.

    .. math:: G = J^\top (\nabla^2_f L)\, J
    """
    jacobian = at.jacobian()
    _require_loss_of_output(at)
    with at.context():  # a loss may draw random numbers
        if at.packed is not None and at.packed.inner_loss is not None:
            return GaussNewtonProduct(jacobian, InnerHessian(at.packed, at.packed.inner_loss))
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
