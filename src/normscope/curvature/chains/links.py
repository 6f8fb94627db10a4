"""Derivatives of single layers: the base class, and the layers without parameters.

A link holds the derivative of one layer at one batch. It applies the derivative to tangents of the
layer's input (`jvp`) and the transposed derivative to cotangents of its output (`vjp`). A tensor
passed to a link belongs to the link, which may overwrite it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from normscope.curvature.autograd.batch_norm import channels_last
from normscope.curvature.precision import inner_products

#: tensors of a layer's weight and bias; None for one that is not differentiated by
WeightBias: TypeAlias = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True)
class OuterProduct:
    """The gradient of a linear layer's weight, delta^T inputs, not multiplied out.

    Args:
        delta: cotangents of the layer's output, (rows, fan_out).
        inputs: the layer's inputs, (rows, fan_in).
    """

    delta: Tensor
    inputs: Tensor


#: the gradient of a layer's parameters, multiplied out or not
ParameterCotangent: TypeAlias = WeightBias | OuterProduct


class Motion(NamedTuple):
    """A direction along which `Link.vjp` is differentiated, at a cotangent of the output.

    Args:
        moved: tangent of the output's cotangent; may be overwritten.
        delta: the output's cotangent itself; not overwritten.
        tangent: of the input; None means zero.
        direction: in weight and bias; None for one that is not differentiated by.
    """

    moved: Tensor
    delta: Tensor
    tangent: Tensor | None
    direction: WeightBias


class Link(ABC):
    """The derivative of one layer of a chain, at one batch."""

    #: qualified names of weight and bias; None for one that is not differentiated by
    names: tuple[str | None, str | None] = (None, None)
    #: whether `jvp` overwrites a tangent that `vjp_derivative` needs
    overwrites = False

    @abstractmethod
    def vjp(self, delta: Tensor, to_input: bool) -> tuple[Tensor | None, ParameterCotangent]:
        """Apply the transposed derivatives.

        Args:
            delta: cotangent of the output; may be overwritten.
            to_input: whether to compute the input's cotangent.

        Returns:
            The cotangent of the input (None if not computed) and of the parameters.
        """

    @abstractmethod
    def jvp(self, tangent: Tensor | None, direction: ParameterCotangent) -> Tensor:
        """Apply the derivatives in input and parameters, and add them.

        Args:
            tangent: of the input; may be overwritten. None means zero.
            direction: in the parameters: weight and bias, or what `vjp` of the same layer returned
                for this batch or another one.

        Returns:
            The tangent of the output.
        """

    @abstractmethod
    def vjp_derivative(self, at: Motion, to_input: bool) -> tuple[Tensor | None, WeightBias]:
        """Differentiate `vjp` along a direction in input, parameters and cotangent.

        Args:
            at: the cotangent and the direction.
            to_input: whether to compute the part of the input.

        Returns:
            The tangents of the input's cotangent (None if not computed) and of the gradients.
        """

    def input_vjp(self, delta: Tensor) -> Tensor:
        """Return the cotangent of the input alone; like `vjp` it may overwrite its argument."""
        below, _ = self.vjp(delta, to_input=True)
        assert below is not None
        return below

    def gradients(self, cotangent: ParameterCotangent) -> WeightBias:
        """Return the gradients of weight and bias, multiplied out."""
        assert not isinstance(cotangent, OuterProduct)
        return cotangent

    def inner_products(self, cotangents: Sequence[ParameterCotangent]) -> Tensor:
        """Return the inner products of several parameter cotangents, float64, (count, count)."""
        total = torch.zeros(len(cotangents), len(cotangents), dtype=torch.float64)
        for gradients in zip(*(self.gradients(each) for each in cotangents), strict=True):
            rows = [gradient.reshape(-1) for gradient in gradients if gradient is not None]
            if rows:
                total += inner_products(rows)
        return total


class _ParameterFreeLink(Link):
    """A layer without parameters; its derivative is a linear map fixed by the batch."""

    def vjp(self, delta: Tensor, to_input: bool) -> tuple[Tensor | None, ParameterCotangent]:
        """Return the cotangent of the input."""
        return self._transposed(delta), (None, None)

    def jvp(self, tangent: Tensor | None, direction: ParameterCotangent) -> Tensor:
        """Return the tangent of the output."""
        assert tangent is not None  # a chain begins with a layer that has parameters
        return self._times(tangent)

    def vjp_derivative(self, at: Motion, to_input: bool) -> tuple[Tensor | None, WeightBias]:
        """Return the same map of the cotangent's tangent; overridden where the map is curved."""
        return self._transposed(at.moved), (None, None)

    @abstractmethod
    def _transposed(self, delta: Tensor) -> Tensor: ...

    @abstractmethod
    def _times(self, tangent: Tensor) -> Tensor: ...


