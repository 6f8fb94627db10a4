"""The Jacobian and the Hessian of a chain of layers, applied layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from normscope.curvature.chains.links import (
    Link,
    Motion,
    OuterProduct,
    ParameterCotangent,
    WeightBias,
)
from normscope.curvature.jacobian import Jacobian
from normscope.curvature.output_hessian import OutputHessian
from normscope.curvature.products import BatchCurvature
from normscope.problem.error_messages import check_finite
from normscope.problem.isolation import MODEL_LOCK
from normscope.problem.parameters import ParameterLayout


@contextmanager
def locked_without_grad() -> Iterator[None]:
    """Hold the lock and disable autograd.

    Links write into memory of their own, and no other thread may set up a model for a measurement
    while it is read.
    """
    with MODEL_LOCK, torch.inference_mode(False), torch.no_grad():
        yield


class ChainJacobian(Jacobian):
    """The Jacobian of a chain of linear layers, convolutions, batch norms and activations.

    J^T u goes from the last layer to the first and collects the gradient of each layer's
    parameters; J v goes from the first to the last and adds the tangent of each layer's parameters.
    J J^T u combines the two layer by layer, without a vector over all parameters.

    Args:
        links: the derivatives of the layers, from the first with a parameter to the last.
        output: the network's output.
        layout: the parameters differentiated by.
    """

    holds_gradients = False

    def __init__(self, links: Sequence[Link], output: Tensor, layout: ParameterLayout) -> None:
        super().__init__(output)
        self.links = tuple(links)
        self.layout = layout

    def pull_back(self, cotangent: Tensor) -> Tensor:
        """Return J^T u, a flat parameter vector."""
        with locked_without_grad():
            return self._joined(self._vjp(cotangent))

    def push_forward(self, vector: Tensor) -> Tensor:
        """Return J v, in the shape of the output."""
        with locked_without_grad():
            return self._jvp(self.directions(vector))

    def gram(self, cotangent: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return J J^T u, and J^T u if every layer multiplied its gradient out."""
        with locked_without_grad():
            cotangents = self._vjp(cotangent)
            multiplied = not any(isinstance(each, OuterProduct) for each in cotangents)
            pulled = self._joined(cotangents) if multiplied else None
            return self._jvp(cotangents), pulled

    def gram_with(self, other: Jacobian, cotangent: Tensor) -> Tensor:
        """Return J K^T u, in the shape of this output, for the Jacobian K on other data."""
        if not isinstance(other, ChainJacobian):
            return super().gram_with(other, cotangent)
        with locked_without_grad():
            return self._jvp(other._vjp(cotangent))

    def inner_products(self, cotangents: Sequence[Tensor]) -> Tensor:
        """Return the inner products of all J^T u; one layer's gradients are in memory at a time."""
        with locked_without_grad():
            deltas = [cotangent.detach().clone() for cotangent in cotangents]
            total = torch.zeros(len(deltas), len(deltas), dtype=torch.float64)
            for link in reversed(self.links):
                gradients = []
                for index, delta in enumerate(deltas):
                    below, gradient = link.vjp(delta, to_input=link is not self.links[0])
                    gradients.append(gradient)
                    if below is not None:
                        deltas[index] = below.clone()  # the link may reuse its memory
                total += link.inner_products(gradients)
        return total

    def gradients(self, cotangent: Tensor) -> dict[str | None, Tensor | None]:
        """Return J^T u by parameter name."""
        return self._by_name(self._vjp(cotangent))

    def hessian(self, gradient: Tensor, metric: OutputHessian) -> ChainHessian:
        """Return the Hessian of a loss of the output; the chain must be read with ``curved``.

        Args:
            gradient: of the loss in the output.
            metric: the loss's Hessian in the output.
        """
        return ChainHessian(self, gradient, metric)

    def directions(self, vector: Tensor) -> list[WeightBias]:
        """Return the parts of a flat parameter vector that belong to each link."""
        pieces = self.layout.split(vector.detach())
        named: dict[str | None, Tensor] = dict(zip(self.layout.names, pieces, strict=True))
        return [(named.get(weight), named.get(bias)) for weight, bias in self._names()]

    def _names(self) -> list[tuple[str | None, str | None]]:
        return [link.names for link in self.links]

    def _vjp(self, cotangent: Tensor) -> list[ParameterCotangent]:
        """Return the gradients of each link's parameters."""
        delta: Tensor | None = cotangent.detach().clone()
        gradients: list[ParameterCotangent] = []
        for link in reversed(self.links):
            assert delta is not None
            delta, gradient = link.vjp(delta, to_input=link is not self.links[0])
            gradients.append(gradient)
        return gradients[::-1]

    def _jvp(self, directions: Sequence[ParameterCotangent]) -> Tensor:
        """Return the tangent of the output for a direction at each link."""
        tangent: Tensor | None = None
        for link, direction in zip(self.links, directions, strict=True):
            tangent = link.jvp(tangent, direction)
        assert tangent is not None
        check_finite(tangent, "the derivative of the output")
        return tangent.clone()  # the last link may reuse its memory

    def _by_name(self, cotangents: Sequence[ParameterCotangent]) -> dict[str | None, Tensor | None]:
        found: dict[str | None, Tensor | None] = {}
        for link, cotangent in zip(self.links, cotangents, strict=True):
            found |= zip(link.names, link.gradients(cotangent), strict=True)
        return found

    def _joined(self, cotangents: Sequence[ParameterCotangent]) -> Tensor:
        found = self._by_name(cotangents)
        return self.layout.join([found.get(name) for name in self.layout.names])


