"""Two gradients compared: l2 distance and cosine, parameter by parameter as they come."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from normscope.layers.compiled.binding import compiled_comparison

__all__ = ["Comparison", "Start", "difference_and_cosine", "squared_norms"]

_SMALL = 2**14  # entries; smaller tensors are joined: their number would cost more than their size
_PIECE = 2**18  # entries compared at a time: their difference takes no room worth speaking of


class Start:
    """The gradient that others are compared with.

    Args:
        gradient: by name of the parameter.
        sizes: the squared norm of each; None: to be worked out.
    """

    def __init__(
        self, gradient: Mapping[str, Tensor], sizes: Mapping[str, float] | None = None
    ) -> None:
        self.gradient = gradient
        self.sizes = squared_norms(gradient) if sizes is None else sizes
        self.norm = math.sqrt(sum(self.sizes.values()))
        self.is_small = {name: tensor.numel() < _SMALL for name, tensor in gradient.items()}
        self._room = torch.empty(0)

    def room(self, piece: Tensor) -> Tensor:
        """Memory for a tensor like this piece, the same each time: to ask for it anew is slow."""
        alike = (self._room.dtype, self._room.device) == (piece.dtype, piece.device)
        if not alike or len(self._room) < len(piece):
            self._room = torch.empty_like(piece)
        return self._room[: len(piece)]


class Comparison:
    """One gradient against the start, seen parameter by parameter.

    Args:
        start: what it is compared with.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._sums: list[Tensor] = []  # three numbers each
        self._small: dict[str, Tensor] = {}
        self._seen: set[str] = set()

    def see(self, name: str, gradient: Tensor) -> None:
        """Add one parameter's part; the gradient is only read, its memory may be another's too."""
        self._seen.add(name)
        if self._start.is_small[name]:
            self._small[name] = gradient
        else:
            self._add(*_aligned(gradient, self._start.gradient[name]))

    def add(self, name: str, products: tuple[Tensor, Tensor, Tensor]) -> None:
        """Add one parameter's part by what its gradient gave already.

        Args:
            name: of the parameter.
            products: inner product with the start, squared norm, squared norm of the difference.
        """
        self._seen.add(name)
        self._sums.append(torch.stack(products))

    def _add(self, here: Tensor, start: Tensor) -> None:
        sums = compiled_comparison(here, start)
        if sums is not None:
            self._sums.append(sums)
            return
        for place in range(0, len(here), _PIECE):
            one, other = here[place : place + _PIECE], start[place : place + _PIECE]
            # the difference itself: from the inner products it would be lost in their rounding
            change = torch.sub(one, other, out=self._start.room(one))
            products = torch.dot(one, other), _squared(one), _squared(change)
            self._sums.append(torch.stack(products))

    def result(self) -> tuple[float, float]:
        """l2 distance and cosine of the whole gradients; NaN where one of them is zero."""
        if self._small:
            pairs = [_aligned(g, self._start.gradient[n]) for n, g in self._small.items()]
            self._add(torch.cat([here for here, _ in pairs]), torch.cat([to for _, to in pairs]))
        total = torch.zeros(3, dtype=torch.float64)
        if self._sums:
            total = torch.stack([each.double() for each in self._sums]).sum(0)
        inner, norm, difference = total.tolist()
        difference += sum(s for n, s in self._start.sizes.items() if n not in self._seen)
        product = _root(norm) * self._start.norm
        cosine = inner / product if product > 0 else math.nan
        difference = max(difference, 0.0) if math.isfinite(difference) else difference
        return _root(difference), min(max(cosine, -1.0), 1.0) if math.isfinite(cosine) else math.nan


def difference_and_cosine(
    start: Mapping[str, Tensor], other: Mapping[str, Tensor]
) -> tuple[float, float]:
    """l2 distance and cosine of two gradients.

    Args:
        start: a gradient, by name of the parameter.
        other: another one, of the same parameters.

    Returns:
        The distance, and the cosine, NaN if one of the gradients is zero.

    >>> ones, other = {"w": torch.ones(2)}, {"w": torch.tensor([1.0, -1.0])}
    >>> difference_and_cosine(ones, other)
    (2.0, 0.0)
    """
    comparison = Comparison(Start(start))
    for name, gradient in other.items():
        comparison.see(name, gradient)
    return comparison.result()


def squared_norms(gradient: Mapping[str, Tensor]) -> dict[str, float]:
    """The sum of squares of each tensor.

    >>> squared_norms({"w": torch.tensor([3.0, 4.0])})
    {'w': 25.0}
    """
    if not gradient:
        return {}
    flat = [_aligned(tensor, tensor)[0] for tensor in gradient.values()]
    found = torch.stack([_squared(tensor).double() for tensor in flat])
    return dict(zip(gradient, found.tolist(), strict=True))


def _aligned(one: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    """Both as flat tensors whose entries correspond; without a copy where memory allows it.

    In float32 at least: a sum of many squares is more than half precision can hold.
    """
    if one.stride() == other.stride() and not one.is_contiguous():
        order = sorted(range(one.dim()), key=one.stride, reverse=True)  # such as channels_last
        one, other = one.permute(order), other.permute(order)
    if one.dtype in (torch.float16, torch.bfloat16):
        one, other = one.float(), other.float()
    return one.reshape(-1), other.reshape(-1)


def _squared(tensor: Tensor) -> Tensor:
    """The sum of squares; by the norm, which uses all threads, unlike an inner product."""
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm.square()


def _root(number: float) -> float:
    return math.sqrt(number) if number >= 0 else math.nan
