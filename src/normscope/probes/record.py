"""Measured steps as a labelled dataset, in memory and optionally in a store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
import xarray as xr

from normscope.errors import ArgumentTypeError, StateError
from normscope.probes.probe import Dimensions, Probe, Values

if TYPE_CHECKING:
    from normscope.probes.context import StepContext
    from normscope.results import Store


@dataclass
class Row:
    """One measured step: its number, and the values by name."""

    step: int
    values: Values = field(default_factory=dict)

    def state_dict(self) -> dict[str, Any]:
        """Return the step and its values as float64 tensors."""
        arrays = {name: np.array(each, dtype=np.float64) for name, each in self.values.items()}
        return {"step": self.step, "values": {k: torch.from_numpy(v) for k, v in arrays.items()}}

    @classmethod
    def of_state(cls, state: dict[str, Any]) -> Self:
        """Return the row whose `state_dict` this is."""
        values = {name: each.cpu().numpy() for name, each in state["values"].items()}
        return cls(state["step"], values)


class ScopeRecord:
    """The rows of a scope and the labels of their dimensions.

    Args:
        probes: whose values the rows hold.
        model: name of the model.
    """

    def __init__(self, probes: Sequence[Probe], model: str) -> None:
        self.rows: list[Row] = []
        self.coordinates: dict[str, Any] = {}
        self.key: str | None = None
        self._probes = probes
        self._dimensions: Dimensions = {"loss": (), "learning_rate": ()}
        for probe in probes:
            self._dimensions |= probe.variables
        self._attributes = {"model": model, "probes": ", ".join(each.name for each in probes)}
        self._store: Store | None = None
        self._stored_rows = 0

    def open_store(self, store: Store, name: str, labels: dict[str, Any], seed: int) -> None:
        """Keep every complete row in a store, too.

        Args:
            store: an open store.
            name: of the experiment in the store.
            labels: the parameters of the record.
            seed: of the record.

        Raises:
            ArgumentTypeError: if it is not a store.
            StateError: if the store has such a record already.
        """
        if not callable(getattr(store, "append", None)) or not hasattr(store, "release"):
            raise ArgumentTypeError(
                "store must be an open normscope.results.Store, such as Store('runs.db'), got "
                f"{store!r}."
            )
        key = store.add(name, labels, seed)
        state = store.get(key).state
        if state not in ("pending", "failed"):
            raise StateError(
                f"the store has a {state} record of {name!r} with seed {seed} and these labels "
                "already; give other labels or another seed."
            )
        store.start(key)
        self._store, self.key = store, key

    @property
    def layer_names(self) -> tuple[str, ...] | None:
        """The layers; None before the first measured step."""
        names = self.coordinates.get("layer")
        return None if names is None else tuple(names.tolist())

    def set_labels(self, context: StepContext) -> None:
        """Set the labels of the dimensions when they are first known."""
        labels: dict[str, Any] = {
            "layer": np.array([layer.name for layer in context.layers], dtype=str),
            "distance": np.array(context.distances),
        }
        for probe in self._probes:
            labels |= probe.coordinates(context)
        self.coordinates = labels | self.coordinates

    def add(self, row: Row) -> None:
        """Add a row, durably if there is a store; repeating the call has no effect."""
        if not any(row is other for other in self.rows[-1:]):
            self.rows.append(row)
        if self._store is not None and self.key is not None:
            if self._stored_rows < len(self.rows):
                self._store.append(self.key, self.dataset([row]))
            self._stored_rows = len(self.rows)

    def state_dict(self) -> dict[str, Any]:
        """Return rows and labels as tensors and plain types."""
        labels = {name: _plain_labels(each) for name, each in self.coordinates.items()}
        return {"rows": [row.state_dict() for row in self.rows], "coordinates": labels}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore rows and labels; the rows are added to the store too."""
        labels = state["coordinates"].items()
        self.coordinates = {name: _array_labels(each) for name, each in labels}
        for row in state["rows"]:
            self.add(Row.of_state(row))

    def finish(self) -> None:
        """Mark the record in the store as finished; without rows it stays pending."""
        if self._store is not None and self.key is not None:
            if self._stored_rows:
                self._store.finish(self.key)
            else:
                self._store.release(self.key)

    def fail(self, error: str) -> None:
        """Mark the record in the store as failed; it keeps its rows."""
        if self._store is not None and self.key is not None:
            self._store.fail(self.key, error)

    def dataset(self, rows: Sequence[Row]) -> xr.Dataset:
        """Return rows as a dataset over ``step`` and the labelled dimensions; NaN if missing."""
        if not rows:
            return xr.Dataset(attrs=self._attributes)
        used = {name for sizes in self._dimensions.values() for name in sizes}
        coordinates: dict[str, Any] = {"step": np.array([row.step for row in rows], dtype=np.int64)}
        for name, labels in self.coordinates.items():
            if isinstance(labels, tuple):  # (dimensions, values)
                coordinates[name] = labels[0], self._name_model(labels[1]), *labels[2:]
            elif name in used:
                coordinates[name] = self._name_model(labels)
        variables = {
            name: (("step", *dimensions), self._stack(name, dimensions, rows))
            for name, dimensions in self._dimensions.items()
        }
        return xr.Dataset(variables, coordinates, self._attributes)

    def _name_model(self, labels: Any) -> np.ndarray:
        """Replace the label ``""``, a model that is a layer itself, by the model's name."""
        values = np.asarray(labels)
        return (
            np.where(values == "", self._attributes["model"], values)
            if values.dtype.kind == "U"
            else values
        )

    def _stack(self, name: str, dimensions: tuple[str, ...], rows: Sequence[Row]) -> np.ndarray:
        shape = tuple(len(self.coordinates.get(each, ())) for each in dimensions)
        stacked = np.full((len(rows), *shape), np.nan)
        for index, row in enumerate(rows):
            if name in row.values:
                stacked[index] = row.values[name]
        return stacked


def _plain_labels(labels: Any) -> dict[str, Any]:
    """Return the labels of a dimension as plain types; `_array_labels` is the inverse."""
    dimensions, values = labels[:2] if isinstance(labels, tuple) else (None, labels)
    rest = list(labels[2:]) if isinstance(labels, tuple) else []
    array = np.asarray(values)
    plain = {"dtype": array.dtype.str, "values": array.tolist()}
    return {"dimensions": dimensions, **plain, "rest": rest}


def _array_labels(plain: dict[str, Any]) -> Any:
    array = np.array(plain["values"], dtype=plain["dtype"])
    dimensions = plain["dimensions"]
    return array if dimensions is None else (tuple(dimensions), array, *plain["rest"])
