"""The Hessian of the loss."""

from __future__ import annotations

import torch

from normscope.curvature.chains import ChainJacobian
from normscope.curvature.kinds import KINDS, BatchPoint, no_dependence_error
from normscope.curvature.output_hessian import output_hessian
from normscope.curvature.products import BatchCurvature, HessianProduct
from normscope.curvature.second_derivatives import DifferencedHessian, check_hessian
from normscope.problem.diagnose import no_gradient_error

# in `Evaluator.verified`: how products are computed
_BY_GRAPH, _BY_DIFFERENCES = "hessian", "hessian by differences"


@KINDS.register
def hessian(at: BatchPoint) -> BatchCurvature:
    r"""Hessian: the second derivatives of the loss in the parameters.

    .. math:: H = \nabla^2_\theta L
    """
    chain = at.chain(curved=True)
    product = None if chain is None else _chain_hessian(at, chain)
    if product is not None:
        return product
    verified = at.evaluator.verified
    if not verified.intersection((_BY_GRAPH, _BY_DIFFERENCES)):
        served = check_hessian(at.evaluator, at.batch, at.number)
        verified.add(_BY_GRAPH if served else _BY_DIFFERENCES)
    if _BY_DIFFERENCES in verified:
        return DifferencedHessian(at.evaluator, at.batch, at.number)
    evaluation = at.evaluate()
    if not evaluation.loss.requires_grad:
        output = evaluation.output
        if output is not None and output.requires_grad:
            raise no_gradient_error()
        raise no_dependence_error()
    return HessianProduct(at.evaluator, evaluation, at.number)


def _chain_hessian(at: BatchPoint, chain: ChainJacobian) -> BatchCurvature | None:
    """Return the Hessian of a chain; None if the loss is not a function of the output alone."""
    loss_of, randomness = at.evaluator.problem.loss_of, at.evaluator.fixed_randomness
    with at.context():  # a loss may draw random numbers, the same ones each time
        if loss_of(chain.output.clone(), at.target).requires_grad:
            return None  # it has parameters, or penalizes those of the model
        with randomness(at.number):
            output = chain.output.detach().requires_grad_()
            value = loss_of(output.clone(), at.target)  # a loss may overwrite its input
        if not value.requires_grad:
            return None
        (gradient,) = torch.autograd.grad(value, output, materialize_grads=True)
        with randomness(at.number):
            metric = output_hessian(at.loss, chain.output, at.target)
        return chain.hessian(gradient, metric)
