"""The spaces in which eigenvectors are searched: parameter vectors, or vectors over outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.curvature.operator import CurvatureOperator
from normscope.curvature.output_hessian import FactoredHessian
from normscope.curvature.precision import length
from normscope.curvature.products import GaussNewtonProduct

_MOST_IMAGES = 16  # vectors in a cache
_LARGEST_IMAGE = 1 << 22  # bytes; larger ones would cost more memory than they save time
_ROUNDING = 64.0  # units of rounding that may remain of a vector outside the cached span


class SearchSpace(ABC):
    """Flat vectors, with a symmetric matrix that has the wanted eigenvalues of the curvature.

    Args:
        size: entries of a vector.
        dtype: of a vector.
        device: of a vector.
    """

    #: cost of one `embed`, in products with the operator
    embedding_cost: float

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device) -> None:
        self.size = size
        self.dtype = dtype
        self.device = device

    @property
    def like(self) -> Tensor:
        """An empty tensor of a vector's dtype and device."""
        return torch.empty(0, dtype=self.dtype, device=self.device)

    @abstractmethod
    def times(self, vector: Tensor) -> Tensor:
        """Return the matrix times a vector: one product."""

    @abstractmethod
    def embed(self, vector: Tensor) -> Tensor:
        """Return the vector of this space for a parameter vector."""

    @abstractmethod
    def lift(self, vector: Tensor) -> Tensor:
        """Return the parameter vector, of length one, for an eigenvector of this space."""

    def carry(self, vector: Tensor, other: SearchSpace) -> Tensor:
        """Return the vector of this space for an eigenvector of the same curvature on other data.

        Args:
            vector: in the other space.
            other: the space it was found in.

        Returns:
            A vector of any length.
        """
        return self.embed(other.lift(vector))

    @abstractmethod
    def residual_factor(self, values: Tensor, norm: float) -> Tensor:
        """Return the factor by which a residual can grow when its vector is lifted."""


class ParameterSpace(SearchSpace):
    """Parameter vectors; for every kind of curvature and any number of batches."""

    embedding_cost = 0.0

    def __init__(self, operator: CurvatureOperator) -> None:
        super().__init__(operator.shape[0], operator.dtype, operator.device)
        self._operator = operator

    def times(self, vector: Tensor) -> Tensor:
        """Return the curvature times a vector."""
        return self._operator.matvec(vector)

    def embed(self, vector: Tensor) -> Tensor:
        """Return the vector itself."""
        return vector

    def lift(self, vector: Tensor) -> Tensor:
        """Return the vector itself, of length one."""
        return _unit(vector)

    def residual_factor(self, values: Tensor, norm: float) -> Tensor:
        """Return one: nothing changes."""
        return torch.ones_like(values)


def _unit(vector: Tensor) -> Tensor:
    """Return a vector divided by its length; zero as it is."""
    return vector / (length(vector) or 1.0)


class ImageCache:
    """Images of orthonormal vectors under a linear map; those of their combinations follow.

    >>> cache = ImageCache()
    >>> cache.add(torch.tensor([1.0, 0.0]), torch.tensor([2.0, 3.0]))
    >>> cache.image(torch.tensor([0.5, 0.0]))
    tensor([1.0000, 1.5000])
    >>> cache.image(torch.tensor([0.5, 0.5])) is None
    True
    """

    def __init__(self) -> None:
        self._vectors: list[Tensor] = []
        self._images: list[Tensor] = []

    def add(self, vector: Tensor, image: Tensor | None) -> None:
        """Add a vector and its image, up to a limit of their number and size.

        Args:
            vector: of length one, orthogonal to those before; copied.
            image: kept as it is; None if unknown.
        """
        if image is None or image.numel() * image.element_size() > _LARGEST_IMAGE:
            return
        if len(self._vectors) < _MOST_IMAGES:
            self._vectors.append(vector.clone())
            self._images.append(image)

    def image(self, vector: Tensor) -> Tensor | None:
        """Return the image of a vector in the span of the cached ones; None for any other."""
        if not self._vectors:
            return None
        basis = torch.stack(self._vectors)
        parts = basis @ vector
        outside = length(vector - basis.T @ parts)
        if not outside <= _ROUNDING * torch.finfo(vector.dtype).eps * length(vector):
            return None
        return torch.stack(self._images, dim=1) @ parts.to(self._images[0])


