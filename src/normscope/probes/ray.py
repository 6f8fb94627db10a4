"""Points on the gradient's ray: where a step in the direction of the gradient would lead."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from normscope.errors import ArgumentTypeError, InputError
from normscope.probes.comparison import Comparison, Start, squared_norms
from normscope.probes.factored import FactoredGradients
from normscope.probes.passes import Passes

__all__ = [
    "DISTANCES",
    "Ray",
    "RayValues",
    "checked_distances",
]


#: Multiples of the learning rate at which the ray is looked at (santurkar2018: from 1/2 to 4).
DISTANCES = tuple(np.linspace(0.5, 4.0, 8).tolist())


def checked_distances(distances: Sequence[float]) -> tuple[float, ...]:
    """The distances of a ray's points as plain numbers.

    Raises:
        ArgumentTypeError: if they are not a list of numbers.
        InputError: if they are not positive, finite and increasing.

    >>> checked_distances([1, 2])
    (1.0, 2.0)
    """
    try:
        given = tuple(float(distance) for distance in distances)
    except (TypeError, ValueError) as error:
        raise ArgumentTypeError(
            f"distances must be a list of numbers, such as [0.5, 1, 2], got {distances!r}."
        ) from error
    increasing = all(one < other for one, other in pairwise(given))
    if not given or not increasing or not (given[0] > 0 and math.isfinite(given[-1])):
        raise InputError(
            "distances must be positive, finite and increasing multiples of the learning rate, "
            f"got {list(given)}."
        )
    return given


@dataclass(frozen=True)
class RayValues:
    """What was met at the points of a ray, one entry for each.

    Args:
        losses: the loss.
        lengths: how far the point is from the start, in the l2 norm of the parameters.
        differences: l2 distance between the gradient there and that at the start; empty if only
            losses were asked for, as are the cosines.
        cosines: of the angle between these two gradients.
    """

    losses: np.ndarray
    lengths: np.ndarray
    differences: np.ndarray
    cosines: np.ndarray


@dataclass(frozen=True)
class Ray:
    r"""The ray from the present parameters along the negative gradient.

    .. math:: \theta(s) = \theta - s \eta \odot g

    with the learning rate of each parameter's own group, so that with one rate for all this is
    theta - s g, and s = 1 is a step of plain gradient descent.

    Reference: santurkar2018, Section 4.2. Notation: s = distance, g = gradient.

    Args:
        start: the model's parameters, all of them, by name.
        gradient: at the start, by those that are trained and on which the loss depends.
        rates: the learning rate of each of those.
        room: tensors like ``start`` that are overwritten by the points, one after the other.
        factored: layers whose gradients are compared by their factors.
    """

    start: Mapping[str, Tensor]
    gradient: Mapping[str, Tensor]
    rates: Mapping[str, float]
    room: Mapping[str, Tensor]
    factored: FactoredGradients | None = None

    def move(self, distance: float) -> None:
        """Put the point at a distance into the room."""
        with torch.no_grad():
            for name, tensor in self.start.items():
                step = distance * self.rates.get(name, 0.0)
                if step == 0.0 or name not in self.gradient:
                    self.room[name].copy_(tensor)
                else:
                    torch.sub(tensor, self.gradient[name], alpha=step, out=self.room[name])

    def values(self, passes: Passes, distances: Sequence[float], with_gradients: bool) -> RayValues:
        """Losses and, if asked for, gradients at the points: one pass each, in the same room.

        Args:
            passes: the model on the batch.
            distances: of the points, in multiples of the learning rate.
            with_gradients: whether to run backward too.

        Returns:
            The values; numbers that are not finite are left as they are.
        """
        sizes = squared_norms(self.gradient)
        unit = math.sqrt(sum(size * self.rates[name] ** 2 for name, size in sizes.items()))
        start = Start(self.gradient, sizes) if with_gradients else None
        losses, differences, cosines = [], [], []
        for distance in distances:
            self.move(distance)
            if start is None:
                losses.append(passes.loss(self.room))
                continue
            loss, difference, cosine = self._meet(passes, start)
            losses.append(loss)
            differences.append(difference)
            cosines.append(cosine)
        lengths = unit * np.asarray(distances, dtype=float)
        return RayValues(np.array(losses), lengths, np.array(differences), np.array(cosines))

    def _meet(self, passes: Passes, start: Start) -> tuple[float, float, float]:
        """Loss, l2 distance and cosine at the point in the room."""
        leaves, factored = self._leaves(self.gradient.keys()), self.factored
        if factored is not None and factored.names:
            comparison = Comparison(start)
            loss = passes.reduced_gradients(leaves, comparison, factored)
            if factored.is_valid:
                return loss, *comparison.result()
            factored.forget()  # another way was taken here than at the start
        comparison = Comparison(start)
        loss = passes.reduced_gradients(leaves, comparison)
        return loss, *comparison.result()

    def _leaves(self, names: Collection[str]) -> dict[str, Tensor]:
        return {n: t.detach().requires_grad_(n in names) for n, t in self.room.items()}