class ActivationLink(_ParameterFreeLink):
    """A pointwise function; autograd computes its derivative once, entry by entry.

    Args:
        function: acts on each entry alone.
        inputs: where to take the derivative.
        curved: whether the second derivative is needed too.
    """

    overwrites = True

    def __init__(
        self, function: Callable[[Tensor], Tensor], inputs: Tensor, curved: bool = False
    ) -> None:
        self._second: Tensor | None = None
        with torch.enable_grad():
            point = inputs.detach().requires_grad_()
            output = function(point)
            ones = torch.ones_like(output)
            (first,) = torch.autograd.grad(output, point, ones, create_graph=curved)
            if curved and first.requires_grad:  # not if the function is piecewise linear
                (self._second,) = torch.autograd.grad(first, point, ones, allow_unused=True)
        self._first = first.detach()
        self.output = output.detach()

    def vjp_derivative(self, at: Motion, to_input: bool) -> tuple[Tensor | None, WeightBias]:
        """Return f' times the moved cotangent plus f'' times cotangent and tangent."""
        below = at.moved.mul_(self._first)
        if self._second is not None:
            assert at.tangent is not None  # a chain begins with a layer that has parameters
            below.addcmul_(at.tangent.mul_(self._second), at.delta)
        return below, (None, None)

    def _transposed(self, delta: Tensor) -> Tensor:
        return delta.mul_(self._first)

    def _times(self, tangent: Tensor) -> Tensor:
        return tangent.mul_(self._first)


class ReluLink(_ParameterFreeLink):
    """max(x, 0); only the output is kept, which shows where the derivative is one.

    Args:
        inputs: where to take the derivative.
    """

    def __init__(self, inputs: Tensor) -> None:
        self.output = inputs.relu()

    def _transposed(self, delta: Tensor) -> Tensor:
        return self._times(delta)

    def _times(self, tangent: Tensor) -> Tensor:
        masked: Tensor = torch.ops.aten.threshold_backward.grad_input(
            tangent, self.output, 0, grad_input=tangent
        )
        return masked


class ReshapeLink(_ParameterFreeLink):
    """The same entries in another shape.

    Args:
        inputs: before.
        output: after.
    """

    def __init__(self, inputs: Tensor, output: Tensor) -> None:
        self._before, self._after = inputs.shape, output.shape
        self._format = torch.channels_last if channels_last(inputs) else torch.contiguous_format

    def _transposed(self, delta: Tensor) -> Tensor:
        return delta.reshape(self._before).contiguous(memory_format=self._format)

    def _times(self, tangent: Tensor) -> Tensor:
        return tangent.reshape(self._after)


class LinearMapLink(_ParameterFreeLink):
    """A linear map without parameters, such as average pooling.

    Args:
        function: the linear map; autograd computes its transpose.
        inputs: of the shape to act on.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], inputs: Tensor) -> None:
        self._function = function
        with torch.enable_grad():
            self._point = inputs.detach().requires_grad_()
            self._image = function(self._point)
        self.output = self._image.detach()

    def _transposed(self, delta: Tensor) -> Tensor:
        return _pull_back(self._image, self._point, delta)

    def _times(self, tangent: Tensor) -> Tensor:
        return self._function(tangent)


class MaxPoolLink(_ParameterFreeLink):
    """Maximum pooling, which is linear once the positions of the maxima are known.

    Args:
        function: the pooling; returns the maxima and their flat positions.
        inputs: where to take the derivative.
        dimensions: number of spatial dimensions.
    """

    def __init__(
        self,
        function: Callable[[Tensor], tuple[Tensor, Tensor]],
        inputs: Tensor,
        dimensions: int,
    ) -> None:
        with torch.enable_grad():
            self._point = inputs.detach().requires_grad_()
            self._image, self._positions = function(self._point)
        self._dimensions = dimensions
        self.output = self._image.detach()

    def _transposed(self, delta: Tensor) -> Tensor:
        return _pull_back(self._image, self._point, delta)

    def _times(self, tangent: Tensor) -> Tensor:
        positions = self._positions.flatten(-self._dimensions)
        picked = tangent.flatten(-self._dimensions).gather(-1, positions)
        return picked.view_as(self._positions)


def _pull_back(image: Tensor, point: Tensor, delta: Tensor) -> Tensor:
    (pulled,) = torch.autograd.grad(image, point, delta, retain_graph=True)
    # the gradient of a mean is expanded: its entries share memory, which links may overwrite
    return pulled.clone() if 0 in pulled.stride() else pulled
