"""What a part of the data says of directions in which all samples agree."""

from __future__ import annotations

import torch
from torch import Tensor

from normscope.curvature.mean_model import Consensus, MeanModel
from normscope.curvature.spaces import OutputSpace

__all__ = ["agreement", "mean_model", "top_means"]


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
    total = float(image.square().sum(dtype=torch.float64))
    return float(consensus.means(image).square().sum()) / total if total > 0 else 0.0


def mean_model(space: OutputSpace, samples: int) -> MeanModel:
    """The matrix among vectors that are the same for every sample.

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


def top_means(model: MeanModel, space: OutputSpace, count: int) -> Tensor:
    """The model's largest eigenvectors as vectors of a space.

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
