"""Links of a chain that have no parameters: activations, reshapes, pooling."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from normscope.curvature.chain_links import FixedLink, Pair
from normscope.curvature.images import channels_last

__all__ = ["ActivationLink", "FixedMapLink", "MaxPoolLink", "ReluLink", "ReshapeLink"]


class ActivationLink(FixedLink):
    """A pointwise function: its derivative, entry by entry, is found once by autograd.

    Args:
        function: acts on each entry alone.
        inputs: where to take the derivative.
        curved: whether the second one will be asked for.
    """

    overwrites = True

    def __init__(
        self, function: Callable[[Tensor], Tensor], inputs: Tensor, curved: bool = False
    ) -> None:
        with torch.enable_grad():
            point = inputs.detach().requires_grad_()
            output = function(point)
            (slope,) = torch.autograd.grad(
                output, point, torch.ones_like(output), create_graph=curved
            )
            self._bend = _derivative(slope, point) if curved else None
        self._slope = slope.detach()
        self.output = output.detach()

    def moved_down(
        self,
        moved: Tensor,
        delta: Tensor,
        tangent: Tensor | None,
        direction: Pair,
        to_input: bool,
    ) -> tuple[Tensor | None, Pair]:
        """The slope times what moves, plus the second derivative times cotangent and tangent."""
        below = moved.mul_(self._slope)
        if self._bend is not None:
            assert tangent is not None  # no chain begins with such a link
            below.addcmul_(tangent.mul_(self._bend), delta)
        return below, (None, None)

    def _transposed(self, delta: Tensor) -> Tensor:
        return delta.mul_(self._slope)

    def _times(self, tangent: Tensor) -> Tensor:
        return tangent.mul_(self._slope)


class ReluLink(FixedLink):
    """max(x, 0), whose own output says where its derivative is one: nothing else is kept.

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


class ReshapeLink(FixedLink):
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


class FixedMapLink(FixedLink):
    """A linear map without parameters, such as average pooling.

    Args:
        function: the linear map; its transpose is the backward kernel of this one operation.
        inputs: of the shape to act on.
    """

    def __init__(self, function: Callable[[Tensor], Tensor], inputs: Tensor) -> None:
        self._function = function
        self._point, self._image = _recorded(function, inputs)
        self.output = self._image.detach()

    def _transposed(self, delta: Tensor) -> Tensor:
        return _pulled_back(self._image, self._point, delta)

    def _times(self, tangent: Tensor) -> Tensor:
        return self._function(tangent)


class MaxPoolLink(FixedLink):
    """Maximum pooling: linear once it is known where the maxima are.

    Args:
        function: the pooling, which returns maxima and their flat positions.
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
            self._image, self._places = function(self._point)
        self._dimensions = dimensions
        self.output = self._image.detach()

    def _transposed(self, delta: Tensor) -> Tensor:
        return _pulled_back(self._image, self._point, delta)

    def _times(self, tangent: Tensor) -> Tensor:
        places = self._places.flatten(-self._dimensions)
        picked = tangent.flatten(-self._dimensions).gather(-1, places)
        return picked.view_as(self._places)


def _derivative(slope: Tensor, point: Tensor) -> Tensor | None:
    """That of a slope, entry by entry; None where it is zero: in straight pieces."""
    if not slope.requires_grad:
        return None
    (bend,) = torch.autograd.grad(slope, point, torch.ones_like(slope), allow_unused=True)
    return bend


def _recorded(function: Callable[[Tensor], Tensor], inputs: Tensor) -> tuple[Tensor, Tensor]:
    with torch.enable_grad():
        point = inputs.detach().requires_grad_()
        return point, function(point)


def _pulled_back(image: Tensor, point: Tensor, delta: Tensor) -> Tensor:
    (pulled,) = torch.autograd.grad(image, point, delta, retain_graph=True)
    # the gradient of a mean repeats one number: no memory of its own for each entry
    return pulled.clone() if 0 in pulled.stride() else pulled