class OutputSpace(SearchSpace):
    r"""Vectors over the outputs of one batch, which are far fewer than the parameters.

    .. math:: J^\top R R^\top J\, v = \lambda v
        \quad\Longleftrightarrow\quad R^\top J J^\top R\, u = \lambda u, \; v \propto J^\top R\, u

    for every eigenvalue but zero. Notation: J = Jacobian, R R^T = Hessian in the outputs.

    Args:
        product: the Fisher or Gauss-Newton matrix of the only batch.
        metric: its Hessian in the outputs.
        operator: the same matrix over the parameters.
    """

    embedding_cost = 0.5

    def __init__(
        self, product: GaussNewtonProduct, metric: FactoredHessian, operator: CurvatureOperator
    ) -> None:
        self._jacobian = product.jacobian
        size, dtype = self._jacobian.output_shape.numel(), self._jacobian.dtype
        super().__init__(size, dtype, operator.device)
        self._metric = metric
        self._check_underflow = operator.check_underflow
        self._lifted = ImageCache()

    def times(self, vector: Tensor) -> Tensor:
        """Return R^T J J^T R times a vector."""
        image, pulled = self._jacobian.gram(self._metric.root(self._shaped(vector)))
        self._lifted.add(vector, pulled)
        product = self._metric.root_transposed(image).reshape(-1)
        self._check_underflow(product, vector)
        return product

    def embed(self, vector: Tensor) -> Tensor:
        """Return R^T J v."""
        return self._metric.root_transposed(self._jacobian.push_forward(vector)).reshape(-1)

    def lift(self, vector: Tensor) -> Tensor:
        """Return J^T R u, of length one."""
        lifted = self._lifted.image(vector)  # known from products with an orthonormal basis
        return _unit(self.pull_back(vector) if lifted is None else lifted)

    def pull_back(self, vector: Tensor) -> Tensor:
        """Return J^T R u."""
        return self._jacobian.pull_back(self._metric.root(self._shaped(vector)))

    def inner_products(self, vectors: Sequence[Tensor]) -> Tensor:
        """Return the matrix between vectors, float64, (count, count): half a product for each."""
        roots = [self._metric.root(self._shaped(vector)) for vector in vectors]
        return self._jacobian.inner_products(roots)

    @property
    def holds_gradients(self) -> bool:
        """Whether `inner_products` keeps one parameter vector per vector in memory."""
        return self._jacobian.holds_gradients

    @property
    def samples(self) -> int:
        """Samples in the batch."""
        return self._jacobian.output_shape[0]

    def carry(self, vector: Tensor, other: SearchSpace) -> Tensor:
        """Return R^T J K^T S u, for K and S of the other data."""
        if not isinstance(other, OutputSpace):
            return super().carry(vector, other)
        cotangent = other._metric.root(other._shaped(vector))
        image = self._jacobian.gram_with(other._jacobian, cotangent)
        return self._metric.root_transposed(image).reshape(-1)

    def residual_factor(self, values: Tensor, norm: float) -> Tensor:
        """Return the norm of J^T R over the length sqrt(lambda) of the lifted vector."""
        return (norm / values.abs().clamp(min=torch.finfo(values.dtype).tiny)).sqrt()

    def _shaped(self, vector: Tensor) -> Tensor:
        return vector.view(self._jacobian.output_shape)


def search_space(operator: CurvatureOperator, which: str, count: int) -> SearchSpace:
    """Return the smallest space that has the wanted eigenvalues.

    Args:
        operator: the curvature.
        which: which eigenvalues; the output space lacks the zero ones, so it is for "largest" and
            "magnitude" only.
        count: how many.

    Returns:
        The output space for a matrix of Gauss-Newton type of one batch with fewer outputs than
        parameters and a known root of the Hessian in the outputs; else the parameter space.
    """
    one_batch = len(operator.batch_sizes) == 1
    # a Hessian is not built here: the caller frees the graph of a part of the data before
    if one_batch and operator.kind != "hessian" and which in ("largest", "magnitude"):
        product = operator.first_batch()
        if isinstance(product, GaussNewtonProduct):
            outputs, metric = product.jacobian.output_shape.numel(), product.metric
            if isinstance(metric, FactoredHessian) and count <= outputs <= operator.shape[0]:
                return OutputSpace(product, metric, operator)
    return ParameterSpace(operator)
