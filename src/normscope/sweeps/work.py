"""Work of a sweep: the cells of its grid in their order, groups of cells, and the final report."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import pandas as pd
import xarray as xr

from normscope.errors import InputError
from normscope.results import record_key
from normscope.text import Rendered, Table, plural


@dataclass(frozen=True)
class Cell:
    """One computation of a sweep.

    Args:
        parameters: its settings by name, without the seed.
        seed: of its random numbers.
    """

    parameters: Mapping[str, Any]
    seed: int


@dataclass(frozen=True)
class Unit:
    """Cells that are computed together: the unit of work, of commit and of resuming."""

    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Work:
    """What a sweep computes in each cell.

    Args:
        experiment: the name of its records.
        function: returns a dataset for each cell of a unit; workers import it by its name.
        revision: of its code, part of the records' keys.
        diverged: returns whether a dataset is a divergence.
    """

    experiment: str
    function: Callable[[Sequence[Cell]], list[xr.Dataset]]
    revision: int = 1
    diverged: Callable[[xr.Dataset], bool] = lambda dataset: False

    def key(self, cell: Cell) -> str:
        """Key of a cell's record."""
        return record_key(self.experiment, cell.parameters, cell.seed, self.revision)


@dataclass(frozen=True)
class Failure:
    """A cell without a result, and the error message."""

    cell: Cell
    error: str


@dataclass(frozen=True, repr=False)
class Report(Rendered):
    """Summary of a finished sweep.

    Args:
        cells: number of all cells.
        found: cells that had a result before.
        diverged: cells that diverged, in all.
        failures: the cells without a result.
        seconds: duration.
    """

    cells: int
    found: int
    diverged: int
    failures: tuple[Failure, ...]
    seconds: float

    def __str__(self) -> str:
        parts = [f"{plural(self.cells, 'cell')} in {self.seconds:.1f} s"]
        parts += [f"{self.found} were there already", f"{self.diverged} diverged"]
        return ", ".join([*parts, f"{len(self.failures)} failed"])

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        failures = [
            {"parameters": dict(each.cell.parameters), "seed": each.cell.seed, "error": each.error}
            for each in self.failures
        ]
        return {**vars(self), "failures": failures}

    def to_dataframe(self) -> pd.DataFrame:
        """One row, with the number of failures."""
        return super().to_dataframe().assign(failures=len(self.failures))

    def _table(self) -> Table:
        values = {**vars(self), "failures": len(self.failures)}
        return Table(values, "Sweep", [each.error for each in self.failures])


def grid_cells(
    axes: Mapping[str, Sequence[Any]], settings: Mapping[str, Any], seeds: Sequence[int]
) -> list[Cell]:
    """Return every combination of the axes' values, seed after seed, each seed coarse to fine.

    Args:
        axes: the values of every setting that is swept.
        settings: those that are the same in all cells.
        seeds: of the random numbers.

    Returns:
        The cells in the order in which they should be computed.

    Raises:
        InputError: if an axis or the list of seeds is empty or has a value twice.
    """
    for name, values in [*axes.items(), ("seeds", seeds)]:
        if not len(values) or any(_contains(values[:n], each) for n, each in enumerate(values)):
            raise InputError(f"{name} needs values, each of them once, got {list(values)!r}.")
    order = coarse_to_fine([len(values) for values in axes.values()])
    return [
        Cell({**settings, **{name: axes[name][i] for name, i in zip(axes, at, strict=True)}}, seed)
        for seed in seeds
        for at in order
    ]


def coarse_to_fine(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Return all index tuples of a grid: first a coarse grid over all of it, then finer ones.

    >>> coarse_to_fine([5])
    [(0,), (4,), (2,), (1,), (3,)]

    Args:
        sizes: number of values along each axis.
    """
    stride = 1
    while stride < max(sizes, default=1) - 1:
        stride *= 2
    found: dict[tuple[int, ...], None] = {}
    while stride:
        axes = [range(0, size, stride) for size in sizes]
        found |= dict.fromkeys(product(*axes))
        stride //= 2
    return list(found)


def group_cells(
    cells: Sequence[Cell], size: int, group_key: Callable[[Cell], Hashable | None]
) -> Iterator[Unit]:
    """Yield units of cells that can be computed together.

    They depend on the grid alone, not on what has been computed already: a resumed sweep makes the
    same units again, and so the same results bit for bit.

    Args:
        cells: in the order in which they should be computed.
        size: the most cells of a unit.
        group_key: what cells of one unit must have in common; None: the cell is alone.

    Yields:
        The units, each at the position of its last cell.
    """
    gathered: dict[Hashable, list[Cell]] = {}
    for cell in cells:
        key = group_key(cell) if size > 1 else None
        if key is None:
            yield Unit((cell,))
            continue
        group = gathered.setdefault(key, [])
        group.append(cell)
        if len(group) == size:
            yield Unit(tuple(gathered.pop(key)))
    for group in gathered.values():
        yield Unit(tuple(group))


def _contains(values: Sequence[Any], wanted: Any) -> bool:
    """Return whether a value is in a list; 1 equals 1.0 but not True."""
    return any(
        wanted == each and isinstance(wanted, bool) == isinstance(each, bool) for each in values
    )
