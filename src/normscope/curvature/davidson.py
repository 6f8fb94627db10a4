"""Davidson's method: the largest eigenvalues of an operator, guided by a small model of it.

`Davidson` is the iteration. `MeanModel` is the model: the matrix among the mean gradients, from a
part of the data. Its directions are a `Frame`: `Consensus` among output vectors, `MeanGradients`
among parameter vectors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.curvature.lanczos import Basis, RitzPairs, value_errors, wanted_positions
from normscope.curvature.precision import components, length
from normscope.curvature.spaces import OutputSpace

_SMALL_RESIDUAL = 0.02  # of a value, from which gaps between values found are trusted
_LEAST_DOUBT = 0.01  # of a value: uncertainty of the model's eigenvalues, at least
_DOUBT = 0.75  # of the model's misfit
_LEAST_AGREEMENT = 0.5  # squared part of a vector in the frame, below which errors are unknown
_LEAST_GAP = 0.02  # of a value: smallest divisor of a correction
_ELSEWHERE = 0.3  # of a value: rough upper end of the eigenvalues outside the frame
# How many residuals a value amid close, evenly spaced eigenvalues is short of the largest: half
# their range over their standard deviation.
_UNRESOLVED = math.sqrt(3)
_SMALLEST = 1e-3  # of the largest eigenvalue: smaller ones are left out of the gradient model


class Davidson(Basis):
    """A growing orthonormal basis whose new directions are chosen by a model of the operator.

    Lanczos adds the new part of the last product. A model that knows part of the spectrum divides
    each component of a residual by the gap to its eigenvalue. The products are kept, so that
    residuals are exact for any directions; this doubles the memory of Lanczos and is meant for
    spaces whose vectors are small.

    Args:
        product: the operator, on flat vectors.
        start: (size, block), linearly independent columns.
        basis_limit: how many vectors may be held, and as many products.
        generator: of random vectors, drawn when the basis spans an invariant subspace.
        mean_model: of the operator.
        which: which eigenvalues are wanted, as in `wanted_positions`.
    """

    def __init__(
        self,
        product: Callable[[Tensor], Tensor],
        start: Tensor,
        basis_limit: int,
        generator: torch.Generator,
        mean_model: MeanModel,
        which: str,
    ) -> None:
        super().__init__(product, start, basis_limit, generator)
        self._images = torch.empty_like(self._basis)
        self._mean_model = mean_model
        self._which = which
        # coordinates of the basis and of the images in the model's frame
        shape = len(self._basis), len(mean_model.matrix)
        self._means, self._moved = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))

    def step(self) -> None:
        """Multiply the next basis vector by the operator: one product."""
        if self.done == self.held:
            self._append(self._direction())
        row = self.done
        vector = self._basis[row]
        image = self._product(vector)
        self.products += 1
        coefficients = components(self._basis[: self.held], image)
        self._images[row] = image
        self._means[row] = self._mean_model.frame.means(vector)
        self._moved[row] = self._mean_model.frame.means(image)
        self._projected[: self.held, row] = coefficients
        self._projected[row, :row] = coefficients[:row]
        self.done += 1

    def ritz_pairs(self, which: str, count: int) -> RitzPairs:
        """Return the best approximations in the basis, with the model's error estimates.

        Once a residual is small, the gap to the next value in the basis may give a smaller one.

        Args:
            which: as in `wanted_positions`.
            count: how many.

        Returns:
            The pairs; fewer if fewer vectors were multiplied.
        """
        values, coefficients, norm = self._best(which, count + 1)
        residuals = self._lengths(self._residuals(values, coefficients))
        by_gaps = torch.where(
            residuals <= _SMALL_RESIDUAL * values.abs(), value_errors(values, residuals), torch.inf
        )[:count]
        values, coefficients, residuals = values[:count], coefficients[:, :count], residuals[:count]
        estimates = self._estimates(values, coefficients, residuals)
        errors = values.new_tensor([estimate.error for estimate in estimates])
        return RitzPairs(values, coefficients, residuals, errors.minimum(by_gaps), norm)

    def compress(self, which: str, keep: int) -> None:
        """Keep the best Ritz vectors and their products; drop the rest.

        Args:
            which: as in `wanted_positions`.
            keep: how many Ritz vectors, less than were multiplied.
        """
        assert self.done == self.held  # the start is far smaller than the limit
        values, coefficients, _ = self._best(which, keep)
        kept = len(values)
        for rows in (self._basis, self._images, self._means, self._moved):
            rows[:kept] = coefficients.T.to(rows) @ rows[: self.done]
        self._projected.zero_()
        self._projected[:kept, :kept] = torch.diag(values)
        self.done = self.held = kept

    def _best(self, which: str, count: int) -> tuple[Tensor, Tensor, float]:
        """Return Ritz values and vectors in the basis, and the largest magnitude of all values."""
        values, vectors = self._eigen()
        chosen = wanted_positions(values, which, count)
        return values[chosen], vectors[:, chosen], float(values.abs().max())

    def _direction(self) -> Tensor:
        """Return the direction towards the wanted eigenvector with the largest residual."""
        values, coefficients, _ = self._best(self._which, self.block)
        residuals = self._residuals(values, coefficients)
        lengths = self._lengths(residuals)
        worst = int(lengths.argmax())
        weights = self._estimates(values, coefficients, lengths)[worst].weights
        residual = residuals[:, worst].contiguous()
        return residual.add_(self._mean_model.frame.vector(weights, residual))

    @staticmethod
    def _lengths(columns: Tensor) -> Tensor:
        return torch.tensor([length(column) for column in columns.T], dtype=torch.float64)

    def _residuals(self, values: Tensor, coefficients: Tensor) -> Tensor:
        """Return A x - theta x for each Ritz pair, one column each."""
        images = self._images[: self.done]
        return (images.T @ coefficients.to(images)).sub_(self.combination(coefficients * values))

    def _estimates(
        self, values: Tensor, coefficients: Tensor, lengths: Tensor
    ) -> list[ErrorEstimate]:
        """Return the model's estimate for each Ritz pair."""
        means = self._means[: self.done].T @ coefficients
        moved = self._moved[: self.done].T @ coefficients
        return [
            self._mean_model.estimate(float(value), float(length), x, image, means)
            for value, length, x, image in zip(values, lengths, means.T, moved.T, strict=True)
        ]


