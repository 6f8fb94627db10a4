"""Gradient descent in normalized parametrization: direction by gradients, length by bisection."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from normscope.decoupled.halfspace import Direction, Objective
from normscope.errors import InputError
from normscope.registry import unknown_name

Array = NDArray[np.float64]
Slope = Callable[[float], float]

FORMS = ("exact", "printed")
_SUFFICIENT = 1e-4  # share of the predicted decrease that a safeguarded step must reach
_MOST_HALVINGS = 60
_ROUNDING = 2e-13  # relative rounding error of a mean over many samples
_NO_MEAN = 1e-13  # |u| over sqrt(L) that is rounding error


@dataclass(frozen=True, slots=True)
class Options:
    """Options of GDNP.

    Args:
        bisections: T_s, largest number of halvings of the length's interval.
        max_length: bound of the length in magnitude; None for that of the loss.
        form: "exact", or "printed" for h as the article prints it.
        safeguard: halve a direction step until the objective decreases. With Gaussian z the
            article's step always does; on other data it may be too long.
        length_tolerance: slope along the length that ends the bisection.
        length_accuracy: the same as a share of the last residual, since the length need not be more
            accurate than the direction.

    Raises:
        InputError: for numbers that are not positive.
        UnknownNameError: for an unknown form.
    """

    bisections: int = 60
    max_length: float | None = None
    form: str = "exact"
    safeguard: bool = True
    length_tolerance: float = 0.0
    length_accuracy: float = 0.0

    def __post_init__(self) -> None:
        if self.form not in FORMS:
            raise unknown_name("form", self.form, FORMS)
        limit = 1.0 if self.max_length is None else self.max_length
        if self.bisections < 1 or not 0 < limit < np.inf:
            raise InputError(
                "bisections and max_length must be positive and finite, got "
                f"{self.bisections} and {self.max_length}."
            )


@dataclass(frozen=True, eq=False)
class Iterate:
    """One point of a path of GDNP.

    Args:
        step: direction steps taken so far.
        direction: with |w|_S = 1.
        length: gamma, never negative.
        norm: |w|_S of the vector before it is scaled to one; only the printed h depends on it.
        value: of the objective.
        gradient: with respect to w_tilde.
        residual: norm of the gradient (of its directional part, if the length is at its bound)
            over sqrt(L), which does not depend on the scale of the inputs.
        criterion: h(w, gamma) over |w|_S; if zero, there is no direction step.
        bisected: the search of the length.
        damping: share of the article's step that was taken.
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
    r"""Return GDNP's h over |w|_S, which scales the direction step.

    .. math:: h = E[\phi'](u^T w) - E[\phi''](u^T w)(u^T \tilde w)

    The article prints (u'w)^2 in the last term, which depends on the length of w.

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization.

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
    r"""Yield the path of GDNP, which ends only if there is no step left.

    .. math::
        w_{t+1} = w_t - s_t \nabla_w f(w_t, \gamma_t), \qquad
        s_t = -\frac{|w_t|_S^3}{L\,\gamma_t\,h(w_t, \gamma_t)}, \qquad
        \gamma_{t+1} = \mathrm{Bisection}(T_s, f, w_{t+1})

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization.

    Args:
        objective: to minimize.
        start: any vector with u'w and |w|_S not zero.
        options: of the method.
        length: first guess of the first bisection.

    Yields:
        The start with its best length, then a point after each step.

    Raises:
        InputError: if the start has |w|_S = 0.
    """
    options, direction = options or Options(), objective.direction(start)
    if not np.any(direction.w):
        raise InputError("the start must have |w|_S > 0; take one in the span of the inputs.")
    norm = float(np.linalg.norm(start) / np.linalg.norm(direction.w))
    found = _best_length(objective, direction, options, (length, 1.0), 0.0)
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
        found = _best_length(objective, direction, options, (here.length, reach), here.residual)
        here = _iterate(objective, direction, found, norm, options, here.step + 1, damping)


def _best_length(
    objective: Objective,
    direction: Direction,
    options: Options,
    around: tuple[float, float],
    residual: float,
) -> Bisected:
    """Return the best length in a direction, searched around a guess within a reach."""
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
    """Return the point of a direction and length."""
    length = abs(found.length)
    if found.length < 0:  # move the sign to the direction
        direction = direction.flip()
    gradient = objective.gradient(direction, length)
    counted = direction.across(gradient) if found.at_bound else gradient
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


def _target(objective: Objective, here: Iterate, damping: float) -> Array:
    """Return the result of a direction step, in units of |w|_S.

    The factor gamma and the powers of the norm cancel with those of the step size, which leaves the
    gradient across w over L h.
    """
    step = damping / (objective.largest * here.criterion)
    return np.asarray(here.direction.w + step * here.direction.across(here.gradient))


def _direction_step(
    objective: Objective, here: Iterate, options: Options
) -> tuple[Direction, float] | None:
    """Return the next direction and the share of the article's step taken; None at the end."""
    if here.criterion == 0 or not np.any(here.gradient):
        return None
    if not options.safeguard:
        return objective.direction(_target(objective, here, 1.0)), 1.0
    across = here.direction.across(here.gradient)
    sign = -1.0 if here.criterion > 0 else 1.0  # a descent direction for either sign of h
    predicted = here.length * float(across @ across) / (objective.largest * abs(here.criterion))
    rounding = _ROUNDING * abs(here.value)
    if predicted < rounding:  # values no longer show whether the step is too long
        same = sign * abs(here.damping)
        return objective.direction(_target(objective, here, same)), same
    share = min(1.0, 2 * abs(here.damping))
    for _ in range(_MOST_HALVINGS):
        tried = objective.direction(_target(objective, here, sign * share))
        least = _SUFFICIENT * share * predicted
        if objective.value(tried, here.length) <= here.value - least + rounding:
            return tried, sign * share
        share /= 2
    return None


