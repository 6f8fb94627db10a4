"""The result of mean-field theory, as table, dict, data set and plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.errors import InputError
from normscope.meanfield.field import PAIR, SAME, Field, Signal
from normscope.meanfield.integrals import Array
from normscope.text import Rendered, Table, integer_if_whole

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.axes import Axes

Number = float | Array

NOTHING = 1e-9  # of the mean squared gradient, below which a mean gradient is rounding

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
_KEYS = (
    *("closure", "batch_size", "gamma", "lambda_max", "lower_bound", "max_learning_rate"),
    *("regime", "reason", "notes", "layers"),
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


@dataclass(frozen=True, eq=False)
class LayerRow(Rendered):
    """Order parameters of one linear layer or convolution, and its term of the bound.

    Numbers, or arrays over the values of gamma in a sweep. In the paper ``second_moment`` is q,
    ``second_moment_pair`` q_xy and ``second_moment_positions`` q_ab,xy; with ``input_`` they are
    q^ of the layer below; ``gradient`` is q~ (summed over positions), ``gradient_pair`` S,
    ``gradient_total`` D; ``term`` is f_l.

    Args:
        name: of the layer.
        inputs: of one unit, N.
        positions: of its output.
        second_moment: mean square of its output.
        second_moment_pair: mean product for two samples at one position.
        second_moment_positions: mean product for two samples at two positions.
        input_second_moment: mean square of its input.
        input_pair: mean product of its inputs for two samples at one position.
        input_positions: the same at two positions.
        gradient: squared norm of one sample's gradient at the layer's output.
        gradient_pair: product of two samples' gradients, summed over positions.
        gradient_total: the same over all pairs of positions.
        growth: gradient over that of the weighted layer above; 1 for the last layer.
        term: the layer's part of the lower bound.
        share: of the lower bound.
        bulk: the layer's part of the largest eigenvalue of a single sample.
    """

    name: str
    inputs: int
    positions: int
    second_moment: Number
    second_moment_pair: Number
    second_moment_positions: Number
    input_second_moment: Number
    input_pair: Number
    input_positions: Number
    gradient: Number
    gradient_pair: Number
    gradient_total: Number
    growth: Number
    term: Number
    share: Number
    bulk: Number

    @property
    def is_rounding(self) -> bool:
        """Whether the term of a single setting is zero up to rounding.

        The scale is that of the term if all samples had the same input and gradient.
        """
        scale = self.inputs * float(self.input_second_moment) * float(self.gradient)
        return abs(float(self.term)) <= NOTHING * scale


def row_of(
    name: str, fan_in: int, output: Field, source: Field, signal: Signal, term: Array, bulk: Array
) -> LayerRow:
    """Return the row of one weighted layer; growth and share are set once all rows exist."""
    empty = np.zeros_like(term)
    return LayerRow(
        name,
        fan_in,
        output.count,
        *_moments(output),
        *_moments(source),
        signal.own,
        signal.diagonal,
        signal.total,
        growth=empty,
        term=term,
        share=empty,
        bulk=bulk,
    )


def _moments(field: Field) -> tuple[Array, Array, Array]:
    """Return the mean square; mean product of two samples at one and at two positions."""
    second, pair = (
        np.diagonal(field.kernel[:, plane], axis1=-2, axis2=-1).mean(-1) for plane in (SAME, PAIR)
    )
    over_all = field.row_means(field.kernel[:, PAIR]).mean(-1)
    count = field.count
    different = pair if count == 1 else (over_all - pair / count) / (1 - 1 / count)
    return np.asarray(second), np.asarray(pair), np.asarray(different)


@dataclass(frozen=True, eq=False, repr=False)
class Prediction(Rendered):
    """Largest eigenvalue of the Fisher matrix at initialization, by theory.

    In a sweep over gamma, numbers are arrays (NaN where undetermined), regime and reason tuples.

    Args:
        lambda_max: best estimate of the largest eigenvalue over all outputs; None if undetermined.
        lower_bound: of the largest eigenvalue for one output (wei2018, Claim 3.1).
        regime: head (the last layer decides), bound (mean gradients of all layers), explosive
            (single samples, beyond the bound) or undetermined (the theory has no answer).
        reason: of the regime, in words.
        layers: one row per weighted layer, from the input on.
        closure: train, frozen or printed.
        batch_size: samples in a batch, which matters for the explosive regime.
        gamma: values of the sweep; None without one.
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
        r"""Return the learning rate above which gradient descent on the quadratic model diverges.

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
        """Return numbers, strings and lists."""
        rate = self.max_learning_rate()
        plain = super().to_dict() | {
            "batch_size": integer_if_whole(self.batch_size),
            "max_learning_rate": rate.tolist() if isinstance(rate, np.ndarray) else rate,
        }
        return {name: plain[name] for name in _KEYS}

    def to_xarray(self) -> xr.Dataset:
        """Return the table with coordinates ``layer``, and ``gamma`` for a sweep."""
        import xarray as xr

        sweep = () if self.gamma is None else ("gamma",)
        shape = () if self.gamma is None else self.gamma.shape
        columns = [row.to_dict() for row in self.layers]
        names = [column.pop("name") for column in columns]
        variables: dict[str, Any] = {}
        for key in columns[0]:
            values = [np.broadcast_to(np.asarray(c[key], dtype=float), shape) for c in columns]
            variables[key] = (("layer", *sweep), np.stack(values))
        variables["lambda_max"] = (sweep, _number(self.lambda_max))
        variables["lower_bound"] = (sweep, _number(self.lower_bound))
        variables["regime"] = (sweep, np.asarray(self.regime))
        coordinates: dict[str, Any] = {"layer": names}
        if self.gamma is not None:
            coordinates["gamma"] = self.gamma
        attributes = {"closure": self.closure, "batch_size": self.batch_size}
        return xr.Dataset(variables, coordinates, attributes)

    def to_dataframe(self) -> pd.DataFrame:
        """Return one row per layer, and per gamma for a sweep, with the eigenvalue and regime."""
        counts = {"inputs": int, "positions": int}
        return self.to_xarray().to_dataframe().reset_index().astype(counts)

    def plot(self, ax: Axes | None = None) -> Axes:
        """Draw each layer's term and gradient; over a sweep, the eigenvalue against gamma.

        Args:
            ax: axes to draw on; None for a new figure.

        Returns:
            The axes drawn on.
        """
        from normscope.plots.meanfield import order_parameters

        return order_parameters(self.to_xarray().assign_attrs(reason=self.to_dict()["reason"]), ax)

    def _table(self) -> Table:
        if self.gamma is not None:
            words = [*map(_describe_regime, dict.fromkeys(self.regime))]
            return Table(self._sweep_rows(), self._heading(), words)
        return Table(self._layer_rows(), self._heading(), [*_LEGEND, *self._footing()])

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
            if row.is_rounding:  # a bound that is all rounding has no shares
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
        return [
            f"{largest}; {bound}",
            f"{_describe_regime(str(self.regime))}: {self.reason}",
            *notes,
        ]

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


def _describe_regime(regime: str) -> str:
    return f"regime {regime} ({_REGIMES[regime]})"


def _number(value: float | Array | None) -> Array:
    return np.asarray(np.nan if value is None else value, dtype=float)
