"""Curvature of one batch times a vector, one class for each way to multiply."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.curvature.batch_product import BatchProduct
from normscope.curvature.chain import ChainJacobian
from normscope.curvature.chain_hessian import ChainHessian
from normscope.curvature.linearization import GraphLinearization, Linearization
from normscope.curvature.output_hessian import OutputHessian, fisher_metric, output_hessian
from normscope.errors import StateError
from normscope.problem.batch import Batch
from normscope.problem.diagnose import check_finite, no_gradient_error
from normscope.problem.evaluate import Evaluation, Evaluator
from normscope.problem.isolation import MODEL_LOCK
from normscope.problem.loss import Loss, WholeLoss
from normscope.registry import unknown_name

__all__ = [
    "KINDS",
    "BatchProduct",
    "GaussNewtonProduct",
    "HessianProduct",
    "batch_product",
    "chain_product",
]

KINDS = ("fisher", "ggn", "hessian")


class GaussNewtonProduct(BatchProduct):
    r"""The Fisher or Gauss-Newton matrix of one batch.

    .. math:: G = J^\top H J

    Args:
        linearization: J, the Jacobian of the outputs.
        metric: H, the Hessian in the outputs.
    """

    def __init__(self, linearization: Linearization, metric: OutputHessian) -> None:
        self.linearization = linearization
        self.metric = metric

    def times(self, vector: Tensor) -> Tensor:
        """The matrix times a flat vector."""
        tangent = self.linearization.push_forward(vector)
        return self.linearization.pull_back(self.metric.times(tangent))

    def times_block(self, matrix: Tensor) -> Tensor:
        """The matrix times several flat vectors: through J itself if it has no more rows.

        A row of J is half a product; all later work is three products of matrices.
        """
        shape = self.linearization.output_shape
        outputs = shape.numel()
        if outputs > matrix.shape[1]:
            return super().times_block(matrix)
        basis = torch.eye(outputs, dtype=self.linearization.dtype, device=matrix.device)
        units = [unit.view(shape) for unit in basis]
        jacobian = torch.stack([self.linearization.pull_back(unit) for unit in units])
        metric = torch.stack([self.metric.times(unit).reshape(-1) for unit in units])
        product = jacobian.T @ (metric.to(jacobian.dtype) @ (jacobian @ matrix))
        check_finite(product, "the product of the curvature and a vector")
        return product


class HessianProduct(BatchProduct):
    """The Hessian of the loss on one batch: each product is one backward pass.

    The pass goes through the graph of the gradient, which is built once and kept.

    Args:
        evaluator: whose model it is.
        evaluation: its values on one batch, with their graph.
        number: the batch's number.
    """

    def __init__(self, evaluator: Evaluator, evaluation: Evaluation, number: int = 0) -> None:
        self._evaluator = evaluator
        self._leaves = evaluation.leaves
        self._number = number
        with evaluator.isolated(self._leaves, number):
            self._gradients: tuple[Tensor, ...] = torch.autograd.grad(
                evaluation.loss, self._leaves, create_graph=True, materialize_grads=True
            )
        for gradient in self._gradients:
            check_finite(gradient, "the gradient")

    def times(self, vector: Tensor) -> Tensor:
        """The Hessian times a flat vector."""
        layout = self._evaluator.layout
        curved = [
            (gradient, piece.to(gradient.dtype))
            for gradient, piece in zip(self._gradients, layout.split(vector), strict=True)
            if gradient.requires_grad  # not where the loss is linear
        ]
        if not curved:
            return torch.zeros_like(vector)
        with self._evaluator.isolated(self._leaves, self._number):
            products = torch.autograd.grad(
                [gradient for gradient, _ in curved],
                self._leaves,
                [piece for _, piece in curved],
                retain_graph=True,
                allow_unused=True,
            )
        product = layout.join(products)
        check_finite(product, "the product of the Hessian and a vector")
        return product


def batch_product(
    kind: str, evaluator: Evaluator, evaluation: Evaluation, target: Tensor | None, number: int = 0
) -> BatchProduct:
    """The curvature of one batch.

    Args:
        kind: "fisher", "ggn" or "hessian".
        evaluator: whose model it is.
        evaluation: its values on that batch.
        target: the batch's targets; None with a `whole_loss`.
        number: the batch's number.

    Returns:
        The matrix, known by its products.

    Raises:
        StateError: if the kind needs the model's output and a `whole_loss` hides it, or there is
            nothing to differentiate.
    """
    check_kind(kind)
    if not _depends(kind, evaluation):
        if evaluation.output is not None and evaluation.output.requires_grad:
            raise no_gradient_error()
        raise StateError(
            "neither the loss nor the output depends on the parameters asked for; check that the "
            "forward pass uses them and detaches nothing."
        )
    if kind == "hessian":
        return HessianProduct(evaluator, evaluation, number)
    loss, output = evaluator.problem.loss, evaluation.output
    if output is None or target is None or isinstance(loss, WholeLoss):
        raise StateError(
            f"kind={kind!r} needs the model's output, which a whole_loss does not show; give a "
            "loss(output, target), or use kind='hessian'."
        )
    linearization = GraphLinearization(evaluator, evaluation, number)
    with evaluator.isolated(evaluation.leaves, number):  # a loss may draw random numbers
        metric = _metric(kind, loss, output, target)
    return GaussNewtonProduct(linearization, metric)


def chain_product(
    kind: str, evaluator: Evaluator, batch: Batch, number: int = 0
) -> BatchProduct | None:
    """The curvature of one batch without any graph, for a model that is a chain of known layers.

    Args:
        kind: "fisher", "ggn" or "hessian".
        evaluator: whose model it is.
        batch: the batch.
        number: its number.

    Returns:
        The matrix, known by its products; None where only `batch_product` serves.
    """
    problem = evaluator.problem
    loss = problem.loss
    if isinstance(loss, WholeLoss):
        return None
    inputs, target = batch
    model, curved = problem.model, kind == "hessian"
    # to read the model its forward pass is run
    with MODEL_LOCK, evaluator.fixed_randomness(number):
        chain = ChainJacobian.read(
            model, inputs, evaluator.mode, evaluator.layout, evaluator.point, curved
        )
    if chain is None:
        return None
    evaluator.check(chain.output, batch, number)
    with evaluator.isolated(evaluator.leaves(), number):  # a loss may draw random numbers
        if curved:
            return _chain_hessian(chain, evaluator, target, number)
        metric = _metric(kind, loss, chain.output, target)
    return GaussNewtonProduct(chain, metric)


def _chain_hessian(
    chain: ChainJacobian, evaluator: Evaluator, target: Tensor, number: int
) -> ChainHessian | None:
    """The Hessian of a chain; None if the loss is not a function of the output alone."""
    loss_of, loss = evaluator.problem.loss_of, evaluator.problem.loss
    assert not isinstance(loss, WholeLoss | str)
    if loss_of(chain.output.clone(), target).requires_grad:
        return None  # it has parameters of its own, or the model's: a penalty
    with evaluator.fixed_randomness(number):
        output = chain.output.detach().requires_grad_()
        value = loss_of(output.clone(), target)  # which it may overwrite
    if not value.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(value, output, materialize_grads=True)
    with evaluator.fixed_randomness(number):
        return ChainHessian(chain, gradient, output_hessian(loss, chain.output, target))


def check_kind(kind: str) -> None:
    """Refuse an unknown kind of curvature, naming the choices."""
    if kind not in KINDS:
        raise unknown_name("kind of curvature", kind, KINDS)


def _metric(kind: str, loss: Loss | str, output: Tensor, target: Tensor) -> OutputHessian:
    """The Hessian in the outputs that makes J^T H J the matrix of that kind."""
    assert not isinstance(loss, str)  # Problem has looked the name up
    return fisher_metric(output) if kind == "fisher" else output_hessian(loss, output, target)


def _depends(kind: str, evaluation: Evaluation) -> bool:
    whole = kind == "hessian" or evaluation.output is None
    value = evaluation.loss if whole else evaluation.output
    return value is not None and value.requires_grad