class Frame(ABC):
    """Orthonormal vectors Z of a large space, never stored."""

    #: cost of using it in one step, in products with the operator
    cost: float = 0.0

    @abstractmethod
    def means(self, vector: Tensor) -> Tensor:
        """Return Z^T times a vector, in float64 on the CPU."""

    @abstractmethod
    def vector(self, means: Tensor, like: Tensor) -> Tensor:
        """Return Z times one coefficient per vector, in the dtype and on the device of ``like``."""


@dataclass(frozen=True)
class Consensus(Frame):
    r"""Vectors over the outputs of a batch that are the same for every sample.

    .. math:: Z = 1 / \sqrt m \otimes I

    Args:
        samples: m, in the batch.

    >>> pair = Consensus(samples=4)
    >>> vector = pair.vector(torch.tensor([2.0, 6.0]), like=torch.ones(1))
    >>> vector
    tensor([1., 3., 1., 3., 1., 3., 1., 3.])
    >>> pair.means(vector)
    tensor([2., 6.], dtype=torch.float64)
    """

    samples: int

    def means(self, vector: Tensor) -> Tensor:
        """Return Z^T times a vector: one entry for each output."""
        summed = vector.view(self.samples, -1).sum(0, dtype=torch.float64)
        return summed.cpu().div(math.sqrt(self.samples))

    def vector(self, means: Tensor, like: Tensor) -> Tensor:
        """Return Z times one entry for each output."""
        return means.double().div(math.sqrt(self.samples)).to(like).repeat(self.samples)


