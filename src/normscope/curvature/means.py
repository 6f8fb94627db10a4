"""What a part of the data says of directions in which all samples agree."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.curvature.mean_model import Consensus, Frame, MeanModel
from normscope.curvature.spaces import OutputSpace

__all__ = ["MeanGradients", "agreement", "gradient_model", "output_model", "top_means"]

_SMALLEST = 1e-3  # of the largest eigenvalue: smaller ones belong to no direction worth a look


@dataclass(frozen=True)
class MeanGradients(Frame):
    r"""Orthonormal combinations of the mean gradients, taken through the part's Jacobian.

    .. math:: Z = K^\top C\, U S^{-1}, \qquad (C^\top K)(C^\top K)^\top = U S^2 U^\top

    No gradient is kept: a vector meets them in half a product on the part.

    Notation: K^T = from the part's outputs to the parameters, C = its `Consensus`.

    Args:
        space: of a part of the data.
        combinations: U S^{-1}, one column each.
        cost: of a step, which meets them three times, in products on all data.
    """

    space: OutputSpace
    combinations: Tensor
    cost: float = 0.0

    def means(self, vector: Tensor) -> Tensor:
        """Z^T times a parameter vector."""
        consensus = Consensus(self.space.samples)
        return self.combinations.T @ consensus.means(self.space.embed(vector))

    def vector(self, means: Tensor, like: Tensor) -> Tensor:
        """Z times one number for each combination."""
        consensus = Consensus(self.space.samples)
        combined = consensus.vector(self.combinations @ means, self.space.like)
        return self.space.pull_back(combined).to(like)


def agreement(space: OutputSpace, seed: int) -> float:
    """How much of a product is the same for every sample, if the vector was.

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
    """The matrix among output vectors that are the same for every sample.

    Args:
        space: of a part of the data.
        samples: in the whole that the model is to serve.

    Returns:
        The model. It takes half a product for each output.
    """
    consensus = Consensus(space.samples)
    outputs = torch.eye(space.size // space.samples)
    vectors = [consensus.vector(one, space.like) for one in outputs]
    return MeanModel(space.inner_products(vectors), Consensus(samples))


def gradient_model(means: MeanModel, space: OutputSpace, share: float) -> MeanModel:
    """The same matrix among parameter vectors that are combinations of mean gradients.

    Args:
        means: the matrix among output vectors.
        space: of the part of the data that it comes from.
        share: of all data in that part.

    Returns:
        The model; the space is kept with it.
    """
    eigenvalues, vectors = torch.linalg.eigh(means.matrix)
    large = eigenvalues > _SMALLEST * eigenvalues[-1]
    combinations = vectors[:, large] / eigenvalues[large].sqrt()
    frame = MeanGradients(space, combinations, cost=1.5 * share)
    return MeanModel(torch.diag(eigenvalues[large]), frame)


def top_means(model: MeanModel, space: OutputSpace, count: int) -> Tensor:
    """The largest eigenvectors of a matrix among output vectors, as vectors of a space.

    Args:
        model: of the mean gradients.
        space: of a part of the data.
        count: how many, if there are as many outputs.

    Returns:
        One column each, the largest first.
    """
    consensus = Consensus(space.samples)
    _, vectors = torch.linalg.eigh(model.matrix)
    largest = vectors.flip(1)[:, :count]
    return torch.stack([consensus.vector(column, space.like) for column in largest.T], dim=1)
