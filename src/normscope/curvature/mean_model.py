"""A small model of a curvature: what it does to directions in which the samples agree."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Consensus", "Estimate", "Frame", "MeanModel"]

_LEAST_DOUBT = 0.01  # of a value: the model's eigenvalues are never taken as better known
_DOUBT = 0.75  # of the model's misfit
_LEAST_AGREEMENT = 0.5  # of a vector, without which the model knows nothing of its neighbours
_LEAST_GAP = 0.02  # of a value, that a correction divides by
_ELSEWHERE = 0.3  # of a value: where eigenvalues of directions without agreement end, roughly
# Residuals that a value in the middle of close eigenvalues is short of the largest by, if they are
# evenly spaced: half their range over its standard deviation.
_UNRESOLVED = math.sqrt(3)


class Frame(ABC):
    """Some orthonormal vectors Z of a large space, never written down."""

    #: what a step that meets it costs, in products with the operator
    cost: float = 0.0

    @abstractmethod
    def means(self, vector: Tensor) -> Tensor:
        """Z^T times a vector, in float64 on the CPU."""

    @abstractmethod
    def vector(self, means: Tensor, like: Tensor) -> Tensor:
        """Z times one number for each; its dtype and device are those of another tensor."""


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
        """Z^T times a vector: one entry for each output."""
        summed = vector.view(self.samples, -1).sum(0, dtype=torch.float64)
        return summed.cpu().div(math.sqrt(self.samples))

    def vector(self, means: Tensor, like: Tensor) -> Tensor:
        """Z times one entry for each output."""
        return means.double().div(math.sqrt(self.samples)).to(like).repeat(self.samples)


@dataclass(frozen=True)
class Estimate:
    """What a model makes of a residual.

    Args:
        error: by how much the value is short of its eigenvalue.
        weights: what to add to the residual along the model's frame, so that it points to the
            eigenvector.
    """

    error: float
    weights: Tensor


class MeanModel:
    r"""A curvature matrix, known where all samples of a batch agree.

    The largest eigenvectors of a Fisher or Gauss-Newton matrix over the outputs are nearly the same
    for every sample, one for each output: they belong to the mean gradients, from which wei2018 has
    its bound of the eigenvalue. In that frame Z the matrix A is a small one, B, and a part of the
    data gives that nearly; s is what the part has too much or too little of:

    .. math:: A \approx s\, Z B Z^\top

    The residual r of a pair (theta, x) is divided into parts c_j along the eigenvectors of s B,
    the wanted vectors taken out, and a rest r_0. With gaps g_j = theta - mu_j to their eigenvalues
    the next direction is Davidson's, and the error that of second-order perturbation theory:

    .. math:: t = \frac{r_0}{\theta} + \sum_j \frac{c_j}{g_j} z_j, \qquad
        \lambda - \theta \approx \frac{|r_0|^2}{\theta - \mu_0} + \sum_j \frac{c_j^2}{g_j}

    The gaps are doubted by three quarters of what 1/s differs from one. A gap that this closes says
    nothing: its part of the residual then counts as it is, not squared. So does the whole residual
    of a vector on which the samples do not agree.

    Reference: wei2018, Claim 3.1.

    Args:
        matrix: B, float64, symmetric.
        frame: Z, of the whole batch.
    """

    def __init__(self, matrix: Tensor, frame: Frame) -> None:
        self.matrix = matrix
        self.frame = frame

    def estimate(
        self, value: float, length: float, means: Tensor, moved: Tensor, wanted: Tensor
    ) -> Estimate:
        """Where to look next, and how much a value lacks.

        Args:
            value: theta, an approximate eigenvalue.
            length: of the residual A x - theta x.
            means: Z^T x, for x of length one.
            moved: Z^T A x.
            wanted: Z^T times every wanted vector, one column each: directions not to look in.

        Returns:
            The estimate; of the residual alone where the model says nothing.
        """
        scale = self._scale(means, moved)
        if value <= 0 or scale is None:
            return Estimate(_UNRESOLVED * length, torch.zeros_like(means))
        eigenvalues, directions = self._without(wanted)
        parts = directions.T @ (moved - value * means)
        gaps = value - scale * eigenvalues
        doubt = value * max(_LEAST_DOUBT, _DOUBT * abs(1 / scale - 1))
        divisors = gaps.clamp(min=max(_LEAST_GAP * value, doubt / 2))
        error = _UNRESOLVED * length
        if float(means.square().sum()) >= _LEAST_AGREEMENT:
            rest = max(0.0, length**2 - float(parts.square().sum()))
            error = _shortfall(parts, gaps - doubt) + rest / (value - _ELSEWHERE * value)
        return Estimate(error, directions @ (parts * (value / divisors - 1)))

    def _scale(self, means: Tensor, moved: Tensor) -> float | None:
        """s, so that s B is nearest to what the whole does; None if B says nothing of it."""
        predicted = self.matrix @ means
        square = float(predicted @ predicted)
        scale = float(moved @ predicted) / square if square > 0 else 0.0
        return scale if scale > 0 else None

    def _without(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Eigenvalues and eigenvectors of B outside the span of some columns."""
        full, _ = torch.linalg.qr(wanted, mode="complete")
        others = full[:, wanted.shape[1] :]
        eigenvalues, vectors = torch.linalg.eigh(others.T @ self.matrix @ others)
        return eigenvalues, others @ vectors


def _shortfall(parts: Tensor, gaps: Tensor) -> float:
    """How much a value gains when the parts of its residual are followed."""
    resolved = gaps > parts.norm()
    shifted = parts[resolved].square() / gaps[resolved]
    return float(shifted.sum() + _UNRESOLVED * parts[~resolved].norm())
