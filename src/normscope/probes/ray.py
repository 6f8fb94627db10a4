"""Points on the gradient's ray: where a step in the direction of the gradient would lead."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from normscope.errors import ArgumentTypeError, InputError
from normscope.probes.comparison import Comparison, Start, squared_norms
from normscope.probes.factored import FactoredGradients
from normscope.probes.passes import Passes
from normscope.probes.shortcut import Shortcut
from normscope.probes.straight import StraightLayers, weights_are_private

__all__ = [
    "DISTANCES",
    "Ray",
    "RayValues",
    "checked_distances",
]


Met: TypeAlias = tuple[float, float, float]  # loss, l2 distance and cosine of the gradients

_WORTH_A_LOOK = 3  # points, from which on it pays to prepare for all but the first

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
    factored: FactoredGradients

    def move(self, distance: float, but: Collection[str] = ()) -> None:
        """Put the point at a distance into the room, but for some parameters."""
        with torch.no_grad():
            for name in self.start.keys() - set(but):
                tensor, step = self.start[name], distance * self.rates.get(name, 0.0)
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
        lengths = unit * np.asarray(distances, dtype=float)
        with passes.together():
            if not with_gradients:
                none = np.array([])
                return RayValues(self._losses(passes, distances), lengths, none, none)
            met = self._met(passes, Start(self.gradient, sizes), distances)
        losses, differences, cosines = np.array(met, dtype=float).reshape(-1, 3).T
        return RayValues(losses, lengths, differences, cosines)

    def _losses(self, passes: Passes, distances: Sequence[float]) -> np.ndarray:
        losses = []
        for distance in distances:
            self.move(distance)
            losses.append(passes.loss(self.room))
        return np.array(losses)

    def _met(self, passes: Passes, start: Start, distances: Sequence[float]) -> list[Met]:
        """Loss, l2 distance and cosine at the points; the first one shows what is straight."""
        private = weights_are_private(passes.problem.model, passes.problem.loss)
        straight = StraightLayers(self.start, self.gradient, self.rates)
        self.move(distances[0])
        is_worth_it = private and len(distances) >= _WORTH_A_LOOK
        watch = partial(self._look, straight) if is_worth_it else None
        met = [self._meet(passes, start, distances[0], straight, watch)]
        straight.settle()
        self.factored.multiply_out(but=straight.names)
        for distance in distances[1:]:
            self.move(distance, but=straight.names)
            met.append(self._meet(passes, start, distance, straight))
        return met

    def _look(self, straight: StraightLayers, model: nn.Module) -> None:
        """Let the first point show which layers the others can do without."""
        straight.record(model)
        self.factored.look(model, self.gradient)

    def _meet(
        self,
        passes: Passes,
        start: Start,
        distance: float,
        straight: StraightLayers,
        watch: Callable[[nn.Module], None] | None = None,
    ) -> Met:
        """What is met at the point in the room, by the shortcuts as far as they lead there."""
        straight.go_to(distance)
        shortcuts = [shortcut for shortcut in (straight, self.factored) if shortcut.names]
        met = self._compared(passes, start, shortcuts, watch)
        if all(shortcut.is_valid for shortcut in shortcuts):
            return met
        for shortcut in shortcuts:
            shortcut.forget()  # another way was taken here than at the start
        self.move(distance)
        return self._compared(passes, start)

    def _compared(
        self,
        passes: Passes,
        start: Start,
        shortcuts: Sequence[Shortcut] = (),
        watch: Callable[[nn.Module], None] | None = None,
    ) -> Met:
        leaves = {n: t.detach().requires_grad_(n in self.gradient) for n, t in self.room.items()}
        comparison = Comparison(start)
        loss = passes.reduced_gradients(leaves, comparison, shortcuts, watch)
        return loss, *comparison.result()