@dataclass(frozen=True)
class MeanGradients(Frame):
    r"""Orthonormal combinations of the mean gradients, through the Jacobian of a part of the data.

    .. math:: Z = K^\top C\, U S^{-1}, \qquad (C^\top K)(C^\top K)^\top = U S^2 U^\top

    No gradient is stored: multiplying by Z costs half a product on the part.

    Notation: K^T = from the part's outputs to the parameters, C = its `Consensus`.

    Args:
        space: of a part of the data.
        combinations: U S^{-1}, one column each.
        cost: of a step, which multiplies by Z three times, in products on all data.
    """

    space: OutputSpace
    combinations: Tensor
    cost: float = 0.0

    def means(self, vector: Tensor) -> Tensor:
        """Return Z^T times a parameter vector."""
        consensus = Consensus(self.space.samples)
        return self.combinations.T @ consensus.means(self.space.embed(vector))

    def vector(self, means: Tensor, like: Tensor) -> Tensor:
        """Return Z times one coefficient for each combination."""
        consensus = Consensus(self.space.samples)
        combined = consensus.vector(self.combinations @ means, self.space.like)
        return self.space.pull_back(combined).to(like)


@dataclass(frozen=True)
class ErrorEstimate:
    """A model's prediction from a residual.

    Args:
        error: estimated shortfall of the value from its eigenvalue.
        weights: coefficients in the model's frame that turn the residual towards the eigenvector
            when added to it.
    """

    error: float
    weights: Tensor


