"""Densities on a symmetric-logarithmic axis: linear around zero, one unit per decade beyond."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from normscope.curvature.quadrature import Floats, Quadrature
from normscope.errors import InputError

__all__ = ["SymmetricLog", "axis_for", "cumulative", "grid", "smoothed"]

_POINTS_PER_WIDTH = 4  # of the kernel
_WIDTHS_BEYOND = 6  # how far the axis goes on after the outermost node
_SPREADS = 10  # from a node; the tail of a gamma distribution is long
_DECADES = 4  # between the largest eigenvalue and the linear part, unless said otherwise


@dataclass(frozen=True)
class SymmetricLog:
    r"""The coordinate of a symmetric-logarithmic axis.

    .. math:: s(\lambda) = \begin{cases} \lambda / t & |\lambda| \le t \\
        \operatorname{sign}(\lambda) (1 + \log_{10}(|\lambda| / t)) & \text{beyond} \end{cases}

    It is matplotlib's ``symlog`` with ``linscale=0.9``: what is one unit here has one length there.

    Args:
        threshold: t, where the linear part ends.

    >>> SymmetricLog(0.01).position(np.array([-1.0, 0.005, 10.0])).tolist()
    [-3.0, 0.5, 4.0]
    """

    threshold: float

    def position(self, values: Floats) -> Floats:
        """Where eigenvalues are on the axis."""
        ratio = np.abs(values) / self.threshold
        beyond = 1 + np.log10(np.maximum(ratio, 1))
        return np.sign(values) * np.where(ratio <= 1, ratio, beyond)

    def value(self, positions: Floats) -> Floats:
        """Which eigenvalues are at positions of the axis."""
        size = np.abs(positions)
        beyond = 10 ** (np.maximum(size, 1) - 1)
        return np.sign(positions) * self.threshold * np.where(size <= 1, size, beyond)


def axis_for(rules: list[Quadrature], threshold: float | None) -> SymmetricLog:
    """An axis on which these rules' nodes can be told apart.

    Args:
        rules: of one matrix.
        threshold: where the linear part ends; None: the power of ten four decades below the
            largest node, rounded down.

    Returns:
        The axis.

    Raises:
        InputError: if the threshold is not positive.
    """
    if threshold is None:
        largest = max(float(np.abs(rule.nodes).max()) for rule in rules)
        threshold = 10.0 ** (math.floor(math.log10(largest)) - _DECADES) if largest > 0 else 1.0
    if not (threshold > 0 and math.isfinite(threshold)):
        raise InputError(f"linear_threshold must be a positive number, got {threshold}.")
    return SymmetricLog(threshold)


def grid(rules: list[Quadrature], axis: SymmetricLog, width: float, nonnegative: bool) -> Floats:
    """Evenly spaced positions that hold all nodes with their spread and smoothing."""
    lowest = min(float((rule.nodes - _SPREADS * rule.spreads).min()) for rule in rules)
    highest = max(float((rule.nodes + _SPREADS * rule.spreads).max()) for rule in rules)
    if nonnegative:  # rounding can put a node below zero, a spread cannot
        lowest = max(lowest, min(0.0, *(float(rule.nodes[0]) for rule in rules)))
    first, last = axis.position(np.array([lowest, highest]))
    spacing = width / _POINTS_PER_WIDTH
    beyond = _WIDTHS_BEYOND * _POINTS_PER_WIDTH
    places = np.arange(math.floor(first / spacing) - beyond, math.ceil(last / spacing) + beyond + 1)
    return np.asarray(places * spacing)


def cumulative(rule: Quadrature, values: Floats, nonnegative: bool) -> Floats:
    """The share of the eigenvalues that are not above each value.

    A node stands for eigenvalues of its mean and spread: they are taken as normally distributed,
    or where none can be negative as gamma distributed. A node of no spread is one step.

    Args:
        rule: nodes, weights and spreads.
        values: where.
        nonnegative: whether the matrix has no negative eigenvalue.

    Returns:
        One share for each value.

    >>> rule = Quadrature(np.array([0.0, 2.0]), np.array([0.75, 0.25]), np.zeros(2), products=2)
    >>> cumulative(rule, np.array([-1.0, 1.0, 3.0]), nonnegative=False).tolist()
    [0.0, 0.75, 1.0]
    """
    from scipy.special import gammainc, ndtr

    tiny = np.finfo(np.float64).tiny
    with np.errstate(over="ignore"):  # far from a node of no spread: surely below or above it
        shares = ndtr((values[:, None] - rule.nodes) / np.maximum(rule.spreads, tiny))
    # where the spread is small beside the node, the two distributions are the same
    skewed = nonnegative & (rule.spreads > 0.01 * np.abs(rule.nodes)) & (rule.nodes > 0)
    shape = (rule.nodes[skewed] / rule.spreads[skewed]) ** 2
    scaled = np.maximum(values, 0.0)[:, None] / rule.nodes[skewed] * shape
    shares[:, skewed] = gammainc(shape, scaled)
    return np.asarray(shares @ rule.weights)


def smoothed(
    rule: Quadrature, axis: SymmetricLog, positions: Floats, width: float, nonnegative: bool
) -> Floats:
    """The density of a rule per unit of the axis, smoothed by a Gaussian kernel.

    Args:
        rule: nodes, weights and spreads.
        axis: the coordinate in which it is a density.
        positions: evenly spaced, as `grid` gives them.
        width: standard deviation of the kernel, in units of the axis, which are decades.
        nonnegative: as for `cumulative`.

    Returns:
        The density at each position; its integral over the axis is one.
    """
    spacing = width / _POINTS_PER_WIDTH
    edges = np.append(positions - spacing / 2, positions[-1] + spacing / 2)
    # what does not grow may fall by a rounding error
    shares = np.maximum(np.diff(cumulative(rule, axis.value(edges), nonnegative)), 0.0)
    reach = np.arange(-_WIDTHS_BEYOND * _POINTS_PER_WIDTH, _WIDTHS_BEYOND * _POINTS_PER_WIDTH + 1)
    kernel = np.exp(-((reach / _POINTS_PER_WIDTH) ** 2) / 2)
    return np.convolve(shares / spacing, kernel / kernel.sum(), mode="same")
