"""Curvature matrices of one batch, known by their products with vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from normscope.curvature.jacobian import Jacobian
from normscope.curvature.output_hessian import OutputHessian
from normscope.problem.diagnose import check_finite
from normscope.problem.evaluate import Evaluation, Evaluator


class BatchCurvature(ABC):
    """The curvature matrix of one batch, known by its products with flat parameter vectors."""

    #: whether the products are known to be those of a symmetric matrix; if not, they are checked
    symmetric = False

    @abstractmethod
    def times(self, vector: Tensor) -> Tensor:
        """Return the matrix times a flat vector."""

    def times_block(self, matrix: Tensor) -> Tensor:
        """Return the matrix times several flat vectors, one column each."""
        block = torch.empty_like(matrix)
        for column in range(matrix.shape[1]):
            block[:, column] = self.times(matrix[:, column].contiguous())
        return block


class GaussNewtonProduct(BatchCurvature):
    r"""A matrix of Gauss-Newton type.

    .. math:: G = J^\top H J

    Args:
        jacobian: J, of the outputs in the parameters.
        metric: H, a symmetric map of tensors in the shape of the output.
    """

    symmetric = True

    def __init__(self, jacobian: Jacobian, metric: OutputHessian) -> None:
        self.jacobian = jacobian
        self.metric = metric

    def times(self, vector: Tensor) -> Tensor:
        """Return the matrix times a flat vector."""
        return self.jacobian.pull_back(self.metric.times(self.jacobian.push_forward(vector)))

    def times_block(self, matrix: Tensor) -> Tensor:
        """Return the matrix times several flat vectors: through J itself if it has no more rows.

        A row of J costs half a product; the rest is three products of matrices.
        """
        shape = self.jacobian.output_shape
        outputs = shape.numel()
        if outputs > matrix.shape[1]:
            return super().times_block(matrix)
        basis = torch.eye(outputs, dtype=self.jacobian.dtype, device=matrix.device)
        units = [unit.view(shape) for unit in basis]
        jacobian = torch.stack([self.jacobian.pull_back(unit) for unit in units])
        metric = torch.stack([self.metric.times(unit).reshape(-1) for unit in units])
        product = jacobian.T @ (metric.to(jacobian.dtype) @ (jacobian @ matrix))
        check_finite(product, "the product of the curvature and a vector")
        return product


class HessianProduct(BatchCurvature):
    """The Hessian of the loss on one batch: each product is one backward pass.

    The pass goes through the graph of the gradient, which is built once and kept.

    Args:
        evaluator: of the model.
        evaluation: its values on one batch, with their graph.
        number: the batch's number.
    """

    symmetric = True  # `check_hessian` looks

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
        """Return the Hessian times a flat vector."""
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