class ChainHessian(BatchCurvature):
    r"""The Hessian of a loss of a chain's output, without an autograd graph.

    The gradient is what the loss's cotangent leaves at each layer on the backward pass. Its
    derivative along a vector v is taken layer by layer: a forward pass computes the tangents of all
    layers' inputs, a backward pass those of all cotangents (the R-operator of Pearlmutter, 1994).

    .. math:: \dot\delta_f = (\nabla^2_f L)\, J v, \qquad
        H v = \frac{d}{dt} \sum_l \Bigl(\frac{\partial y_l}{\partial\theta_l}\Bigr)^{\!\top}
        \delta_l \,\Big|_{\theta + t v}

    Args:
        chain: read with ``curved``, so that its links have their second derivatives.
        gradient: of the loss in the output.
        metric: the loss's Hessian in the output.
    """

    symmetric = True

    def __init__(self, chain: ChainJacobian, gradient: Tensor, metric: OutputHessian) -> None:
        self._chain, self._links, self._layout = chain, chain.links, chain.layout
        self._metric = metric
        # copies of tangents, overwritten by the next product: allocating costs more than filling
        self._kept: dict[int, Tensor] = {}
        with locked_without_grad():
            self._cotangents = _cotangents(self._links, gradient)

    def times(self, vector: Tensor) -> Tensor:
        """Return the Hessian times a flat vector."""
        with locked_without_grad():
            directions = self._chain.directions(vector)
            tangents, output_tangent = self._tangents(directions)
            found: dict[str | None, Tensor | None] = {}
            moved: Tensor | None = self._metric.times(output_tangent)
            for index in reversed(range(len(self._links))):
                link = self._links[index]
                assert moved is not None
                at = Motion(moved, self._cotangents[index], tangents[index], directions[index])
                moved, gradients = link.vjp_derivative(at, to_input=index > 0)
                found |= zip(link.names, gradients, strict=True)
            product = self._layout.join([found.get(name) for name in self._layout.names])
        check_finite(product, "the product of the Hessian and a vector")
        return product

    def _tangents(self, directions: Sequence[WeightBias]) -> tuple[list[Tensor | None], Tensor]:
        """Return the tangent of every link's input, and that of the output."""
        tangent: Tensor | None = None
        tangents: list[Tensor | None] = []
        for index, link in enumerate(self._links):
            tangents.append(self._copy(index, tangent) if link.overwrites else tangent)
            tangent = link.jvp(tangent, directions[index])
        assert tangent is not None
        check_finite(tangent, "the derivative of the output")
        return tangents, tangent

    def _copy(self, index: int, tangent: Tensor | None) -> Tensor | None:
        if tangent is None:
            return None
        kept = self._kept.get(index)
        self._kept[index] = tangent.clone() if kept is None else kept.copy_(tangent)
        return self._kept[index]


def _cotangents(links: Sequence[Link], gradient: Tensor) -> list[Tensor]:
    """Return the gradient of the loss in each link's output."""
    cotangents: list[Tensor] = []
    delta = gradient.detach()
    for link in reversed(links):
        check_finite(delta, "the gradient")
        cotangents.append(delta)
        if link is not links[0]:
            delta = link.input_vjp(delta.clone()).clone()  # the link may reuse its memory
    return cotangents[::-1]
