"""Checks that second derivatives are complete and symmetric, made once for a measurement."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from normscope.curvature.custom_functions import custom_functions, find_missing_derivative
from normscope.curvature.directional import LARGEST_ERROR, Differences, lacks_derivative
from normscope.curvature.precision import evaluate_in_double, perturbed
from normscope.curvature.products import BatchCurvature, HessianProduct
from normscope.errors import StateError
from normscope.problem.batch import Batch
from normscope.problem.evaluate import Evaluation, Evaluator

_ASYMMETRY = 1e-6  # of the product's length, in float64; smaller wrong derivatives do not matter
_KIND_ASYMMETRY = 1e-3  # of a user-defined kind, whose rounding is not known
_NOISE = 10.0  # times the rounding of the products, which may cause as much
_CHANGE = 5e-7  # relative, of the parameters: shows the rounding of float32 inside a model
_SCALE = 1.37  # of vectors: not a power of two, which would round in the same way
_DIFFERENCED = "differenced hessian"  # in `Evaluator.verified`
_LOGGER = logging.getLogger(__name__)


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
        False if torch cannot differentiate the gradient of an operation, and says so.

    Raises:
        StateError: if a derivative is wrong, or missing without a word.
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
    difference, image = asymmetry(product.times, evaluator.layout.join(evaluation.leaves).detach())
    if difference <= _ASYMMETRY:
        return None
    other = HessianProduct(_move(evaluator, _CHANGE), moved(_CHANGE), number)
    _, elsewhere = asymmetry(other.times, image)
    _, scaled = asymmetry(lambda vector: product.times(vector * _SCALE) / _SCALE, image)
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
            like = evaluator.layout.join(evaluator.leaves()).detach()
            difference, _ = asymmetry(self.times, like)
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


def asymmetry(times: Callable[[Tensor], Tensor], like: Tensor) -> tuple[float, Tensor]:
    """Return how far products are from those of a symmetric matrix, by two random vectors.

    Args:
        times: the matrix times a vector.
        like: a vector of the right size, dtype and device.

    Returns:
        The difference of u'Av and v'Au, relative to the length of the products, and the product Av.
        A vector of rounding errors changes it by about its relative length.
    """
    u, v = _random_vectors(2, like)
    left, right = times(u).double(), times(v).double()
    lengths = float(left.norm() + right.norm())
    difference = float(torch.dot(u.double(), right) - torch.dot(v.double(), left))
    return abs(difference) / lengths if lengths > 0 else 0.0, right


def _random_vectors(count: int, like: Tensor) -> Iterator[Tensor]:
    """Yield vectors of random bytes with variance one; normal numbers take as long as a product."""
    generator = torch.Generator().manual_seed(0)
    words = -(-len(like) // 8)
    for _ in range(count):
        drawn = torch.empty(words, dtype=torch.int64).random_(-(2**63), None, generator=generator)
        signed = drawn.view(torch.int8)[: len(like)].to(like.device, like.dtype)
        yield signed.mul_(math.sqrt(12) / 256)


def check_symmetric(times: Callable[[Tensor], Tensor], like: Tensor, kind: str) -> None:
    """Raise `StateError` if the matrix of a user-defined kind is not symmetric.

    Args:
        times: the matrix times a vector.
        like: a vector of the right size, dtype and device.
        kind: its name.
    """
    error, _ = asymmetry(times, like)
    if error > max(_KIND_ASYMMETRY, 64 * torch.finfo(like.dtype).eps):
        raise StateError(
            f"the kind {kind!r} must give the products of a symmetric matrix, but they differ from "
            f"those of its transpose by {error:.1e} of their length; correct its times method."
        )
