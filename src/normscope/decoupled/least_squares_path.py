"""The path of a method on least squares, as table, frame and plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.text import text_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["LeastSquaresPath"]

Array = NDArray[np.float64]

_CLAIMED = {
    "gdnp": "the bound is proved for the gap of this method",
    "gd": "the bound's factor is proved for the excess of this method",
    "cg": "the bound's factor is proved for the excess of this method",
    "agd": "no bound is claimed for this method",
    "bn_gd": "no bound is claimed for this method",
}


@dataclass(frozen=True, eq=False, repr=False)
class LeastSquaresPath:
    """The points before each step, and the result after the last.

    Args:
        method: which one it was.
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
        """How many were taken."""
        return len(self.gap)

    @property
    def claimed(self) -> str:
        """What the bound says of this method."""
        return _CLAIMED[self.method]

    @property
    def rate(self) -> float:
        """Factor of the gap per step, by the slope of its logarithm over the second half.

        Points whose gap has fallen to nothing are left out; nan if fewer than two remain.
        """
        late = self.gap[self.steps // 2 :]
        used = np.flatnonzero((late > 1e-290) & np.isfinite(late)) + self.steps // 2
        if len(used) < 2:
            return float("nan")
        return float(np.exp(np.polyfit(used, np.log(self.gap[used]), 1)[0]))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts; without the points."""
        columns = {"rho": self.rho, "gap": self.gap, "bound": self.bound, "excess": self.excess}
        return {
            "method": self.method,
            "steps": self.steps,
            **{name: column.tolist() for name, column in columns.items()},
            "coef": self.coef.tolist(),
            "best": self.best,
            "smallest": self.smallest,
            "largest": self.largest,
        }

    def to_dataframe(self) -> pd.DataFrame:
        """One row per step."""
        import pandas as pd

        columns = {"rho": self.rho, "gap": self.gap, "bound": self.bound, "excess": self.excess}
        return pd.DataFrame(columns, index=pd.RangeIndex(self.steps, name="step"))

    def plot(self, ax: Axes | None = None) -> Axes:
        """The gap and its bound over the steps.

        Args:
            ax: where to draw, also over another path; None for a new figure.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.convergence import draw_gap

        return draw_gap(self.gap, self.bound, self.method, ax)

    def __str__(self) -> str:
        rows = [
            {"step": t, "rho": f"{rho:.6g}", "gap": f"{gap:.3g}", "bound": f"{bound:.3g}"}
            for t, rho, gap, bound in self._rows()
        ]
        return text_table(rows, self._heading(), numbers=("rho", "gap", "bound"))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from normscope.results.notebook import table_html

        names = ("step", "rho", "gap", "bound")
        rows = [dict(zip(names, row, strict=True)) for row in self._rows()]
        return table_html(rows, self._heading())

    def _heading(self) -> str:
        condition = self.largest / self.smallest
        return f"least squares by {self.method}, condition {condition:.3g}: {self.claimed}"

    def _rows(self) -> list[tuple[int, float, float, float]]:
        """Six points of the path, evenly over the steps."""
        shown = np.unique(np.linspace(0, self.steps - 1, 6).astype(int))
        columns = (each[shown].tolist() for each in (self.rho, self.gap, self.bound))
        return list(zip(shown.tolist(), *columns, strict=True))
