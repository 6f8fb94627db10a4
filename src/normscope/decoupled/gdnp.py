"""Gradient descent in normalized parametrization: the direction by gradients, then the length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from normscope.decoupled.bisection import Bisected, bisect_length
from normscope.decoupled.gdnp_options import Options
from normscope.decoupled.halfspace import Direction, Objective
from normscope.errors import InputError

__all__ = ["Iterate", "criterion", "gdnp"]

Array = NDArray[np.float64]

_SUFFICIENT = 1e-4  # share of the decrease foretold by the slope that a safeguarded step must give
_MOST_HALVINGS = 60
_ROUNDING = 2e-13  # of a mean over many samples, relative


@dataclass(frozen=True, eq=False)
class Iterate:
    """One point of the path.

    Args:
        step: direction steps taken so far.
        direction: with |w|_S = 1.
        length: gamma, never negative.
        norm: |w|_S of the vector before it is scaled to one; only the printed h depends on it.
        value: of the objective.
        gradient: with respect to w_tilde.
        residual: norm of the gradient (of its directional part, where the length is at its bound)
            over sqrt(L): does not change with the scale of the inputs.
        criterion: h(w, gamma) over |w|_S; zero: there is no step of direction to take.
        bisected: how the length was found.
        damping: share of the article's step that brought it here.
    """

    step: int
    direction: Direction
    length: float
    norm: float
    value: float
    gradient: Array
    residual: float
    criterion: float
    bisected: Bisected
    damping: float

    @property
    def weights(self) -> Array:
        """w_tilde = gamma w / |w|_S."""
        return np.asarray(self.length * self.direction.w)


def criterion(
    objective: Objective,
    direction: Direction,
    length: float,
    norm: float = 1.0,
    form: str = "exact",
) -> float:
    r"""GDNP's h over |w|_S, by which the step of the direction is scaled.

    .. math:: h = E[\phi'](u^T w) - E[\phi''](u^T w)(u^T \tilde w)

    The article prints (u'w)^2 in the last term, which depends on the length of w.

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization.

    Args:
        objective: what is minimized.
        direction: with |w|_S = 1.
        length: gamma.
        norm: |w|_S of the vector itself; matters for the printed form only.
        form: "exact" or "printed".

    Returns:
        h / |w|_S.
    """
    last = length if form == "exact" else norm
    own = objective.mean_slope(direction, length)
    own -= objective.mean_curvature(direction, length) * last * direction.mean
    return float((own + objective.other_terms(direction, length)) * direction.mean)


def gdnp(
    objective: Objective, start: Array, options: Options | None = None, length: float = 1.0
) -> Iterator[Iterate]:
    r"""The path of GDNP, without end unless there is no step left to take.

    .. math::
        w_{t+1} = w_t - s_t \nabla_w f(w_t, \gamma_t), \qquad
        s_t = -\frac{|w_t|_S^3}{L\,\gamma_t\,h(w_t, \gamma_t)}, \qquad
        \gamma_{t+1} = \mathrm{Bisection}(T_s, f, w_{t+1})

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization.

    Args:
        objective: what is minimized.
        start: any vector with u'w and |w|_S not zero.
        options: how it runs.
        length: where the first bisection looks first.

    Yields:
        The start with its best length first, then a point after each step.

    Raises:
        InputError: if the start has |w|_S = 0.
    """
    options, direction = options or Options(), objective.direction(start)
    if not np.any(direction.w):
        raise InputError("the start must have |w|_S > 0; take one in the span of the inputs.")
    norm = float(np.linalg.norm(start) / np.linalg.norm(direction.w))
    found = _bisected(objective, direction, options, (length, 1.0), 0.0)
    here = _iterate(objective, direction, found, norm, options)
    while True:
        yield here
        stepped = _direction_step(objective, here, options)
        if stepped is None:
            return
        direction, damping = stepped
        turned = np.linalg.norm(direction.w)
        norm = here.norm * float(np.linalg.norm(_target(objective, here, damping)) / turned)
        moved = float(np.linalg.norm(direction.w - here.direction.w) / turned)
        reach = max(4 * here.length * moved, 1e-15 * (1 + here.length))
        found = _bisected(objective, direction, options, (here.length, reach), here.residual)
        here = _iterate(objective, direction, found, norm, options, here.step + 1, damping)


def _bisected(
    objective: Objective,
    direction: Direction,
    options: Options,
    around: tuple[float, float],
    residual: float,
) -> Bisected:
    """The best length in a direction, looked for around a guess within a reach."""
    return bisect_length(
        lambda length: objective.length_slope(direction, length),
        *around,
        options.max_length or objective.loss.longest,
        options.bisections,
        max(options.length_tolerance, options.length_accuracy * residual),
    )


def _iterate(
    objective: Objective,
    direction: Direction,
    found: Bisected,
    norm: float,
    options: Options,
    step: int = 0,
    damping: float = 1.0,
) -> Iterate:
    """The point in this direction and of this length, measured."""
    length = abs(found.length)
    if found.length < 0:  # the same point, with the sign in the direction
        direction = direction.flipped()
    gradient = objective.gradient(direction, length)
    counted = _across(direction, gradient) if found.at_bound else gradient
    return Iterate(
        step=step,
        direction=direction,
        length=length,
        norm=norm,
        value=objective.value(direction, length),
        gradient=gradient,
        residual=float(np.linalg.norm(counted)) / float(np.sqrt(objective.largest)),
        criterion=criterion(objective, direction, length, norm, options.form),
        bisected=found,
        damping=damping,
    )


def _across(direction: Direction, gradient: Array) -> Array:
    """The part of the gradient that turns the direction."""
    return np.asarray(gradient - (direction.w @ gradient) * direction.moment)


def _target(objective: Objective, here: Iterate, damping: float) -> Array:
    """Where the direction step leads, in units of |w|_S.

    The factor gamma of the gradient cancels with that of the step size, and so do the powers of
    the norm: what remains is the gradient across w over L h.
    """
    step = damping / (objective.largest * here.criterion)
    return np.asarray(here.direction.w + step * _across(here.direction, here.gradient))


def _direction_step(
    objective: Objective, here: Iterate, options: Options
) -> tuple[Direction, float] | None:
    """The next direction and the share of the article's step it took; None if there is none."""
    if here.criterion == 0 or not np.any(here.gradient):
        return None
    if not options.safeguard:
        return objective.direction(_target(objective, here, 1.0)), 1.0
    across = _across(here.direction, here.gradient)
    sign = -1.0 if here.criterion > 0 else 1.0  # downhill whatever the sign of h
    foretold = here.length * float(across @ across) / (objective.largest * abs(here.criterion))
    rounding = _ROUNDING * abs(here.value)
    if foretold < rounding:  # the values cannot tell any more whether the step is too long
        same = sign * abs(here.damping)
        return objective.direction(_target(objective, here, same)), same
    share = min(1.0, 2 * abs(here.damping))
    for _ in range(_MOST_HALVINGS):
        tried = objective.direction(_target(objective, here, sign * share))
        least = _SUFFICIENT * share * foretold
        if objective.value(tried, here.length) <= here.value - least + rounding:
            return tried, sign * share
        share /= 2
    return None
