"""Curvature matrices of one batch, known by their products with vectors.

Second derivatives are checked once for a measurement: that they are complete and symmetric.
"""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from normscope.curvature.jacobian import Jacobian, derivative_along
from normscope.curvature.missing_derivatives import (
    LARGEST_ERROR,
    Differences,
    custom_functions,
    find_missing_derivative,
    lacks_derivative,
)
from normscope.curvature.output_hessian import OutputHessian
from normscope.curvature.precision import OTHER_SCALE, evaluate_in_double, perturbed
from normscope.errors import StateError
from normscope.problem.batch import Batch
from normscope.problem.error_messages import check_finite
from normscope.problem.evaluate import Evaluation, Evaluator
from normscope.problem.parameters import ParameterLayout

_ASYMMETRY = 1e-6  # of the product's length, in float64; smaller wrong derivatives do not matter
_KIND_ASYMMETRY = 1e-3  # of a user-defined kind, whose rounding is not known
_NOISE = 10.0  # times the rounding of the products, which may cause as much
_CHANGE = 5e-7  # relative, of the parameters: shows the rounding of float32 inside a model
_DIFFERENCED = "differenced hessian"  # in `Evaluator.verified`
_LOGGER = logging.getLogger(__name__)


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

    symmetric = True  # checked by `check_hessian`

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
        with self._evaluator.isolated(self._leaves, self._number):
            products = derivative_along(layout.split(vector), self._gradients, self._leaves)
        if products is None:
            return torch.zeros_like(vector)
        product = layout.join(products)
        check_finite(product, "the product of the Hessian and a vector")
        return product


def check_hessian(evaluator: Evaluator, batch: Batch, number: int) -> bool:
    """Return whether torch has the second derivatives of a model; raise if they are wrong.

    The check runs on a few samples in float64, where both stand out from rounding; it costs about
    five passes on these samples. For a model that takes neither float64 nor so few samples it runs
    on the batch, and costs about as much as three products.

    Args:
        evaluator: of the model.
        batch: the batch.
        number: its number.

    Returns:
        False if torch raises that it cannot differentiate the gradient of an operation.

    Raises:
        StateError: if a derivative is wrong, or taken as zero without an error.
    """
    double = evaluate_in_double(evaluator, batch, number)
    try:
        found = None if double is None else _find_error(*double, number)
    except Exception as reason:  # user code that takes no float64, or not so few samples
        if lacks_derivative(reason):
            return False
        _LOGGER.debug("derivatives are not checked in float64: %s", reason)
        double = None
    if double is None:
        try:
            found = _find_error(evaluator, batch, evaluator(batch, number), number)
        except RuntimeError as reason:
            if lacks_derivative(reason):
                return False
            raise
    if found is not None:
        raise found
    return True


def _find_error(
    evaluator: Evaluator, batch: Batch, evaluation: Evaluation, number: int
) -> StateError | None:
    if not evaluation.loss.requires_grad:
        return None  # the caller raises another error

    def moved(change: float) -> Evaluation:
        return evaluation if change == 0 else _move(evaluator, change)(batch, number)

    if custom_functions(evaluation.loss):
        with evaluator.isolated(evaluation.leaves, number):  # functions may read the model
            error = find_missing_derivative(lambda change: moved(change).loss)
        if error is not None:
            return error
    product = HessianProduct(evaluator, evaluation, number)
    difference, image = asymmetry(product.times, evaluator.layout)
    if difference <= _ASYMMETRY:
        return None
    other = HessianProduct(_move(evaluator, _CHANGE), moved(_CHANGE), number)
    _, elsewhere = asymmetry(other.times, evaluator.layout)
    _, scaled = asymmetry(lambda u: product.times(u * OTHER_SCALE) / OTHER_SCALE, evaluator.layout)
    rounding = max(float((each - image).norm() / image.norm()) for each in (elsewhere, scaled))
    return _asymmetry_error(difference) if difference > _NOISE * rounding else None


def _asymmetry_error(difference: float) -> StateError:
    return StateError(
        f"the products are not those of a symmetric matrix (by {difference:.1e} of their length): "
        "an operation of the model or loss has a wrong second derivative; write it in other torch "
        "operations, or use kind='ggn' or 'fisher'."
    )


class DifferencedHessian(BatchCurvature):
    """The Hessian of the loss on one batch, by differences of gradients.

    It is for operations whose gradient torch cannot differentiate. A product costs two gradients,
    in float64 if the model takes it.

    Args:
        evaluator: of the model.
        batch: the batch.
        number: its number.

    Raises:
        StateError: if the products are not those of a symmetric matrix.
    """

    symmetric = True  # checked here

    def __init__(self, evaluator: Evaluator, batch: Batch, number: int) -> None:
        self._differences = Differences(
            *(evaluator, batch, number, _gradient), "products with the Hessian"
        )
        if _DIFFERENCED not in evaluator.verified:
            difference, _ = asymmetry(self.times, evaluator.layout)
            if difference > LARGEST_ERROR:
                raise _asymmetry_error(difference)
            self._differences.state_error()
            evaluator.verified.add(_DIFFERENCED)

    def times(self, vector: Tensor) -> Tensor:
        """Return the Hessian times a flat vector."""
        return self._differences.times(vector)


def _gradient(evaluation: Evaluation) -> Tensor:
    gradients = torch.autograd.grad(evaluation.loss, evaluation.leaves, materialize_grads=True)
    return torch.cat([gradient.reshape(-1) for gradient in gradients])


def _move(evaluator: Evaluator, change: float) -> Evaluator:
    """Return the evaluator at parameters that differ by a relative change, at random."""
    names = evaluator.layout.names
    moved = {name: perturbed(evaluator.point[name], change, k) for k, name in enumerate(names)}
    return evaluator.on(evaluator.problem, moved)


def asymmetry(times: Callable[[Tensor], Tensor], layout: ParameterLayout) -> tuple[float, Tensor]:
    """Return how far products are from those of a symmetric matrix, by two random vectors.

    Args:
        times: the matrix times a vector.
        layout: of the vectors.

    Returns:
        The difference of u'Av and v'Au, relative to the length of the products, and the product Av.
        A vector of rounding errors changes it by about its relative length.
    """
    u, v = _random_vectors(2, layout)
    left, right = times(u).double(), times(v).double()
    lengths = float(left.norm() + right.norm())
    difference = float(torch.dot(u.double(), right) - torch.dot(v.double(), left))
    return abs(difference) / lengths if lengths > 0 else 0.0, right


def _random_vectors(count: int, layout: ParameterLayout) -> Iterator[Tensor]:
    """Yield vectors of random bytes with variance one; normal numbers take as long as a product."""
    generator = torch.Generator().manual_seed(0)
    words = -(-layout.size // 8)
    for _ in range(count):
        drawn = torch.empty(words, dtype=torch.int64).random_(-(2**63), None, generator=generator)
        signed = drawn.view(torch.int8)[: layout.size].to(layout.device, layout.dtype)
        yield signed.mul_(math.sqrt(12) / 256)


def check_symmetric(times: Callable[[Tensor], Tensor], layout: ParameterLayout, kind: str) -> None:
    """Raise `StateError` if the matrix of a user-defined kind is not symmetric.

    Args:
        times: the matrix times a vector.
        layout: of the vectors.
        kind: its name.
    """
    error, _ = asymmetry(times, layout)
    if error > max(_KIND_ASYMMETRY, 64 * torch.finfo(layout.dtype).eps):
        raise StateError(
            f"the kind {kind!r} must give the products of a symmetric matrix, but they differ from "
            f"those of its transpose by {error:.1e} of their length; correct its times method."
        )
