"""Values over the steps of a training, read chunk by chunk: losses, and every variable of a scope.

A variable with further dimensions, such as layers, becomes its lowest, mean and highest value at
each step. Long trainings are thinned, so that a view of any training has a bounded size.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.plots.names import dimension_name, quantity_name
from normscope.results.chunks import STEP
from normscope.results.codec import RawDataset, RawVariable
from normscope.watch.gauge import RECENT

MOST_POINTS = 1000  # of a variable; beyond it every second one is dropped
_SENT = 300  # points of a line that a view draws
_MOST_VARIABLES = 40
_DIGITS = 4
_LONGEST = 80  # characters of a name
_ENDS = ("_low", "_high")


@dataclass(eq=False)
class Line:
    """One variable over the steps.

    Args:
        over: what lowest, mean and highest are taken over; "" for one value at each step.
    """

    over: str = ""
    steps: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    mean: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def extend(self, steps: NDArray[Any], values: NDArray[np.float64]) -> None:
        """Add values (step, others); steps without any value or number are left out.

        Args:
            steps: their numbers.
            values: a row for each step.
        """
        kept = ~np.isnan(values).all(axis=1) & np.isfinite(steps)
        rows = values[kept]
        with np.errstate(invalid="ignore", over="ignore"):  # inf - inf
            self.steps += steps[kept].astype(float).tolist()
            self.low += np.nanmin(rows, axis=1).tolist() if len(rows) else []
            self.mean += np.nanmean(rows, axis=1).tolist() if len(rows) else []
            self.high += np.nanmax(rows, axis=1).tolist() if len(rows) else []
        while len(self.steps) > MOST_POINTS:
            for each in (self.steps, self.low, self.mean, self.high):
                each[:] = [*each[:-1:2], each[-1]]

    @property
    def last(self) -> float:
        """The mean at the last step; NaN if there is none."""
        return self.mean[-1] if self.mean else np.nan

    def payload(self) -> dict[str, Any]:
        """Return the points to draw, not more than a few hundred, the last one included."""
        every = max(1, -(-len(self.steps) // _SENT))
        chosen = sorted({*range(0, len(self.steps), every), len(self.steps) - 1} - {-1})
        found: dict[str, Any] = {
            "steps": [self.steps[each] for each in chosen],
            "mean": [_rounded(self.mean[each]) for each in chosen],
        }
        if self.over:
            found["over"] = self.over
            found["low"] = [_rounded(self.low[each]) for each in chosen]
            found["high"] = [_rounded(self.high[each]) for each in chosen]
        return found


class Series:
    """The variables of one record over its steps.

    Args:
        attempts: of the record; the next attempt begins a new series.
        has_result: whether the record is complete.
    """

    def __init__(self, attempts: int, has_result: bool) -> None:
        self.attempts, self.has_result = attempts, has_result
        self.lines: dict[str, Line] = {}
        self.next_chunk = 0
        self.is_scope = False
        self.test_loss = np.nan
        self.loss: float | None = None  # at the last step, however thinned
        self.recent: dict[str, deque[float]] = {}  # last values of variables with one each step

    def add(self, chunk: RawDataset) -> None:
        """Add the next chunk."""
        self.next_chunk += 1
        self.is_scope = self.is_scope or "probes" in chunk.attributes
        loss = chunk.variables.get("test_loss")
        if loss is not None and loss.values.ndim == 0 and loss.values.dtype.kind in "iuf":
            self.test_loss = float(loss.values)
        for name, variable in chunk.variables.items():
            name = name[:_LONGEST]
            shown = name in self.lines or len(self.lines) < _MOST_VARIABLES
            if shown and _is_measured(name, variable):
                self._extend(name, variable, _steps(chunk, variable))

    def _extend(self, name: str, variable: RawVariable, steps: NDArray[Any]) -> None:
        axis = variable.dims.index(STEP)
        values = np.moveaxis(variable.values, axis, 0).astype(np.float64).reshape(len(steps), -1)
        if not values.size:
            return
        others = [dimension_name(dim) for dim in variable.dims if dim != STEP]
        line = self.lines.setdefault(name, Line(" and ".join(others)[:_LONGEST]))
        line.extend(steps, values)
        if variable.dims == (STEP,):
            kept = ~np.isnan(values) | (name == "loss")  # a loss of NaN is known
            known = values[kept][-RECENT:]
            self.recent.setdefault(name, deque(maxlen=RECENT)).extend(known.tolist())
            self.loss = float(values[-1, 0]) if name == "loss" else self.loss

    @property
    def last_step(self) -> float | None:
        """The last step of the loss, or of any variable."""
        line = self.lines.get("loss") or next(iter(self.lines.values()), None)
        return line.steps[-1] if line is not None and line.steps else None

    def panels(self) -> list[dict[str, Any]]:
        """Return one panel for each variable; a pair of lowest and highest values is a band."""
        found = []
        for name, line in self.lines.items():
            base = next((name.removesuffix(end) for end in _ENDS if name.endswith(end)), "")
            low, high = (self.lines.get(f"{base}{end}") for end in _ENDS)
            if not base or low is None or high is None:
                found.append({"variable": name, "title": quantity_name(name), **line.payload()})
            elif line is low and not self._has_band(base):
                title = f"{quantity_name(base)}, lowest to highest"
                band = Line("along the gradient", low.steps, low.low, low.mean, high.high).payload()
                del band["mean"]
                found.append({"variable": f"{base}_", "title": title, **band})
        return found

    def _has_band(self, base: str) -> bool:
        """Return whether a line over the distances along the gradient shows the same band."""
        lines = (self.lines.get(name) for name in (base, f"ray_{base}"))
        return any(line is not None and bool(line.over) for line in lines)


def _is_measured(name: str, variable: RawVariable) -> bool:
    measured = STEP in variable.dims and not variable.is_coordinate
    return measured and variable.values.dtype.kind in "iuf" and name != STEP


def _steps(chunk: RawDataset, variable: RawVariable) -> NDArray[Any]:
    """Return the numbers of the steps; counted from 0 if the chunk has no plain ones."""
    length = variable.values.shape[variable.dims.index(STEP)]
    steps = chunk.variables.get(STEP)
    if steps is not None and steps.dims == (STEP,) and steps.values.dtype.kind in "iuf":
        return steps.values
    return np.arange(length)


def _rounded(value: float) -> float | None:
    return float(f"{value:.{_DIGITS}g}") if np.isfinite(value) else None