@dataclass(frozen=True, eq=False)
class Minimum:
    """The end of a run of GDNP.

    Args:
        weights: w_tilde.
        converged: the residual is within the tolerance.
        at_bound: the length is at its bound.
        steps: of the direction.
        value: of the objective.
        residual: norm of the gradient in S^{-1}; of its directional part, if the length is at a
            bound that was asked for.
        length: |w_tilde|_S.
    """

    weights: Array
    converged: bool
    at_bound: bool
    steps: int
    value: float
    residual: float
    length: float = 0.0


def minimum(
    objective: Objective, options: Options, max_iter: int, tol: float, start: Array | None = None
) -> Minimum:
    """Run GDNP until its residual is within the tolerance.

    If u = 0, no direction is better than another, and the result is zero, the minimum of a convex
    loss.

    Args:
        objective: to minimize.
        options: of GDNP.
        max_iter: largest number of direction steps.
        tol: of the gradient's norm in S^{-1}.
        start: first direction; None for -u, the first step of gradient descent from zero.

    Returns:
        The weights and how they were reached.
    """
    size = float(np.linalg.norm(objective.mean))
    if size <= _NO_MEAN * float(np.sqrt(objective.largest)):
        nowhere = objective.direction(np.zeros_like(objective.mean))
        return Minimum(nowhere.w, True, False, 0, objective.value(nowhere, 0.0), 0.0)
    last: Iterate | None = None
    for last in gdnp(objective, -objective.mean if start is None else start, options):
        # the first norm is a lower bound of the second, and takes less time
        if last.step >= max_iter or (
            last.residual <= tol and dual_residual(objective, last) <= tol
        ):
            break
    assert last is not None  # the path has at least its start
    at_bound = last.bisected.at_bound
    # at a bound that nobody asked for, the slope along the length counts too
    residual = dual_residual(objective, last, whole=options.max_length is None)
    end = (last.step, last.value, residual, last.length)
    return Minimum(last.weights, residual <= tol, at_bound, *end)


