"""Kinds of curvature by name, one function each: Fisher, Gauss-Newton and Hessian matrix.

A kind is a function registered by ``@KINDS.register``. It takes a `BatchPoint`, the model and loss
on one batch at fixed parameters, and returns the matrix as a `BatchCurvature`. Averaging over
batches, eigenvalues, spectra and traces follow from its products with vectors. The first line of
its docstring is shown by ``normscope list kinds``; see `matrix_name`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor

from normscope.curvature.chains import ChainJacobian, chain_jacobian
from normscope.curvature.jacobian import GraphJacobian, Jacobian
from normscope.curvature.output_hessian import InnerHessian, ScaledIdentity, output_hessian
from normscope.curvature.parts import SplitHessian, independent_parts
from normscope.curvature.products import (
    BatchCurvature,
    DifferencedHessian,
    GaussNewtonProduct,
    HessianProduct,
    check_hessian,
)
from normscope.errors import ShapeError, StateError
from normscope.problem.batch import Batch, batch_count, has_samples
from normscope.problem.error_messages import no_gradient_error
from normscope.problem.evaluate import Evaluation, Evaluator
from normscope.problem.loss import Loss
from normscope.problem.outputs import PackedOutput
from normscope.registry import Registry

__all__ = [
    "KINDS",
    "BatchPoint",
    "Kind",
    "fisher",
    "ggn",
    "hessian",
    "is_mean_over_samples",
    "matrix_name",
    "mean_over_samples",
]

# in `Evaluator.verified`: how products are computed
_BY_GRAPH, _BY_DIFFERENCES = "hessian", "hessian by differences"


@dataclass
class BatchPoint:
    """A model and a loss on one batch, at fixed parameters.

    Args:
        evaluator: evaluates the model without changing it.
        batch: on the model's device.
        number: the batch's number, which fixes its random draws.

    Attributes:
        packed: after `jacobian`, how a structured output became its ``output``; None for a tensor.
    """

    evaluator: Evaluator
    batch: Batch
    number: int = 0
    packed: PackedOutput | None = field(default=None, init=False)

    @property
    def loss(self) -> Loss:
        """The loss, called as ``loss(output, target)``; of a structured output, as one tensor.

        Raises:
            StateError: if a `whole_loss` hides the output, or the model computes the loss itself.
        """
        self._require_outputs()
        loss, packed = self.evaluator.problem.output_loss, self.packed
        if packed is None:
            return loss
        if packed.inner_loss is not None:
            raise StateError(
                "the model computes its loss itself, which is not known at other outputs; give "
                "whole_loss(outputs=..., loss=...)."
            )
        return lambda output, target: loss(packed.unpack(output), target)

    @property
    def target(self) -> Any:
        """The batch's targets; with a `whole_loss` the batch itself."""
        return self.evaluator.problem.target_of(self.batch)

    def context(self) -> AbstractContextManager[None]:
        """Isolate the model and fix its random draws; open it while the model or the loss runs."""
        return self.evaluator.isolated(self.evaluator.leaves(), self.number)

    def evaluate(self) -> Evaluation:
        """Return the output and loss with their autograd graph."""
        return self.evaluator(self.batch, self.number)

    def jacobian(self) -> Jacobian:
        """Return the Jacobian of the outputs in the parameters.

        Raises:
            StateError: if a `whole_loss` hides the output, if the output does not depend on the
                parameters, or if a structured one has no tensors that the loss depends on alone.
        """
        self._require_outputs()
        chain = self.chain()
        if chain is not None:
            return chain
        evaluation = self.evaluator(self.batch, self.number, differentiates_loss=False)
        if evaluation.refusal is not None:
            raise evaluation.refusal
        if evaluation.output is None or not evaluation.output.requires_grad:
            raise _no_dependence_error()
        self.packed = evaluation.packed
        return GraphJacobian(self.evaluator, evaluation, self.batch, self.number)

    def chain(self, curved: bool = False) -> ChainJacobian | None:
        """Return the Jacobian without an autograd graph; None unless the model is a known chain.

        Args:
            curved: whether second derivatives are needed.
        """
        evaluator = self.evaluator
        inputs = evaluator.problem.single_input(self.batch)
        if inputs is None:
            return None
        chain = chain_jacobian(
            evaluator.problem.model,
            inputs,
            mode=evaluator.mode,
            flags=evaluator.flags,
            layout=evaluator.layout,
            point=evaluator.point,
            curved=curved,
        )
        if chain is not None:
            evaluator.check(chain.output, self.batch, self.number)
        return chain

    def _require_outputs(self) -> None:
        if not self.evaluator.problem.has_outputs:
            raise StateError(
                "this kind of curvature needs the model's output, which a whole_loss of one "
                "function does not show; give a loss(output, target), or whole_loss(outputs=..., "
                "loss=...), or use kind='hessian'."
            )


