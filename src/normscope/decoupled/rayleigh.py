"""Gradient ascent on a generalized Rayleigh quotient, with its rate corrected."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from normscope.decoupled.paths import PathResult
from normscope.errors import InputError

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class RayleighPath(PathResult):
    """Quotients along a path and the ratio that contracts.

    Args:
        rho: w'Bw / w'Aw at every point.
        ratio: (lambda_1 - rho) / (rho - lambda_2), infinite or negative while rho <= lambda_2.
        bound: of the ratio.
        eigenvalues: of the pencil (B, A), descending.
    """

    rho: Array
    ratio: Array
    bound: Array
    eigenvalues: Array

    def _columns(self) -> dict[str, Array]:
        return {"rho": self.rho, "ratio": self.ratio, "bound": self.bound}

    def _heading(self) -> tuple[str, list[str]]:
        return "gradient ascent on a Rayleigh quotient", []


def rayleigh_ascent(B: Array, A: Array, start: Array, steps: int) -> RayleighPath:  # noqa: N803
    r"""Run gradient ascent on w'Bw / w'Aw in the geometry of A.

    .. math::
        \frac{\lambda_1 - \rho(w_t)}{\rho(w_t) - \lambda_2} \le
        \left(1 - \frac{\lambda_1 - \lambda_2}{\lambda_1 - \lambda_{\min}}\right)^{2t}
        \frac{\lambda_1 - \rho(w_0)}{\rho(w_0) - \lambda_2}

    with the eigenvalues of the pencil (B, A) and the step 1/(2 (rho - lambda_min)) times w'Aw. The
    article prints rho(w - lambda_2), the eigenvalues of B alone, and the exponent 2t for one step.

    Reference: kohler2018, as told in the encyclopaedia article on batch normalization.

    Args:
        B: symmetric (size, size).
        A: symmetric positive definite (size, size).
        start: first vector.
        steps: points of the path.

    Returns:
        The path, computed in the eigenbasis of the pencil.

    Raises:
        InputError: if the start's quotient is not above the second eigenvalue.

    >>> path = rayleigh_ascent(np.diag([3.0, 1.0, 0.0]), np.eye(3), np.array([1.0, 0.3, 0.1]), 5)
    >>> bool((path.ratio <= path.bound * (1 + 1e-12)).all())
    True
    """
    values, vectors = eigh(B, A)
    first, second, least = values[-1], values[-2], values[0]
    weights = vectors.T @ A @ start
    shares = []
    for _ in range(steps):
        weights = weights / np.linalg.norm(weights)
        shares.append(weights**2)
        weights = (values - least) * weights
    above = np.array(shares) @ (first - values)  # lambda_1 - rho without cancellation
    ratio = above / (first - second - above)
    if not ratio[0] >= 0:
        raise InputError("the start must have a quotient above the second eigenvalue.")
    factor = (second - least) / (first - least)
    bound = factor ** (2.0 * np.arange(steps)) * ratio[0]
    return RayleighPath(first - above, ratio, bound, values[::-1])
