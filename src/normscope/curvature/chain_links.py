"""What a link of a chain is.

A link is one step of a network that runs its layers one after the other. It holds the derivative of
that step at one batch, and applies it: downwards (transposed) to a cotangent of its output,
upwards to a tangent of its input. A tensor handed to a link belongs to it: it may be overwritten.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

__all__ = ["FixedLink", "Link", "OuterProduct", "Pair", "Trace"]

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

    def inner_products(self, traces: Sequence[Trace]) -> Tensor:
        """The inner products of what several cotangents left here, float64, (count, count)."""
        total = torch.zeros(len(traces), len(traces), dtype=torch.float64)
        for gradients in zip(*(self.gradients(trace) for trace in traces), strict=True):
            rows = [gradient.reshape(-1) for gradient in gradients if gradient is not None]
            if rows:
                stacked = torch.stack(rows)
                total += (stacked @ stacked.T).double().cpu()
        return total


class FixedLink(Link):
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
