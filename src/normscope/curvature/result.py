"""The result of an eigenvalue search: values with their residuals, as table, dict and plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from normscope.text import text_table

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["TopEigenvalue"]


@dataclass(frozen=True, eq=False, repr=False)
class TopEigenvalue:
    """Extreme eigenvalues of a curvature matrix.

    Args:
        values: float64 on the CPU, the most wanted first; for "both" the largest, descending, then
            the smallest, ascending.
        vectors: (size, values), one eigenvector of length one in each column; (size, 0) if they
            were not asked for.
        residuals: the norm of A v - theta v over the magnitude of theta, for each; that is taken
            as no smaller than what rounding lets ``tolerance`` resolve, 32 units of it times the
            largest eigenvalue over ``tolerance``.
        errors: estimated relative error of each value: the square of the residual over the gap to
            the other eigenvalues found, or twice the residual where the gap is not known yet.
        tolerance: what the residuals (or, for ``stop="value"``, the errors) were to be within.
        converged: whether they are.
        matvecs: products with the whole operator; one with a part of the data counts as that part.
            Building the graphs is not counted.
        seconds: wall-clock time of the whole call.
        batch_size: samples over which batch statistics were taken.
        samples: samples in all batches.
        kind: "fisher", "ggn" or "hessian".
        mode: "train", "frozen" or "eval".
        which: "largest", "smallest", "both" or "magnitude".
    """

    values: Tensor
    vectors: Tensor
    residuals: Tensor
    errors: Tensor
    tolerance: float
    converged: bool
    matvecs: float
    seconds: float
    batch_size: int
    samples: int
    kind: str
    mode: str
    which: str

    @property
    def value(self) -> float:
        """The most wanted eigenvalue."""
        return float(self.values[0])

    @property
    def residual(self) -> float:
        """The largest relative residual."""
        return float(self.residuals.max())

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers and texts; without the vectors."""
        from normscope.results.frame import as_count

        return {
            "kind": self.kind,
            "mode": self.mode,
            "which": self.which,
            "values": self.values.tolist(),
            "residuals": self.residuals.tolist(),
            "errors": self.errors.tolist(),
            "tolerance": self.tolerance,
            "converged": self.converged,
            "matvecs": as_count(self.matvecs),
            "seconds": self.seconds,
            "batch_size": self.batch_size,
            "samples": self.samples,
        }

    def to_dataframe(self) -> pd.DataFrame:
        """One row per eigenvalue."""
        import pandas as pd

        columns = self.to_dict()
        return pd.DataFrame(
            {
                "value": columns.pop("values"),
                "residual": columns.pop("residuals"),
                "error": columns.pop("errors"),
                **columns,
            }
        )

    def plot(self, ax: Axes | None = None) -> Axes:
        """The eigenvalues against their rank, with the residuals as error bars.

        Args:
            ax: where to draw; None for a new figure.

        Returns:
            The axes drawn on.
        """
        import matplotlib.pyplot as plt

        if ax is None:
            _, ax = plt.subplots()
        ranks = range(1, len(self.values) + 1)
        errors = (self.residuals * self.values.abs()).tolist()
        ax.errorbar(ranks, self.values.tolist(), yerr=errors, fmt="o", capsize=3)
        ax.set_xlabel("rank")
        ax.set_ylabel(f"eigenvalue of the {self._matrix()}")
        ax.set_title(self._heading())
        return ax

    def __str__(self) -> str:
        table = text_table(self._rows(), self._heading(), numbers=("eigenvalue", "rel. residual"))
        return f"{table}\n\n{self._footing()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from normscope.results.notebook import table_html

        return table_html(self._rows(), self._heading(), self._footing())

    def _rows(self) -> list[dict[str, str]]:
        pairs = zip(self.values.tolist(), self.residuals.tolist(), strict=True)
        return [{"eigenvalue": f"{v:.6g}", "rel. residual": f"{r:.1e}"} for v, r in pairs]

    def _matrix(self) -> str:
        return {"fisher": "Fisher matrix", "ggn": "Gauss-Newton matrix"}.get(self.kind, "Hessian")

    def _heading(self) -> str:
        return f"{self._matrix()}, {self.which}, mode {self.mode}, batch size {self.batch_size}"

    def _footing(self) -> str:
        state = "converged" if self.converged else "NOT CONVERGED"
        about = "" if float(self.matvecs).is_integer() else "about "  # parts of the data count too
        products = f"{about}{max(1, round(self.matvecs))} matrix-vector products"
        return f"{state} to {self.tolerance:g}, {products}, {self.seconds:.2f} s"
