"""Convolutions as links of a chain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.curvature.chain_links import Link, Pair, Trace
from normscope.curvature.images import channels_last

__all__ = ["ConvolutionLink"]


class ConvolutionLink(Link):
    """A convolution in one, two or three dimensions, zeros around the input.

    Args:
        inputs: (batch, channels, *positions).
        weight: the filters.
        names: of weight and bias; None for one that is not asked for.
        stride: of each dimension, as the next two.
        padding: zeros on either side.
        dilation: distance of a filter's taps.
        groups: into which the channels fall.
    """

    def __init__(
        self,
        inputs: Tensor,
        weight: Tensor,
        names: tuple[str | None, str | None],
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        groups: int,
    ) -> None:
        self.names = names
        self._format = torch.channels_last if channels_last(inputs) else torch.contiguous_format
        self._inputs = inputs.contiguous(memory_format=self._format)
        self._weight = weight.contiguous(memory_format=self._format)
        transposed, output_padding = False, [0] * len(stride)
        self._options = (
            *(list(stride), list(padding), list(dilation)),
            *(transposed, output_padding, groups),
        )

    def output(self, bias: Tensor | None) -> Tensor:
        """The convolution of the inputs."""
        return self._convolved(self._inputs, self._weight, bias)

    def down(self, delta: Tensor, to_input: bool) -> tuple[Tensor | None, Trace]:
        """The cotangents of the input and the parameters."""
        weight, bias = (name is not None for name in self.names)
        wanted = to_input, weight, bias
        below, *gradients = self._pulled_back(delta, self._inputs, self._weight, wanted)
        return below, (gradients[0], gradients[1])

    def below(self, delta: Tensor) -> Tensor:
        """The cotangent of the input."""
        wanted = True, False, False
        below, _, _ = self._pulled_back(delta, self._inputs, self._weight, wanted)
        assert below is not None
        return below

    def moved_down(
        self,
        moved: Tensor,
        delta: Tensor,
        tangent: Tensor | None,
        direction: Pair,
        to_input: bool,
    ) -> tuple[Tensor | None, Pair]:
        """Each product of two factors moves with either of them."""
        weight, bias = (name is not None for name in self.names)
        by_weight = direction[0]
        below, *gradients = self._pulled_back(
            moved, self._inputs, self._weight, (to_input, weight, bias)
        )
        # what does not move is not asked for: only its shape is looked at
        image = self._inputs if tangent is None else tangent
        filters = self._weight if by_weight is None else by_weight
        wanted = to_input and by_weight is not None, weight and tangent is not None, False
        more_below, more_weight, _ = self._pulled_back(delta, image, filters, wanted)
        return _sum(below, more_below), (_sum(gradients[0], more_weight), gradients[1])

    def up(self, tangent: Tensor | None, trace: Trace) -> Tensor:
        """The tangent of the output."""
        weight, bias = self.gradients(trace)
        parts = []
        if weight is not None or tangent is None:
            filters = torch.zeros_like(self._weight) if weight is None else weight
            parts.append(self._convolved(self._inputs, filters, bias))
            bias = None
        if tangent is not None:
            parts.append(self._convolved(tangent, self._weight, bias))
        return parts[0] if len(parts) == 1 else parts[0].add_(parts[1])

    def _pulled_back(
        self, delta: Tensor, inputs: Tensor, weight: Tensor, wanted: tuple[bool, bool, bool]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Cotangents of input, weight and bias for that of the output; None where not wanted."""
        if not any(wanted):
            return None, None, None
        found: tuple[Tensor | None, Tensor | None, Tensor | None]
        found = torch.ops.aten.convolution_backward(
            *(part.contiguous(memory_format=self._format) for part in (delta, inputs, weight)),
            [len(weight)] if wanted[2] else None,
            *self._options,
            wanted,
        )
        return found

    def _convolved(self, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return torch.convolution(inputs, weight, bias, *self._options)


def _sum(total: Tensor | None, part: Tensor | None) -> Tensor | None:
    if total is None or part is None:
        return total if part is None else part
    return total.add_(part)
