"""Paths of optimizers as results: tables of evenly spaced points, data frames, plots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

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
