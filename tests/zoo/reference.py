"""Slow independent references for the zoo: plain autograd in float64, nothing of normscope."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from tests.zoo.entry import Entry, call, is_graph
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

LARGEST_SUBSET = 40
"""Entries of the parameters that a dense reference is made for."""

LARGEST_SEARCH = 1_000_000
"""Parameters up to which a reference searches eigenvalues itself."""


def map_tensors(function: Any, value: Any) -> Any:
    """Apply a function to every tensor of a graph or of nested tuples, lists and mappings."""
    if isinstance(value, Tensor):
        return function(value)
    if is_graph(value):
        return value.clone().apply(function)
    if isinstance(value, Mapping):
        return {key: map_tensors(function, each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map_tensors(function, each) for each in value)
    return value


def in_double(batch: Any, dtype: torch.dtype) -> Any:
    """Return a batch in float64, rounded to the model's dtype first."""

    def convert(tensor: Tensor) -> Tensor:
        return tensor.to(dtype).double() if tensor.is_floating_point() else tensor

    return map_tensors(convert, batch)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that are trained, each once, in their order."""
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def subset(model: nn.Module) -> list[int]:
    """Return the numbers of a few small parameters, from the first to the last third."""
    sizes = [parameter.numel() for parameter in trainable(model)]
    thirds = np.array_split(np.arange(len(sizes)), min(3, len(sizes)))
    smallest = [min(third.tolist(), key=lambda i: (sizes[i], i)) for third in thirds]
    chosen: list[int] = []
    for index in smallest:
        if not chosen or sum(sizes[i] for i in [*chosen, index]) <= LARGEST_SUBSET:
            chosen.append(index)
    return chosen


@contextmanager
def fixed_draws(seed: int = 0) -> Iterator[None]:
    """Seed torch, restore it, and compute attention in operations with second derivatives."""
    with torch.random.fork_rng(devices=[]), sdpa_kernel(SDPBackend.MATH):
        torch.manual_seed(seed)
        yield


class Reference:
    """Loss and outputs of an entry at its parameters, with their graph, in float64.

    Args:
        entry: the entry.
        seed: of model and batch.
        mode: "train", "eval", or "as_is": flags as they are; None for the entry's own.
        samples: in the batch; None for the entry's own.
    """

    def __init__(
        self, entry: Entry, seed: int = 0, mode: str | None = None, samples: int | None = None
    ) -> None:
        model = entry.build_plain(seed)
        dtype = next(model.parameters()).dtype
        self.entry, self.model = entry, model.double()
        self.batch = in_double(entry.batch(seed, samples), dtype)
        self.samples = samples or entry.samples
        if (mode or entry.mode) != "as_is":
            for module in self.model.modules():
                module.training = (mode or entry.mode) == "train"
        self.leaves = trainable(self.model)
        with fixed_draws():
            self.tensors = entry.tensors(call(self.model, self.batch))
            self.loss = entry.plain_loss(*self.tensors, self.batch)
        self.outputs = torch.cat([tensor.flatten() for tensor in self.tensors])

    @property
    def size(self) -> int:
        """Number of entries of all trained parameters."""
        return sum(leaf.numel() for leaf in self.leaves)

    def gradient(self) -> Tensor:
        """Return the gradient of the loss in all parameters."""
        return self._gradient(self.loss, self.leaves)

    def output_hessian(self) -> Tensor:
        """Return the Hessian of the loss in all tensors that it reads, jointly."""

        def loss(flat: Tensor) -> Tensor:
            parts = flat.split([tensor.numel() for tensor in self.tensors])
            shaped = [p.view(t.shape) for p, t in zip(parts, self.tensors, strict=True)]
            return self.entry.plain_loss(*shaped, self.batch)

        return torch.autograd.functional.hessian(loss, self.outputs.detach())

    def metric(self, kind: str) -> Tensor:
        """Return H of J' H J: the loss's own for "ggn", 1 / samples for "fisher"."""
        if kind == "ggn":
            return self.output_hessian()
        return torch.eye(len(self.outputs), dtype=torch.float64) / self.samples

    def dense(self, kind: str, chosen: Sequence[int]) -> Tensor:
        """Return a curvature matrix over some parameters, entry by entry.

        Args:
            kind: "ggn", "fisher" or "hessian".
            chosen: numbers of the parameters.

        Returns:
            (size, size).
        """
        leaves = [self.leaves[number] for number in chosen]
        if kind == "hessian":
            gradient = self._gradient(self.loss, leaves, create_graph=True)
            return torch.stack([self._gradient(each, leaves) for each in gradient])
        jacobian = torch.stack([self._gradient(each, leaves) for each in self.outputs])
        return jacobian.T @ self.metric(kind) @ jacobian

    def operator(self, kind: str) -> LinearOperator:
        """Return a curvature matrix over all parameters, by its products."""
        product = self._hessian_product() if kind == "hessian" else self._product(kind)

        def times(vector: Any) -> Any:
            return product(torch.as_tensor(vector, dtype=torch.float64).flatten()).numpy()

        return LinearOperator((self.size, self.size), matvec=times, dtype=np.float64)

    def top_eigenvalue(self, kind: str) -> float:
        """Return the largest eigenvalue over all parameters, by scipy's Lanczos method."""
        start = np.random.default_rng(0).standard_normal(self.size)
        values = eigsh(self.operator(kind), 1, which="LA", v0=start, tol=1e-6, maxiter=2000)[0]
        return float(values[0])

    def check_eigenvector(self, kind: str, vector: Tensor, value: float, tolerance: float) -> None:
        """Assert that a vector is an eigenvector, by one product in float64.

        Args:
            kind: of the matrix.
            vector: (size,).
            value: its eigenvalue.
            tolerance: relative, of the value; of the residual its root.
        """
        unit = vector.double()  # first: norms of long vectors in float32 are off by 1e-3
        unit /= unit.norm()
        product = torch.as_tensor(self.operator(kind).matvec(unit.numpy()))
        rayleigh = float(unit @ product)
        assert abs(rayleigh - value) <= tolerance * abs(rayleigh), (value, rayleigh)
        assert float((product - rayleigh * unit).norm()) <= tolerance**0.5 * abs(rayleigh)

    def _hessian_product(self) -> Any:
        gradient = self._gradient(self.loss, self.leaves, create_graph=True)
        return lambda vector: self._gradient(gradient @ vector, self.leaves)

    def _product(self, kind: str) -> Any:
        metric = self.metric(kind)
        cotangent = torch.zeros_like(self.outputs, requires_grad=True)
        pulled = self._gradient(self.outputs @ cotangent, self.leaves, create_graph=True)

        def product(vector: Tensor) -> Tensor:
            (pushed,) = torch.autograd.grad(pulled @ vector, cotangent, retain_graph=True)
            return self._gradient(self.outputs @ (metric @ pushed), self.leaves)

        return product

    def _gradient(
        self, value: Tensor, leaves: Sequence[Tensor], create_graph: bool = False
    ) -> Tensor:
        if not value.requires_grad:
            return torch.zeros(sum(leaf.numel() for leaf in leaves), dtype=torch.float64)
        parts = torch.autograd.grad(
            value, leaves, retain_graph=True, create_graph=create_graph, materialize_grads=True
        )
        return torch.cat([part.flatten() for part in parts])
