"""Phase diagrams as they fill: one cell for each learning rate and value of another setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.watch.records import (
    DIVERGED,
    FAILED,
    FINISHED,
    PENDING,
    RUNNING,
    STATES,
    Records,
    readable,
    value_text,
)

RATE = "learning_rate"
MOST_GRIDS = 12
_DIGITS = 3  # of a loss


@dataclass(frozen=True, eq=False)
class Grid:
    """One diagram; arrays have an entry for each cell that has records.

    Args:
        title: what distinguishes it from other diagrams of the experiment.
        rates: the learning rates, ascending.
        setting: name of the vertical axis; None: the learning rate alone varies.
        values: of that setting, ascending; one of them if there is no setting.
        cells: row times the number of rates plus column, ascending.
        states: codes of `records.STATES`.
        losses: mean test loss of the finished runs; NaN if not read yet.
        done: runs that have ended.
        runs: of the cell, one for each seed.
        changed: version of the view at which the cell changed last.
        made: version at which the axes changed last.
    """

    title: str
    rates: tuple[float, ...]
    setting: str | None
    values: tuple[float, ...]
    cells: NDArray[np.int64]
    states: NDArray[np.int8]
    losses: NDArray[np.float64]
    done: NDArray[np.int64]
    runs: NDArray[np.int64]
    changed: NDArray[np.int64]
    made: int = 0

    def after(self, before: Grid | None, version: int) -> Grid:
        """Return the grid with the versions at which its parts changed.

        Args:
            before: the same diagram at the last reading.
            version: of this reading.
        """
        if before is None or not self._has_axes_of(before):
            made, changed = version, np.full(len(self.cells), version)
        else:
            same = np.isclose(self.losses, before.losses, rtol=0, atol=0, equal_nan=True)
            for name in ("states", "done", "runs"):
                same &= getattr(self, name) == getattr(before, name)
            made, changed = before.made, np.where(same, before.changed, version)
        parts = {name: value for name, value in vars(self).items() if name not in _VERSIONS}
        return Grid(**parts, changed=changed, made=made)

    def _has_axes_of(self, other: Grid) -> bool:
        axes = (self.title, self.rates, self.setting, self.values)
        return axes == (other.title, other.rates, other.setting, other.values) and np.array_equal(
            self.cells, other.cells
        )

    def payload(self, since: int) -> dict[str, Any] | None:
        """Return what has changed since a version; None if nothing has.

        Args:
            since: version that the view has; 0 for none.
        """
        whole = self.made > since
        chosen = slice(None) if whole else np.flatnonzero(self.changed > since)
        if not whole and not len(self.cells[chosen]):
            return None
        is_full = whole and len(self.cells) == len(self.rates) * len(self.values)
        found: dict[str, Any] = {
            "cells": None if is_full else self.cells[chosen].tolist(),  # None: all, in order
            "states": self.states[chosen].tolist(),
            "losses": [_rounded(each) for each in self.losses[chosen].tolist()],
        }
        if self.runs.max() > 1:
            found |= {"done": self.done[chosen].tolist(), "runs": self.runs[chosen].tolist()}
        if whole:
            found["axes"] = {
                "title": self.title,
                "rates": self.rates,
                "setting": None if self.setting is None else readable(self.setting),
                "values": self.values,
            }
        return found


_VERSIONS = ("changed", "made")


def _rounded(loss: float) -> float | None:
    return float(f"{loss:.{_DIGITS}g}") if np.isfinite(loss) else None


def grids_of(records: Records, at_work: bool = True) -> tuple[list[Grid], int]:
    """Return the diagrams of an experiment, and how many more there are than may be shown.

    An experiment has diagrams if its learning rates vary and are positive numbers. The vertical
    axis is gamma, or the first other number that varies.

    Args:
        records: of the experiment.
        at_work: whether a process is writing; if not, running records count as pending.
    """
    rate = records.columns.get(RATE)
    if rate is None or not rate.varies or not rate.is_numeric or min(rate.values) <= 0:
        return [], 0
    varying = [name for name in records.varying if name != RATE]
    numeric = [name for name in varying if records.columns[name].is_numeric]
    setting = "gamma" if "gamma" in numeric else next(iter(numeric), None)
    others = [name for name in varying if name != setting]
    groups = _groups(records, others)
    shown, states = np.unique(groups)[:MOST_GRIDS], records.state_codes(at_work)
    found = [
        _grid(records, states, setting, others, np.flatnonzero(groups == each)) for each in shown
    ]
    return found, int(groups.max()) + 1 - len(shown)


def _groups(records: Records, names: list[str]) -> NDArray[np.int64]:
    """Return the number of the diagram that each record is part of, in order of occurrence."""
    if not names:
        return np.zeros(len(records), np.int64)
    codes = np.stack([np.array(records.columns[name].codes) for name in names])
    _, first, group = np.unique(codes, axis=1, return_index=True, return_inverse=True)
    order = np.empty(len(first), np.int64)
    order[np.argsort(first)] = np.arange(len(first))
    return order[group.reshape(-1)]


def _grid(
    records: Records,
    codes: NDArray[np.int8],
    setting: str | None,
    others: list[str],
    chosen: NDArray[np.int64],
) -> Grid:
    if len(records.editions) > 1:
        chosen = _latest(records, setting, chosen)
    rates, columns = _axis(records, RATE, chosen)
    values, rows = ((0.0,), 0) if setting is None else _axis(records, setting, chosen)
    cells, cell = np.unique(rows * len(rates) + columns, return_inverse=True)
    states = codes[chosen]
    counts = np.bincount(cell * len(STATES) + states, minlength=len(cells) * len(STATES))
    counts = counts.reshape(-1, len(STATES))
    losses = np.where(states == FINISHED, np.array(records.losses)[chosen], np.nan)
    known = np.isfinite(losses)
    number = np.bincount(cell[known], minlength=len(cells))
    total = np.bincount(cell[known], weights=losses[known], minlength=len(cells))
    return Grid(
        title=", ".join(records.settings(others, int(chosen[0]))),
        rates=rates,
        setting=setting,
        values=values,
        cells=cells,
        states=_states(counts),
        losses=np.where(number > 0, total / np.maximum(number, 1), np.nan),
        done=counts[:, [FINISHED, DIVERGED, FAILED]].sum(axis=1),
        runs=counts.sum(axis=1),
        changed=np.zeros(len(cells), np.int64),
    )


def _latest(records: Records, setting: str | None, chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the records that no later revision or version of the same run supersedes."""
    _, columns = _axis(records, RATE, chosen)
    rows = np.zeros_like(columns) if setting is None else _axis(records, setting, chosen)[1]
    runs = np.stack([columns, rows, np.array(records.seeds)[chosen]])
    order = np.lexsort((chosen, np.array(records.revisions)[chosen], *runs))
    last = np.append((np.diff(runs[:, order]) != 0).any(axis=0), True)
    return np.sort(chosen[order[last]])


