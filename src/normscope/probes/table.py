"""Measured steps as one labelled dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from normscope.probes.probe import Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.moment import Moment

__all__ = ["Row", "Table"]


@dataclass
class Row:
    """One measured step.

    Args:
        step: its number.
        values: what was measured, by name.
    """

    step: int
    values: Values = field(default_factory=dict)


class Table:
    """Rows of one kind, and the labels of their dimensions.

    Args:
        probes: whose values the rows hold.
        model: what the model is called.
    """

    def __init__(self, probes: Sequence[Probe], model: str) -> None:
        self.dimensions: Dimensions = {"loss": (), "learning_rate": ()}
        for probe in probes:
            self.dimensions |= probe.variables
        self.attributes = {"model": model, "probes": ", ".join(each.name for each in probes)}
        self.coordinates: dict[str, Any] = {}
        self.rows: list[Row] = []

    @property
    def layer_names(self) -> tuple[str, ...] | None:
        """The layers; None before the first measured step."""
        names = self.coordinates.get("layer")
        return None if names is None else tuple(names.tolist())

    def label(self, moment: Moment, probes: Sequence[Probe]) -> None:
        """Fix the labels of the dimensions when they are first known.

        Args:
            moment: a measured step.
            probes: those that have dimensions of their own.
        """
        labels: dict[str, Any] = {
            "layer": np.array([layer.name for layer in moment.layers], dtype=str),
            "distance": np.array(moment.distances),
        }
        for probe in probes:
            labels |= probe.coordinates(moment)
        for name, values in labels.items():
            self.coordinates.setdefault(name, values)

    def dataset(self, rows: Sequence[Row] | None = None) -> xr.Dataset:
        """Some of the rows, or all of them; NaN where a row has no value.

        Args:
            rows: which; None for all.

        Returns:
            A dataset over ``step`` and the labelled dimensions.
        """
        rows = self.rows if rows is None else rows
        used = {name for sizes in self.dimensions.values() for name in sizes}
        labels = {n: c for n, c in self.coordinates.items() if n in used or isinstance(c, tuple)}
        named = {name: self._named(values) for name, values in labels.items()}
        coordinates = {"step": np.array([row.step for row in rows], dtype=np.int64), **named}
        variables = {
            name: (("step", *dimensions), self._stacked(name, dimensions, rows))
            for name, dimensions in self.dimensions.items()
        }
        return xr.Dataset(variables if rows else {}, coordinates if rows else {}, self.attributes)

    def _named(self, labels: Any) -> Any:
        """Labels as they are shown: a model that is a layer itself, ``""``, by its name."""
        if isinstance(labels, tuple):  # (dimensions, values)
            return labels[0], self._named(labels[1]), *labels[2:]
        values = np.asarray(labels)
        if values.dtype.kind != "U":
            return labels
        return np.where(values == "", self.attributes["model"], values)

    def _stacked(self, name: str, dimensions: tuple[str, ...], rows: Sequence[Row]) -> np.ndarray:
        shape = tuple(len(self.coordinates.get(each, ())) for each in dimensions)
        stacked = np.full((len(rows), *shape), np.nan)
        for place, row in enumerate(rows):
            if name in row.values:
                stacked[place] = row.values[name]
        return stacked