class MeanModel:
    r"""A curvature matrix restricted to the directions on which all samples of a batch agree.

    The largest eigenvectors of a Fisher or Gauss-Newton matrix over the outputs are nearly the same
    for every sample, one for each output: they belong to the mean gradients, from which wei2018
    derives its bound of the eigenvalue. In that frame Z the matrix A is approximated by a small
    matrix B, computed on a part of the data, up to a scale s:

    .. math:: A \approx s\, Z B Z^\top

    The residual r of a pair (theta, x) is decomposed into parts c_j along the eigenvectors of s B,
    with the wanted vectors removed, and a rest r_0. With gaps g_j = theta - mu_j to their
    eigenvalues, the next direction is Davidson's, and the error that of second-order perturbation
    theory:

    .. math:: t = \frac{r_0}{\theta} + \sum_j \frac{c_j}{g_j} z_j, \qquad
        \lambda - \theta \approx \frac{|r_0|^2}{\theta - \mu_0} + \sum_j \frac{c_j^2}{g_j}

    The uncertainty of a gap is three quarters of the difference between 1/s and one. If it exceeds
    the gap, that part of the residual counts as it is, not squared. So does the whole residual of a
    vector on which the samples do not agree.

    Reference: wei2018, Claim 3.1.

    Args:
        matrix: B, float64, symmetric.
        frame: Z, of the whole batch.
    """

    def __init__(self, matrix: Tensor, frame: Frame) -> None:
        self.matrix = matrix
        self.frame = frame

    def gap(self) -> float:
        """Return the distance of the two largest eigenvalues of B, relative to the largest."""
        values = torch.linalg.eigvalsh(self.matrix)
        return float(1 - values[-2] / values[-1]) if len(values) > 1 else 1.0

    def estimate(
        self, value: float, length: float, means: Tensor, moved: Tensor, wanted: Tensor
    ) -> ErrorEstimate:
        """Estimate the next direction and the error of a value.

        Args:
            value: theta, an approximate eigenvalue.
            length: of the residual A x - theta x.
            means: Z^T x, for x of length one.
            moved: Z^T A x.
            wanted: Z^T times every wanted vector, one column each: directions to leave out.

        Returns:
            The estimate; from the residual alone where the model does not apply.
        """
        scale = self._scale(means, moved)
        if value <= 0 or scale is None:
            return ErrorEstimate(_UNRESOLVED * length, torch.zeros_like(means))
        eigenvalues, directions = self._without(wanted)
        parts = directions.T @ (moved - value * means)
        gaps = value - scale * eigenvalues
        doubt = value * max(_LEAST_DOUBT, _DOUBT * abs(1 / scale - 1))
        divisors = gaps.clamp(min=max(_LEAST_GAP * value, doubt / 2))
        error = _UNRESOLVED * length
        if float(means.square().sum()) >= _LEAST_AGREEMENT:
            rest = max(0.0, length**2 - float(parts.square().sum()))
            error = _shortfall(parts, gaps - doubt) + rest / (value - _ELSEWHERE * value)
        return ErrorEstimate(error, directions @ (parts * (value / divisors - 1)))

    def _scale(self, means: Tensor, moved: Tensor) -> float | None:
        """Return the s for which s B x is closest to A x in the frame; None if not positive."""
        predicted = self.matrix @ means
        square = float(predicted @ predicted)
        scale = float(moved @ predicted) / square if square > 0 else 0.0
        return scale if scale > 0 else None

    def _without(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Return the eigenvalues and eigenvectors of B outside the span of some columns."""
        full, _ = torch.linalg.qr(wanted, mode="complete")
        others = full[:, wanted.shape[1] :]
        eigenvalues, vectors = torch.linalg.eigh(others.T @ self.matrix @ others)
        return eigenvalues, others @ vectors


def _shortfall(parts: Tensor, gaps: Tensor) -> float:
    """Return the estimated gain of a value from following the parts of its residual."""
    resolved = gaps > parts.norm()
    shifted = parts[resolved].square() / gaps[resolved]
    return float(shifted.sum() + _UNRESOLVED * parts[~resolved].norm())


def agreement(space: OutputSpace, seed: int) -> float:
    """Return the share of a product that is the same for every sample, for a vector that is.

    Args:
        space: of a part of the data.
        seed: of the vector.

    Returns:
        The share of the squared length, 0 to 1. It takes one product.
    """
    consensus = Consensus(space.samples)
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(space.size // space.samples, generator=generator)
    image = space.times(consensus.vector(drawn / drawn.norm(), space.like))
    total = float(image.double().square().sum())
    return float(consensus.means(image).square().sum()) / total if total > 0 else 0.0


def output_model(space: OutputSpace, samples: int) -> MeanModel:
    """Return the matrix among output vectors that are the same for every sample.

    Args:
        space: of a part of the data.
        samples: in the whole data that the model is for.

    Returns:
        The model. It takes half a product for each output.
    """
    consensus = Consensus(space.samples)
    outputs = torch.eye(space.size // space.samples)
    vectors = [consensus.vector(one, space.like) for one in outputs]
    return MeanModel(space.inner_products(vectors), Consensus(samples))


def gradient_model(means: MeanModel, space: OutputSpace, share: float) -> MeanModel:
    """Return the same matrix among parameter vectors that are combinations of mean gradients.

    Args:
        means: the matrix among output vectors.
        space: of the part of the data that it comes from.
        share: of all data in that part.

    Returns:
        The model; it keeps the space.
    """
    eigenvalues, vectors = torch.linalg.eigh(means.matrix)
    large = eigenvalues > _SMALLEST * eigenvalues[-1]
    combinations = vectors[:, large] / eigenvalues[large].sqrt()
    frame = MeanGradients(space, combinations, cost=1.5 * share)
    return MeanModel(torch.diag(eigenvalues[large]), frame)


def top_means(model: MeanModel, space: OutputSpace, count: int) -> Tensor:
    """Return the largest eigenvectors of a matrix among output vectors, as vectors of a space.

    Args:
        model: of the mean gradients.
        space: of a part of the data.
        count: how many; at most one for each output.

    Returns:
        One column each, the largest first.
    """
    consensus = Consensus(space.samples)
    _, vectors = torch.linalg.eigh(model.matrix)
    largest = vectors.flip(1)[:, :count]
    return torch.stack([consensus.vector(column, space.like) for column in largest.T], dim=1)
