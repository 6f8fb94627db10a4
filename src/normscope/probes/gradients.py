"""Gradient norms by layer, and the l2 distance and cosine of two gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from normscope.probes.probe import PROBES, Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.context import StepContext

_SMALL = 2**14  # entries; smaller tensors are concatenated to save calls
_PIECE = 2**18  # entries compared at a time, so that their difference takes little memory


class ReferenceGradient:
    """The gradient that others are compared with.

    Args:
        gradient: by name of the parameter.
    """

    def __init__(self, gradient: Mapping[str, Tensor]) -> None:
        self.gradient = gradient
        self.squared_norms = squared_norms(gradient)
        self.norm = math.sqrt(sum(self.squared_norms.values()))
        self.is_small = {name: tensor.numel() < _SMALL for name, tensor in gradient.items()}
        self._buffer = torch.empty(0)

    def buffer_like(self, piece: Tensor) -> Tensor:
        """Return a buffer of the size of a piece; it is reused, because allocating is slow."""
        alike = (self._buffer.dtype, self._buffer.device) == (piece.dtype, piece.device)
        if not alike or len(self._buffer) < len(piece):
            self._buffer = torch.empty_like(piece)
        return self._buffer[: len(piece)]


class GradientComparison:
    """Accumulates l2 distance and cosine between a gradient and the reference.

    Args:
        reference: what it is compared with.
    """

    def __init__(self, reference: ReferenceGradient) -> None:
        self.reference = reference
        self._sums: list[Tensor] = []  # inner product, squared norm, squared norm of the difference
        self._small: dict[str, Tensor] = {}
        self._seen: set[str] = set()

    def add(self, name: str, gradient: Tensor) -> None:
        """Add the gradient of one parameter; it is only read."""
        self._seen.add(name)
        if self.reference.is_small[name]:
            self._small[name] = gradient
        else:
            self._add_flat(*_aligned(gradient, self.reference.gradient[name]))

    def _add_flat(self, here: Tensor, reference: Tensor) -> None:
        for first in range(0, len(here), _PIECE):
            one, other = here[first : first + _PIECE], reference[first : first + _PIECE]
            # The difference itself: computed from inner products it would be lost in rounding.
            change = torch.sub(one, other, out=self.reference.buffer_like(one))
            products = torch.dot(one, other), _squared(one), _squared(change)
            self._sums.append(torch.stack(products))

    def result(self) -> tuple[float, float]:
        """Return l2 distance and cosine of the whole gradients; NaN if one of them is zero."""
        if self._small:
            pairs = [_aligned(g, self.reference.gradient[n]) for n, g in self._small.items()]
            self._add_flat(
                torch.cat([here for here, _ in pairs]), torch.cat([to for _, to in pairs])
            )
        total = torch.zeros(3, dtype=torch.float64)
        if self._sums:
            total = torch.stack([each.double() for each in self._sums]).sum(0)
        inner, norm, difference = total.tolist()
        difference += sum(s for n, s in self.reference.squared_norms.items() if n not in self._seen)
        product = _root(norm) * self.reference.norm
        cosine = inner / product if product > 0 else math.nan
        difference = max(difference, 0.0) if math.isfinite(difference) else difference
        return _root(difference), min(max(cosine, -1.0), 1.0) if math.isfinite(cosine) else math.nan


def difference_and_cosine(
    start: Mapping[str, Tensor], other: Mapping[str, Tensor]
) -> tuple[float, float]:
    """Return l2 distance and cosine of two gradients.

    Args:
        start: a gradient, by name of the parameter.
        other: another one, of the same parameters.

    Returns:
        The distance, and the cosine, NaN if one of the gradients is zero.

    >>> ones, other = {"w": torch.ones(2)}, {"w": torch.tensor([1.0, -1.0])}
    >>> difference_and_cosine(ones, other)
    (2.0, 0.0)
    """
    comparison = GradientComparison(ReferenceGradient(start))
    for name, gradient in other.items():
        comparison.add(name, gradient)
    return comparison.result()


def squared_norms(gradient: Mapping[str, Tensor]) -> dict[str, float]:
    """Return the sum of squares of each tensor.

    >>> squared_norms({"w": torch.tensor([3.0, 4.0])})
    {'w': 25.0}
    """
    if not gradient:
        return {}
    flat = [_aligned(tensor, tensor)[0] for tensor in gradient.values()]
    found = torch.stack([_squared(tensor).double() for tensor in flat])
    return dict(zip(gradient, found.tolist(), strict=True))


def _aligned(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Return both as flat tensors with corresponding entries, without a copy where possible.

    Half precision becomes float32, which can hold a sum of many squares.
    """
    if one.stride() == other.stride() and not one.is_contiguous():
        order = sorted(range(one.dim()), key=one.stride, reverse=True)  # such as channels_last
        one, other = one.permute(order), other.permute(order)
    if one.dtype in (torch.float16, torch.bfloat16):
        one, other = one.float(), other.float()
    return one.reshape(-1), other.reshape(-1)


def _squared(tensor: Tensor) -> Tensor:
    """Return the sum of squares, by the norm: it uses all threads, unlike ``torch.dot``."""
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm.square()


def _root(number: float) -> float:
    return math.sqrt(number) if number >= 0 else math.nan


@PROBES.register(name="gradient_norms")
class GradientNorms(Probe):
    """l2 norm of the gradient of each layer's own parameters, its weight and bias.

    Measures ``gradient_norm``; NaN for a layer that is frozen or does not run.

    Args:
        every: minimum number of training steps between two measurements.
    """

    @property
    def variables(self) -> Dimensions:
        """Names of the values, with their dimensions after ``step``."""
        return {"gradient_norm": ("layer",)}

    def measure(self, context: StepContext) -> Values:
        """Return one norm for each layer."""
        sizes = squared_norms(context.gradient)
        norms = []
        for layer in context.layers:
            own = [sizes[name] for name in layer.parameters if name in sizes]
            norms.append(math.sqrt(sum(own)) if own else math.nan)
        return {"gradient_norm": np.array(norms)}
