"""Linear layers as links of a chain."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from normscope.curvature.chain_links import Link, OuterProduct, Pair, Trace

__all__ = ["LinearLink"]

_BLOCKS = 4  # of rows, in a product of a matrix and its own transpose
_SMALLEST_BLOCK = 128  # rows; smaller products run far below the speed of the processor


class LinearLink(Link):
    r"""A linear layer, y = x W^T + b.

    A cotangent's gradient meets the inputs again on the way up, where it may be multiplied in
    another order, without the gradient itself:

    .. math:: X (\delta^\top X)^\top + 1 (1^\top \delta) = (X X^\top + 1 1^\top)\, \delta

    The matrix in brackets is made once if that saves work over two products.

    Notation: X = inputs, one row each; delta = cotangents of the output; W = weight.

    Args:
        inputs: (*, fan_in).
        weight: (fan_out, fan_in).
        names: of weight and bias; None for one that is not asked for.
    """

    def __init__(
        self, inputs: Tensor, weight: Tensor, names: tuple[str | None, str | None]
    ) -> None:
        self.names = names
        self._shape = inputs.shape
        self._inputs = inputs.reshape(-1, inputs.shape[-1])
        self._weight = weight
        self._kernel: Tensor | None = None
        # memory of the last products, for the next: fresh pages cost more than their contents
        self._memory: dict[str, Tensor] = {}

    def down(self, delta: Tensor, to_input: bool) -> tuple[Tensor | None, Trace]:
        """The cotangents of the input and the parameters."""
        below = self.below(delta) if to_input else None
        outer = OuterProduct(delta.reshape(-1, len(self._weight)), self._inputs)
        if self.names[0] is not None and self._kernel_pays():
            return below, outer
        return below, self.gradients(outer)

    def below(self, delta: Tensor) -> Tensor:
        """The cotangent of the input."""
        rows = delta.reshape(-1, len(self._weight))
        return self._product("below", rows, self._weight).view(self._shape)

    def moved_down(
        self,
        moved: Tensor,
        delta: Tensor,
        tangent: Tensor | None,
        direction: Pair,
        to_input: bool,
    ) -> tuple[Tensor | None, Pair]:
        """Each product of two factors moves with either of them."""
        rows, first = (part.reshape(-1, len(self._weight)) for part in (moved, delta))
        below = weight = None
        if to_input:
            below = self._product("below", rows, self._weight)
            if direction[0] is not None:
                below.addmm_(first, direction[0])
            below = below.view(self._shape)
        if self.names[0] is not None:
            weight = self._product("weight", rows.T, self._inputs)
            if tangent is not None:
                weight.addmm_(first.T, tangent.reshape(-1, self._shape[-1]))
        return below, (weight, None if self.names[1] is None else rows.sum(0))

    def up(self, tangent: Tensor | None, trace: Trace) -> Tensor:
        """The tangent of the output."""
        rows = None
        if tangent is not None:
            rows = self._product("above", tangent.reshape(-1, self._shape[-1]), self._weight.T)
        if isinstance(trace, OuterProduct) and self._meets_rows(trace):
            rows = self._added(rows, self._kernel_with(trace), trace.delta)
            return rows.view(*self._shape[:-1], -1)
        weight, bias = self.gradients(trace)
        if weight is not None:
            rows = self._added(rows, self._inputs, weight.T)
        if rows is None:
            rows = self._inputs.new_zeros(len(self._inputs), len(self._weight))
        if bias is not None:
            rows = rows.add_(bias)
        return rows.view(*self._shape[:-1], -1)

    def gradients(self, trace: Trace) -> Pair:
        """The cotangents of weight and bias, multiplied out."""
        if not isinstance(trace, OuterProduct):
            return trace
        weight, bias = self.names
        return (
            None if weight is None else trace.delta.T @ trace.inputs,
            None if bias is None else trace.delta.sum(0),
        )

    def inner_products(self, traces: Sequence[Trace]) -> Tensor:
        """The inner products of what several cotangents left here, float64, (count, count)."""
        outer = [trace for trace in traces if isinstance(trace, OuterProduct)]
        if len(outer) < len(traces):
            return super().inner_products(traces)
        deltas = torch.stack([trace.delta for trace in outer])
        met = self._kernel_with(outer[0]) @ deltas
        return (deltas.flatten(1) @ met.flatten(1).T).double().cpu()

    def _kernel_pays(self) -> bool:
        """Whether making X X^T + 1 1^T costs less than it saves in two products."""
        rows, (fan_out, fan_in) = len(self._inputs), self._weight.shape
        return rows * fan_in <= 2 * fan_out * (2 * fan_in - rows)

    def _meets_rows(self, trace: OuterProduct) -> bool:
        """Whether rows times rows, then times delta, is the cheaper order of the two."""
        if trace.inputs is self._inputs:
            return True  # `down` has decided it
        rows, others = len(self._inputs), len(trace.inputs)
        fan_out, fan_in = self._weight.shape
        return rows * others * (fan_in + fan_out) < (rows + others) * fan_in * fan_out

    def _kernel_with(self, trace: OuterProduct) -> Tensor:
        if trace.inputs is not self._inputs:
            return self._and_bias(self._inputs @ trace.inputs.T)
        if self._kernel is None:
            self._kernel = self._and_bias(_times_own_transpose(self._inputs))
        return self._kernel

    def _and_bias(self, kernel: Tensor) -> Tensor:
        return kernel if self.names[1] is None else kernel.add_(1)

    def _product(self, place: str, left: Tensor, right: Tensor) -> Tensor:
        self._memory[place] = torch.mm(left, right, out=self._memory.get(place))
        return self._memory[place]

    def _added(self, rows: Tensor | None, left: Tensor, right: Tensor) -> Tensor:
        """The sum of a matrix (None: zero) and a product."""
        return self._product("above", left, right) if rows is None else rows.addmm_(left, right)


def _times_own_transpose(rows: Tensor) -> Tensor:
    """A matrix times its transpose, of whose blocks only one in each symmetric pair is made."""
    count = len(rows)
    size = -(-count // _BLOCKS)
    if size < _SMALLEST_BLOCK:
        return rows @ rows.T
    product = rows.new_empty(count, count)
    for start in range(0, count, size):
        stop = min(start + size, count)
        panel = rows[start:stop] @ rows[start:].T
        product[start:stop, start:] = panel
        product[stop:, start:stop] = panel[:, stop - start :].T
    return product
