"""Links of a chain that have no parameters: activations, reshapes, pooling.

A link is one step of a network that runs its layers one after the other. It holds the derivative of
that step at one batch, and applies it: downwards (transposed) to a cotangent of its output,
upwards to a tangent of its input. A tensor handed to a link belongs to it: it may be overwritten.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

__all__ = [
    "ActivationLink",
    "FixedMapLink",
    "Link",
    "MaxPoolLink",
    "OuterProduct",
    "Pair",
    "ReluLink",
    "ReshapeLink",
    "Trace",
    "channels_last",
]

#: what belongs to a layer's weight and to its bias; None for one that is not asked for
Pair: TypeAlias = tuple[Tensor | None, Tensor | None]


@dataclass(frozen=True)
class OuterProduct:
    """The gradient in the weight of a linear layer, delta^T inputs, not multiplied out.

    Args:
        delta: cotangents of the layer's output, (rows, fan_out).
        inputs: the layer's inputs, (rows, fan_in).
    """

    delta: Tensor
    inputs: Tensor


#: what a cotangent leaves behind at a layer on its way down: the gradient, multiplied out or not
Trace: TypeAlias = Pair | OuterProduct


class Link(ABC):
    """The derivative of one step of a chain, at one batch."""

    #: qualified names of the weight and the bias; None for one that is not asked for
    names: tuple[str | None, str | None] = (None, None)
    #: whether `up` overwrites a tangent that `moved_down` needs
    overwrites = False

    @abstractmethod
    def down(self, delta: Tensor, to_input: bool) -> tuple[Tensor | None, Trace]:
        """The transposed derivatives.

        Args:
            delta: a cotangent of the output; may be overwritten.
            to_input: whether the input's cotangent is wanted.

        Returns:
            The cotangent of the input (None if not wanted), and that of the parameters.
        """

    @abstractmethod
    def up(self, tangent: Tensor | None, trace: Trace) -> Tensor:
        """The derivatives in input and parameters, added up.

        Args:
            tangent: of the input; may be overwritten. None stands for zero.
            trace: the direction in the parameters, as `down` of the same step returns it, on this
                batch or on another one, or the two tensors of a direction.

        Returns:
            The tangent of the output.
        """

    @abstractmethod
    def moved_down(
        self,
        moved: Tensor,
        delta: Tensor,
        tangent: Tensor | None,
        direction: Pair,
        to_input: bool,
    ) -> tuple[Tensor | None, Pair]:
        """The derivative of `down` as input, parameters and cotangent move: a second one.

        Args:
            moved: how the cotangent of the output moves; may be overwritten.
            delta: the cotangent of the output itself; stays as it is.
            tangent: how the input moves; None stands for zero.
            direction: how weight and bias move; None for one that is not asked for.
            to_input: whether the input's cotangent is wanted.

        Returns:
            How the cotangents of the input (None if not wanted) and of the parameters move.
        """

    def below(self, delta: Tensor) -> Tensor:
        """The cotangent of the input alone; as `down`, it may overwrite what it is given."""
        below, _ = self.down(delta, to_input=True)
        assert below is not None
        return below

    def gradients(self, trace: Trace) -> Pair:
        """The cotangents of weight and bias, multiplied out."""
        assert not isinstance(trace, OuterProduct)
        return trace


class _FixedLink(Link):
    """A step without parameters: a linear map of tangents, once the batch is given."""

    def down(self, delta: Tensor, to_input: bool) -> tuple[Tensor | None, Trace]:
        """The cotangent of the input."""
        return self._transposed(delta), (None, None)

    def up(self, tangent: Tensor | None, trace: Trace) -> Tensor:
        """The tangent of the output."""
        assert tangent is not None  # no chain begins with such a link
        return self._times(tangent)

    def moved_down(
        self,
        moved: Tensor,
        delta: Tensor,
        tangent: Tensor | None,
        direction: Pair,
        to_input: bool,
    ) -> tuple[Tensor | None, Pair]:
        """The same map of the moved cotangent: it does not move itself, unless overridden."""
        return self._transposed(moved), (None, None)

    @abstractmethod
    def _transposed(self, delta: Tensor) -> Tensor: ...

    @abstractmethod
    def _times(self, tangent: Tensor) -> Tensor: ...


class ActivationLink(_FixedLink):
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


class ReluLink(_FixedLink):
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


class ReshapeLink(_FixedLink):
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


class FixedMapLink(_FixedLink):
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


class MaxPoolLink(_FixedLink):
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


def channels_last(tensor: Tensor) -> bool:
    """Whether the channels of a batch of images are neighbours in memory."""
    inner = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return inner and not tensor.is_contiguous()


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
