"""The Hessian of a loss in the network's outputs: the middle factor of Gauss-Newton matrices."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from normscope.curvature.jacobian import derivative_along
from normscope.curvature.missing_derivatives import custom_functions, find_missing_derivative
from normscope.curvature.precision import perturbed
from normscope.errors import StateError
from normscope.problem.error_messages import explain_errors, no_gradient_error
from normscope.problem.isolation import RandomGenerators
from normscope.problem.loss import Loss
from normscope.problem.outputs import PackedOutput
from normscope.problem.recognition import known_loss


@contextmanager
def _explain_loss_errors() -> Iterator[None]:
    """Replace torch's errors about the derivatives of a loss by ones that say what to do.

    Raises:
        StateError: if the loss has no second derivative, such as ``ctc_loss``.
    """
    try:
        with explain_errors():
            yield
    except StateError as error:
        cause = str(error.__cause__)
        if not (cause.startswith("derivative for") and "is not implemented" in cause):
            raise
        raise StateError(
            "the loss has no second derivative in the model's output, which a Gauss-Newton matrix "
            "needs; measure kind='hessian', which can take differences of gradients, or write the "
            f"loss in other torch operations (torch: {cause})."
        ) from error.__cause__


class OutputHessian(ABC):
    """A symmetric linear map of tensors in the shape of the output."""

    @abstractmethod
    def times(self, tangent: Tensor) -> Tensor:
        """Return the Hessian times a tensor in the shape of the output."""


class FactoredHessian(OutputHessian):
    """A positive semidefinite Hessian H = R R^T with known root R."""

    @abstractmethod
    def root(self, tangent: Tensor) -> Tensor:
        """Return R times a tensor in the shape of the output."""

    @abstractmethod
    def root_transposed(self, tangent: Tensor) -> Tensor:
        """Return R^T times a tensor in the shape of the output."""

    def times(self, tangent: Tensor) -> Tensor:
        """Return the Hessian times a tensor in the shape of the output."""
        return self.root(self.root_transposed(tangent))


@dataclass(frozen=True)
class ScaledIdentity(FactoredHessian):
    """A multiple of the identity: squared errors, and the Gaussian Fisher matrix.

    >>> ScaledIdentity(4.0).times(torch.tensor([1.0, 2.0]))
    tensor([4., 8.])
    """

    scale: float

    def root(self, tangent: Tensor) -> Tensor:
        """Return the square root of the scale times the tensor."""
        return tangent * math.sqrt(self.scale)

    def root_transposed(self, tangent: Tensor) -> Tensor:
        """Return the same as `root`."""
        return self.root(tangent)

    def times(self, tangent: Tensor) -> Tensor:
        """Return the scale times the tensor."""
        return tangent * self.scale


@dataclass(frozen=True)
class CrossEntropyHessian(FactoredHessian):
    r"""The Hessian of cross-entropy in its scores, for each sample and position.

    .. math:: H = c\,(\mathrm{diag}(p) - p p^\top) = R R^\top, \quad
        R = \sqrt c\,(\mathrm{diag}(\sqrt p) - p \sqrt p^\top)

    Notation: p = probabilities, along dimension 1; c = scale, one over the number of terms that
    the loss averages.

    >>> uniform = CrossEntropyHessian(torch.tensor([[0.5, 0.5]]), 1.0)
    >>> uniform.times(torch.tensor([[1.0, -1.0]]))  # its non-zero eigenvalue is 1/2
    tensor([[ 0.5000, -0.5000]])
    """

    probabilities: Tensor
    scale: float

    def root(self, tangent: Tensor) -> Tensor:
        """Return R times the tensor."""
        p = self.probabilities
        weighted = p.sqrt() * tangent
        return (weighted - p * weighted.sum(1, keepdim=True)) * math.sqrt(self.scale)

    def root_transposed(self, tangent: Tensor) -> Tensor:
        """Return R^T times the tensor."""
        p = self.probabilities
        centred = tangent - (p * tangent).sum(1, keepdim=True)
        return p.sqrt() * centred * math.sqrt(self.scale)

    def times(self, tangent: Tensor) -> Tensor:
        """Return H times the tensor."""
        p = self.probabilities
        return p * (tangent - (p * tangent).sum(1, keepdim=True)) * self.scale


class AutogradHessian(OutputHessian):
    """The Hessian of any twice differentiable loss, by two backward passes.

    Args:
        loss: called as ``loss(output, target)``.
        output: where to take it.
        target: the targets.
    """

    def __init__(self, loss: Loss, output: Tensor, target: Any) -> None:
        self._output = output.detach().requires_grad_()
        with torch.enable_grad(), _explain_loss_errors():
            value = loss(self._output.clone(), target)  # a loss may overwrite its input
            if not value.requires_grad:
                raise no_gradient_error()
            if custom_functions(value):
                error = find_missing_derivative(partial(_moved_loss, loss, output, target))
                if error is not None:
                    raise error
            (self._gradient,) = torch.autograd.grad(
                value, self._output, create_graph=True, materialize_grads=True
            )

    def times(self, tangent: Tensor) -> Tensor:
        """Return the Hessian times a tensor in the shape of the output."""
        with _explain_loss_errors():
            product = derivative_along([tangent], [self._gradient], [self._output])
        return torch.zeros_like(tangent) if product is None else product[0]


class InnerHessian(OutputHessian):
    """The Hessian of a loss that the model computed, by two backward passes through its graph.

    Args:
        packed: the outputs that the loss was computed from.
        loss: with its graph.
    """

    def __init__(self, packed: PackedOutput, loss: Tensor) -> None:
        custom = set(custom_functions(loss)) & packed.inner_nodes
        if custom:
            name = next(iter(custom)).name().removesuffix("Backward")
            raise StateError(
                f"the model computes its loss by the user-defined function {name}, whose second "
                "derivative cannot be checked inside the model; give whole_loss(outputs=..., "
                "loss=...)."
            )
        self._packed = packed
        with _explain_loss_errors():
            self._gradients = torch.autograd.grad(
                loss, packed.chosen, create_graph=True, materialize_grads=True
            )

    def times(self, tangent: Tensor) -> Tensor:
        """Return the Hessian times a tensor in the shape of the output."""
        parts = self._packed.split(tangent)
        with _explain_loss_errors():
            products = derivative_along(parts, self._gradients, self._packed.chosen)
        return torch.zeros_like(tangent) if products is None else self._packed.join(products)


def _moved_loss(loss: Loss, output: Tensor, target: Any, change: float) -> Tensor:
    """Return the loss at an output that differs by a relative change, at random."""
    moved = perturbed(output.detach(), change) if change else output.detach().clone()
    with RandomGenerators().preserved(seed=0):
        return loss(moved.requires_grad_(), target)


def output_hessian(loss: Loss, output: Tensor, target: Any) -> OutputHessian:
    """Return the loss's Hessian in the output, in closed form if the loss is a `known_loss`.

    Args:
        loss: called as ``loss(output, target)``.
        output: the model's output.
        target: the targets.

    Returns:
        The Hessian; a `FactoredHessian` if in closed form.
    """
    output = output.detach()
    known = known_loss(loss, output, target)
    if known is None:
        return AutogradHessian(loss, output, target)
    if known.kind == "cross_entropy":
        return CrossEntropyHessian(output.softmax(1), known.scale)
    return ScaledIdentity(known.scale)
