"""Paths of optimizers as results, with tables and plots, and ascent on a Rayleigh quotient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from normscope.errors import InputError
from normscope.text import Rendered, Table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

Array = NDArray[np.float64]

_SHOWN = 6  # points in a table
_CLAIMED = {
    "gdnp": "the bound is proved for the gap of this method",
    "gd": "the bound's factor is proved for the excess of this method",
    "cg": "the bound's factor is proved for the excess of this method",
    "agd": "no bound is claimed for this method",
    "bn_gd": "no bound is claimed for this method",
}


class PathResult(Rendered):
    """Mixin for paths: one row per step in `to_dataframe`, some of them in the table."""

    def _columns(self) -> dict[str, Array]:
        """Return the values at every step, by name."""
        raise NotImplementedError

    def _heading(self) -> tuple[str, list[str]]:
        """Return the title of the table and the notes below it."""
        raise NotImplementedError

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per step."""
        import pandas as pd

        columns = self._columns()
        steps = len(next(iter(columns.values())))
        return pd.DataFrame(columns, index=pd.RangeIndex(steps, name="step"))

    def _table(self) -> Table:
        columns = self._columns()
        last = len(next(iter(columns.values()))) - 1
        shown = np.unique(np.linspace(0, last, _SHOWN).astype(int)).tolist()
        rows = [
            {"step": step} | {name.replace("_", " "): float(c[step]) for name, c in columns.items()}
            for step in shown
        ]
        return Table(rows, *self._heading())


@dataclass(frozen=True, eq=False, repr=False)
class LeastSquaresPath(PathResult):
    """The points before each step, and the result after the last.

    Args:
        method: its name.
        rho: rho(w_t), the objective at the best length (steps,).
        gap: rho(w_t) - rho*, to full relative accuracy.
        bound: (1 - mu/L)^(2t) times the first gap.
        excess: the objective at the point's own length, above its least value.
        w: the points (steps, features), with their lengths.
        coef: the weights after the last step (features,).
        best: rho*.
        smallest: mu, the least eigenvalue of S that is not zero.
        largest: L.
    """

    method: str
    rho: Array
    gap: Array
    bound: Array
    excess: Array
    w: Array
    coef: Array
    best: float
    smallest: float
    largest: float

    @property
    def steps(self) -> int:
        """Number of steps taken."""
        return len(self.gap)

    @property
    def claimed(self) -> str:
        """What is proved of the bound for this method."""
        return _CLAIMED[self.method]

    @property
    def rate(self) -> float:
        """Factor of the gap per step, fitted to its logarithm over the second half.

        Points whose gap underflows are left out; NaN if fewer than two remain.
        """
        late = self.gap[self.steps // 2 :]
        used = np.flatnonzero((late > 1e-290) & np.isfinite(late)) + self.steps // 2
        if len(used) < 2:
            return float("nan")
        return float(np.exp(np.polyfit(used, np.log(self.gap[used]), 1)[0]))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, without the points."""
        return {
            "method": self.method,
            "steps": self.steps,
            **{name: column.tolist() for name, column in self._columns().items()},
            "coef": self.coef.tolist(),
            "best": self.best,
            "smallest": self.smallest,
            "largest": self.largest,
        }

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw the gap and its bound over the steps.

        Args:
            ax: to draw on, also over another path; None for a new figure.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.convergence import draw_gap

        return draw_gap(self.gap, self.bound, self.method, ax)

    def _columns(self) -> dict[str, Array]:
        return {"rho": self.rho, "gap": self.gap, "bound": self.bound, "excess": self.excess}

    def _heading(self) -> tuple[str, list[str]]:
        condition = self.largest / self.smallest
        title = f"least squares by {self.method}, condition {condition:.3g}"
        return title, [f"{self.claimed[0].upper()}{self.claimed[1:]}."]


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

    Reference: kohler2018, as given in the encyclopaedia article on batch normalization.

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