def dual_residual(objective: Objective, here: Iterate, whole: bool = False) -> float:
    """Return the norm of the gradient in S^{-1}, which does not depend on the scale of columns.

    Args:
        objective: what is minimized.
        here: a point of the path.
        whole: whether to count the slope along the length also if the length is at its bound.

    Returns:
        The norm, or a lower bound if S is not formed.
    """
    turning = here.bisected.at_bound and not whole
    gradient = here.direction.across(here.gradient) if turning else here.gradient
    return objective.design.moments.dual_norm(gradient)


@dataclass(frozen=True, slots=True)
class Bisected:
    """A zero of a slope, found by bisection.

    Args:
        length: the middle of the last interval, or an end of the allowed range.
        left: left end of the first interval.
        right: right end of the first interval.
        at_bound: the slope still points outwards at the end of the allowed range, or underflows.
        halvings: number of halvings of the interval.
        early: ended by the tolerance of the slope.
    """

    length: float
    left: float
    right: float
    at_bound: bool
    halvings: int
    early: bool = False

    def mirror(self) -> Bisected:
        """Return the result for the mirrored slope."""
        return replace(self, length=-self.length, left=-self.right, right=-self.left)


def bisect_length(
    slope: Slope, guess: float, reach: float, bound: float, halvings: int, tolerance: float = 0.0
) -> Bisected:
    """Find where a slope changes from negative to positive, by bisection around a guess.

    The interval around the guess is doubled until it holds a change of sign, then halved. If the
    slope reaches zero but never becomes positive, the length goes to the bound.

    Args:
        slope: derivative of the objective with respect to the length.
        guess: centre of the first interval.
        reach: half the width of the first interval.
        bound: of the length in magnitude.
        halvings: largest number of halvings; fewer if the interval cannot be halved any more.
        tolerance: slope that ends the bisection.

    Returns:
        The length, with the ends of the interval that was halved.

    >>> round(bisect_length(lambda x: x - 2, 0.0, 1.0, 100.0, 50).length, 12)
    2.0
    """
    left, right = max(guess - reach, -bound), min(guess + reach, bound)
    at_left, at_right = slope(left), slope(right)
    if at_left == 0 == at_right:  # flat: use the sign at zero
        at_left = at_right = slope(0.0)
        if at_left == 0:
            return Bisected(min(max(guess, -bound), bound), left, right, False, 0, True)
        left, right = (0.0, max(right, reach)) if at_left < 0 else (min(left, -reach), 0.0)
        left, right = max(left, -bound), min(right, bound)
    if at_left > 0 or (at_left == 0 and at_right > 0):
        ends = (-right, -left)
        return _search_right(lambda x: -slope(-x), ends, reach, bound, halvings, tolerance).mirror()
    return _search_right(slope, (left, right), reach, bound, halvings, tolerance)


def _search_right(
    slope: Slope,
    ends: tuple[float, float],
    reach: float,
    bound: float,
    halvings: int,
    tolerance: float,
) -> Bisected:
    """Search to the right of the left end, where the slope is not positive."""
    left, right = ends
    at_right = slope(right)
    while at_right <= 0 and right < bound:
        left = right if at_right < 0 else left
        right, reach = min(right + 2 * reach, bound), 2 * reach
        at_right = slope(right)
    if at_right < 0:
        return Bisected(bound, bound, bound, True, 0)
    found = _halve(slope, (left, right), at_right > 0, halvings, tolerance)
    return found or Bisected(bound, bound, bound, True, 0)


def _halve(
    slope: Slope, ends: tuple[float, float], rises: bool, halvings: int, tolerance: float
) -> Bisected | None:
    """Halve the interval; return None if the slope is positive nowhere."""
    low, high = ends
    done, early = 0, False
    middle = low + (high - low) / 2
    while done < halvings:
        here = slope(middle)
        rises, early = rises or here > 0, abs(here) <= tolerance
        if middle in (low, high) or (rises and early):
            break
        low, high = (middle, high) if here < 0 else (low, middle)
        middle, done, early = low + (high - low) / 2, done + 1, False
    return Bisected(middle, *ends, False, done, early) if rises else None
