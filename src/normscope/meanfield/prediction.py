"""The answer of mean-field theory, as table, dict, data set and plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.errors import InputError
from normscope.meanfield.gaussian_integrals import Array
from normscope.meanfield.layer_row import LayerRow
from normscope.text import WIDTH, text_table, wrap

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

__all__ = ["Prediction"]

_COLUMNS = (
    ("second_moment", "output²"),
    ("second_moment_pair", "two samples"),
    ("gradient", "gradient²"),
    ("growth", "growth"),
    ("term", "term"),
    ("share", "share"),
)
_LEGEND = (
    "inputs: of one unit. output²: mean square of an output; two samples: mean product of the "
    "outputs for two samples.",
    "gradient²: of one sample, by the layer's outputs; growth: over that of the layer above.",
    "term, share: the layer's part of the lower bound.",
)
_CLOSURES = {
    "train": "through batch statistics, as training does",
    "frozen": "batch statistics as constants",
    "printed": "the paper to the letter",
}
_REGIMES = {
    "head": "the last layer decides",
    "bound": "mean gradients of all layers decide",
    "explosive": "single samples decide, beyond the bound",
    "undetermined": "the theory has no answer",
}


@dataclass(frozen=True, eq=False, repr=False)
class Prediction:
    """Largest eigenvalue of the Fisher matrix at initialization, by theory alone.

    Over gamma, numbers are arrays (not-a-number where undetermined), regime and reason are tuples.

    Args:
        lambda_max: best estimate of the largest eigenvalue over all outputs; None if undetermined.
        lower_bound: of the largest eigenvalue for one output (wei2018, Claim 3.1).
        regime: head (the last layer decides), bound (mean gradients of all layers), explosive
            (single samples, beyond the bound) or undetermined (the theory has no answer).
        reason: of the regime, in words.
        layers: the table, one row per weighted layer from the input on.
        closure: train, frozen or printed.
        batch_size: samples in a batch, which decides about the explosive branch.
        gamma: the sweep's values; None without one.
        notes: approximations made for this network.
    """

    lambda_max: float | Array | None
    lower_bound: float | Array
    regime: str | tuple[str, ...]
    reason: str | tuple[str, ...]
    layers: tuple[LayerRow, ...]
    closure: str
    batch_size: float
    gamma: Array | None = None
    notes: tuple[str, ...] = ()

    def max_learning_rate(
        self, momentum: float = 0.0, output_curvature: float = 1.0
    ) -> float | Array | None:
        r"""Learning rate above which gradient descent on the quadratic model diverges.

        .. math:: \eta^* = 2 (1 + \mu) / \lambda_{\max}

        Reference: wei2018, Eq. (7).

        Args:
            momentum: heavy-ball momentum.
            output_curvature: largest second derivative of the loss by the outputs: 1 for half the
                squared error, `softmax_curvature` for the cross-entropy.

        Returns:
            The rate; None if the eigenvalue is undetermined.

        Raises:
            InputError: if the momentum is not in [0, 1) or the curvature not above zero.
        """
        if not 0 <= momentum < 1:
            raise InputError(f"momentum must be at least 0 and below 1, got {momentum!r}.")
        if not output_curvature > 0:
            raise InputError(f"output_curvature must be above 0, got {output_curvature!r}.")
        if self.lambda_max is None:
            return None
        return 2 * (1 + momentum) / (self.lambda_max * output_curvature)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, texts and lists."""
        from normscope.results.frame import as_count

        return {
            "closure": self.closure,
            "batch_size": as_count(self.batch_size),
            "gamma": _plain(self.gamma),
            "lambda_max": _plain(self.lambda_max),
            "lower_bound": _plain(self.lower_bound),
            "max_learning_rate": _plain(self.max_learning_rate()),
            "regime": _plain(self.regime),
            "reason": _plain(self.reason),
            "notes": list(self.notes),
            "layers": [row.to_dict() for row in self.layers],
        }

    def to_xarray(self) -> xr.Dataset:
        """The table with labels: ``layer``, and ``gamma`` for a sweep."""
        import xarray as xr

        sweep = () if self.gamma is None else ("gamma",)
        shape = () if self.gamma is None else self.gamma.shape
        columns = [row.to_dict() for row in self.layers]
        names = [column.pop("name") for column in columns]
        variables: dict[str, Any] = {
            key: (
                ("layer", *sweep),
                np.stack(
                    [np.broadcast_to(np.asarray(c[key], dtype=float), shape) for c in columns]
                ),
            )
            for key in columns[0]
        }
        variables["lambda_max"] = (sweep, _number(self.lambda_max))
        variables["lower_bound"] = (sweep, _number(self.lower_bound))
        variables["regime"] = (sweep, np.asarray(self.regime))
        coordinates: dict[str, Any] = {"layer": names}
        if self.gamma is not None:
            coordinates["gamma"] = self.gamma
        attributes = {"closure": self.closure, "batch_size": self.batch_size}
        return xr.Dataset(variables, coordinates, attributes)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per layer, and per gamma for a sweep, with the eigenvalue and regime of all."""
        counts = {"inputs": int, "positions": int}
        return self.to_xarray().to_dataframe().reset_index().astype(counts)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Each layer's term and gradient; over a sweep, the eigenvalue against gamma.

        Args:
            ax: where to draw; None for a new figure.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.meanfield import order_parameters

        return order_parameters(self.to_xarray().assign_attrs(reason=_plain(self.reason)), ax)

    def text(self, width: int = WIDTH) -> str:
        """The table and its words.

        Args:
            width: in characters.

        Returns:
            Lines of that width at most.
        """
        rows = self._layer_rows() if self.gamma is None else self._sweep_rows()
        table = text_table(rows, self._heading(), width=width)
        if self.gamma is not None:
            words = [*map(_in_words, dict.fromkeys(self.regime))]
        else:
            words = [*_LEGEND, *self._footing()]
        return wrap("\n".join([table, "", *words]), width)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from normscope.results.notebook import table_html

        if self.gamma is not None:
            return table_html(self._sweep_rows(), self._heading())
        notes = "\n".join([*_LEGEND, *self._footing()])
        return table_html(self._layer_rows(), self._heading(), notes)

    def _heading(self) -> str:
        closure = f"{self.closure} ({_CLOSURES[self.closure]})"
        return f"Mean-field theory, closure {closure}, batch size {self.batch_size:g}"

    def _layer_rows(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [
            {"layer": row.name, "inputs": row.inputs}
            | {title: float(getattr(row, name)) for name, title in _COLUMNS}
            for row in self.layers
        ]
        for shown, row in zip(rows, self.layers, strict=True):
            if row.is_rounding:  # of a bound that is all rounding there are no shares
                shown |= {"term": 0.0, "share": None if self._is_rounding else 0.0}
        return rows

    @property
    def _is_rounding(self) -> bool:
        return all(row.is_rounding for row in self.layers)

    def _footing(self) -> list[str]:
        if self.lambda_max is None:
            largest = "lambda_max undetermined"
        else:
            rate = self.max_learning_rate()
            largest = (
                f"lambda_max {self.lambda_max:.4g} of the Fisher matrix: learning rates below "
                f"{rate:.4g} for half the squared error"
            )
        bound = f"lower bound per output {0.0 if self._is_rounding else self.lower_bound:.4g}"
        notes = [f"note: {note}." for note in self.notes]
        return [f"{largest}; {bound}", f"{_in_words(str(self.regime))}: {self.reason}", *notes]

    def _sweep_rows(self) -> list[dict[str, Any]]:
        assert self.gamma is not None
        columns = {
            "gamma": self.gamma,
            "lambda_max": _number(self.lambda_max),
            "lower bound": _number(self.lower_bound),
            "max rate": np.asarray(self.max_learning_rate(), dtype=float),
            "regime": self.regime,
        }
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _in_words(regime: str) -> str:
    return f"regime {regime} ({_REGIMES[regime]})"


def _number(value: float | Array | None) -> Array:
    return np.asarray(np.nan if value is None else value, dtype=float)


def _plain(value: Any) -> Any:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value
