"""Points on the gradient's ray: where a step along the negative gradient leads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from normscope.errors import ArgumentTypeError, InputError
from normscope.probes.batch_loss import BatchLoss
from normscope.probes.gradients import GradientComparison, ReferenceGradient

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
    """

    start: Mapping[str, Tensor]
    gradient: Mapping[str, Tensor]
    rates: Mapping[str, float]
    buffers: Mapping[str, Tensor]

    def move(self, distance: float) -> None:
        """Write the point at a distance to the buffers."""
        with torch.no_grad():
            for name, tensor in self.start.items():
                step = distance * self.rates.get(name, 0.0)
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
        losses, differences, cosines = [], [], []
        with batch_loss.several_passes():
            for distance in distances:
                self.move(distance)
                if not with_gradients:
                    losses.append(batch_loss.value(self.buffers))
                    continue
                comparison = GradientComparison(reference)
                losses.append(batch_loss.compare_gradient(self.buffers, comparison))
                difference, cosine = comparison.result()
                differences.append(difference)
                cosines.append(cosine)
        return RayValues(*map(np.array, (losses, lengths, differences, cosines)))