Kind: TypeAlias = Callable[[BatchPoint], BatchCurvature]

KINDS: Registry[Kind] = Registry("kind of curvature")
"""The kinds of curvature by name."""

_SAMPLE_MEANS: set[Kind] = set()


def mean_over_samples(kind: Kind) -> Kind:
    """Decorator: mark a kind as a mean over samples of positive semidefinite matrices.

    Its batches are weighted by their samples, also if the loss is a sum or weights them otherwise,
    and its spectrum begins at zero.
    """
    _SAMPLE_MEANS.add(kind)
    return kind


def is_mean_over_samples(kind: str) -> bool:
    """Return whether a kind is marked by `mean_over_samples`."""
    return KINDS[kind] in _SAMPLE_MEANS


def matrix_name(kind: str) -> str:
    """Return what the matrix of a kind is called in tables and figures.

    That is the part of the docstring's first line before a colon. Without a colon, and for a kind
    that is not registered in this process, it is the registered name and "matrix".

    >>> matrix_name("ggn"), matrix_name("my_kind")
    ('Gauss-Newton matrix', 'my kind matrix')
    """
    noun, colon, _ = KINDS.summary(kind).partition(":") if kind in KINDS else ("", "", "")
    return noun if colon else f"{kind.replace('_', ' ')} matrix"


def _no_dependence_error() -> StateError:
    """Return the error for a model whose parameters have no effect."""
    return StateError(
        "neither the loss nor the output depends on the parameters asked for; check that the "
        "forward pass uses them and detaches nothing."
    )


@KINDS.register
@mean_over_samples
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
        has_graph = check_hessian(at.evaluator, at.batch, at.number)
        verified.add(_BY_GRAPH if has_graph else _BY_DIFFERENCES)
    if _BY_DIFFERENCES in verified:
        return DifferencedHessian(at.evaluator, at.batch, at.number)
    parts = independent_parts(at.evaluator, at.batch, at.number)
    evaluation = _evaluate_loss(at)
    if parts:
        loss = evaluation.loss.item()
        del evaluation  # with its graph
        split = SplitHessian(at.evaluator, parts, at.number)
        if split.has_loss(loss):
            return split
        del split
        evaluation = at.evaluate()
    return HessianProduct(at.evaluator, evaluation, at.number)


def _evaluate_loss(at: BatchPoint) -> Evaluation:
    evaluation = at.evaluate()
    if not evaluation.loss.requires_grad:
        output = evaluation.output
        if output is not None and output.requires_grad:
            raise no_gradient_error()
        raise _no_dependence_error()
    return evaluation


def _chain_hessian(at: BatchPoint, chain: ChainJacobian) -> BatchCurvature | None:
    """Return the Hessian of a chain; None if the loss is not a function of the output alone."""
    loss_of = at.evaluator.problem.loss_of
    # each call in a context of its own: a loss may draw random numbers, or count its calls
    with at.context():
        if loss_of(chain.output.clone(), at.target).requires_grad:
            return None  # it has parameters, or penalizes those of the model
    with at.context():
        output = chain.output.detach().requires_grad_()
        value = loss_of(output.clone(), at.target)  # a loss may overwrite its input
        if not value.requires_grad:
            return None
        (gradient,) = torch.autograd.grad(value, output, materialize_grads=True)
    with at.context():
        metric = output_hessian(at.loss, chain.output, at.target)
    return chain.hessian(gradient, metric)
