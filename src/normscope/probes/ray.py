"""Points on the gradient's ray: where a step along the negative gradient leads."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from normscope.errors import ArgumentTypeError, InputError
from normscope.probes.batch_loss import BatchLoss
from normscope.probes.gradients import GradientComparison, ReferenceGradient
from normscope.probes.shortcuts import RayShortcuts

__all__ = ["DISTANCES", "Ray", "RayValues", "check_distances"]

#: Multiples of the learning rate at which the ray is evaluated (santurkar2018: from 1/2 to 4).
DISTANCES = tuple(np.linspace(0.5, 4.0, 8).tolist())


def check_distances(distances: Sequence[float]) -> tuple[float, ...]:
    """Return the distances of a ray's points as floats.

    Raises:
        ArgumentTypeError: if they are not a list of numbers.
        InputError: if they are not positive, finite and increasing.

    >>> check_distances([1, 2])
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
    """Values at the points of a ray, one entry for each point.

    Args:
        losses: the loss.
        lengths: l2 distance of the point from the start.
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

    with the learning rate of each parameter's own group: with one rate for all, s = 1 is a step of
    plain gradient descent.

    Reference: santurkar2018, Section 4.2. Notation: s = distance, g = gradient.

    Args:
        start: all parameters of the model, by name.
        gradient: at the start, of the trained parameters on which the loss depends.
        rates: the learning rate of each of those.
        buffers: tensors like ``start``, overwritten by one point after the other.
        shortcuts: compare the gradients of some layers without computing them.
    """

    start: Mapping[str, Tensor]
    gradient: Mapping[str, Tensor]
    rates: Mapping[str, float]
    buffers: Mapping[str, Tensor]
    shortcuts: RayShortcuts

    def move(self, distance: float, excluded: Collection[str] = ()) -> None:
        """Write the point at a distance to the buffers, except for some parameters."""
        with torch.no_grad():
            for name in self.start.keys() - set(excluded):
                tensor, step = self.start[name], distance * self.rates.get(name, 0.0)
                if step == 0.0 or name not in self.gradient:
                    self.buffers[name].copy_(tensor)
                else:
                    torch.sub(tensor, self.gradient[name], alpha=step, out=self.buffers[name])

    def evaluate(
        self, batch_loss: BatchLoss, distances: Sequence[float], with_gradients: bool
    ) -> RayValues:
        """Return the losses and, if asked for, the gradients' changes: one pass for each point.

        Args:
            batch_loss: the loss as a function of the parameters.
            distances: of the points, in multiples of the learning rate.
            with_gradients: whether to run backward too.

        Returns:
            The values; non-finite numbers stay as they are.
        """
        reference = ReferenceGradient(self.gradient)
        squares = reference.squared_norms.items()
        unit = math.sqrt(sum(square * self.rates[name] ** 2 for name, square in squares))
        lengths = unit * np.asarray(distances, dtype=float)
        with batch_loss.several_passes():
            if not with_gradients:
                none = np.array([])
                return RayValues(self._losses(batch_loss, distances), lengths, none, none)
            points = self._compare(batch_loss, reference, distances)
        losses, differences, cosines = np.array(points, dtype=float).reshape(-1, 3).T
        return RayValues(losses, lengths, differences, cosines)

    def _losses(self, batch_loss: BatchLoss, distances: Sequence[float]) -> np.ndarray:
        losses = []
        for distance in distances:
            self.move(distance)
            losses.append(batch_loss.value(self.buffers))
        return np.array(losses)

    def _compare(
        self, batch_loss: BatchLoss, reference: ReferenceGradient, distances: Sequence[float]
    ) -> list[tuple[float, float, float]]:
        """Return loss, l2 distance and cosine of the gradients at each point."""
        shortcuts, found = self.shortcuts, []
        shortcuts.begin_ray(
            batch_loss.problem, self.start, self.gradient, self.rates, len(distances)
        )
        for distance in distances:
            shortcuts.begin_point(distance)
            self.move(distance, excluded=shortcuts.unmoved)
            point = self._compare_point(batch_loss, reference, shortcuts)
            if not shortcuts.end_point():  # the pass did not run as at the start
                self.move(distance)
                point = self._compare_point(batch_loss, reference)
            found.append(point)
        return found

    def _compare_point(
        self,
        batch_loss: BatchLoss,
        reference: ReferenceGradient,
        shortcuts: RayShortcuts | None = None,
    ) -> tuple[float, float, float]:
        """Return loss, l2 distance and cosine at the point in the buffers."""
        tensors = {
            n: t.detach().requires_grad_(n in self.gradient) for n, t in self.buffers.items()
        }
        comparison = GradientComparison(reference)
        loss = batch_loss.compare_gradient(tensors, comparison, shortcuts)
        return loss, *comparison.result()