def _states(counts: NDArray[np.int64]) -> NDArray[np.int8]:
    """Return the state of cells by their runs: a divergence counts most, then a failure."""
    found = np.full(len(counts), PENDING, np.int8)
    for state in (FINISHED, RUNNING, FAILED, DIVERGED):
        found[counts[:, state] > 0] = state
    return found


def _axis(
    records: Records, name: str, chosen: NDArray[np.int64]
) -> tuple[tuple[float, ...], NDArray[np.int64]]:
    """Return the values of a setting in ascending order, and the index of each record's."""
    column = records.columns[name]
    numbers = np.array(column.values, dtype=np.float64)[np.array(column.codes)[chosen]]
    values, index = np.unique(numbers, return_inverse=True)
    return tuple(values.tolist()), index


def describe(grid: Grid) -> str:
    """Return a diagram in one sentence."""
    counts = np.bincount(grid.states, minlength=len(STATES))
    ended = int(counts[[FINISHED, DIVERGED, FAILED]].sum())
    words = f"{ended} of {len(grid.cells)} cells, {counts[DIVERGED]} of them diverged"
    span = f"learning rate {value_text(grid.rates[0])} to {value_text(grid.rates[-1])}"
    if grid.setting is None:
        return f"{words}; {span}."
    low, high = value_text(grid.values[0]), value_text(grid.values[-1])
    return f"{words}; {span}, {readable(grid.setting)} {low} to {high}."
