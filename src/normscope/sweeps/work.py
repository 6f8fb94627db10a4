"""What a sweep computes, and what it tells at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import xarray as xr

from normscope.sweeps.cells import Cell
from normscope.sweeps.worker import Function

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Failure", "Report", "Work"]


@dataclass(frozen=True)
class Work:
    """What a sweep computes in each cell.

    Args:
        experiment: the name of its records.
        function: gives a dataset for each cell of a unit; a worker finds it by its name.
        revision: of its code, as the records have it.
        diverged: whether a dataset is one of divergence.
    """

    experiment: str
    function: Function
    revision: int = 1
    diverged: Callable[[xr.Dataset], bool] = lambda dataset: False


@dataclass(frozen=True)
class Failure:
    """A cell without a result, and why."""

    cell: Cell
    error: str


@dataclass(frozen=True)
class Report:
    """What a sweep did.

    Args:
        cells: in all.
        found: cells whose results were there already.
        diverged: cells that diverged, in all.
        failures: the cells without a result.
        seconds: it took.
    """

    cells: int
    found: int
    diverged: int
    failures: tuple[Failure, ...]
    seconds: float

    def __str__(self) -> str:
        cells = "1 cell" if self.cells == 1 else f"{self.cells} cells"
        parts = [f"{cells} in {self.seconds:.1f} s", f"{self.found} were there already"]
        parts += [f"{self.diverged} diverged", f"{len(self.failures)} failed"]
        return ", ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "cells": self.cells,
            "found": self.found,
            "diverged": self.diverged,
            "seconds": self.seconds,
            "failures": [
                {
                    "parameters": dict(each.cell.parameters),
                    "seed": each.cell.seed,
                    "error": each.error,
                }
                for each in self.failures
            ],
        }

    def to_dataframe(self) -> pd.DataFrame:
        """One row, with the number of the failures."""
        from normscope.results.frame import frame

        return frame([{**self.to_dict(), "failures": len(self.failures)}])

    def _repr_html_(self) -> str:
        from normscope.results.notebook import pairs_html

        failed = {"failures": len(self.failures)}
        note = "\n".join(each.error for each in self.failures)
        return pairs_html({**vars(self), **failed}, "Sweep", note)
