"""Functions that workers compute in the tests; found there by their names."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

import numpy as np
import xarray as xr

from normscope.sweeps import Cell, Unit, Work, grid_cells

CALLS: list[int] = []  # in this process


def squares(cells: Sequence[Cell]) -> list[xr.Dataset]:
    """The square of "value"; odd things happen on demand."""
    found = []
    for cell in cells:
        value = cell.parameters["value"]
        CALLS.append(value)
        if value == cell.parameters.get("faulty"):
            raise ValueError(f"{value} is not to my liking")
        if value == cell.parameters.get("deadly"):
            os.kill(os.getpid(), signal.SIGKILL)
        outcome = "diverged" if value > 90 else "finished"
        found.append(xr.Dataset({"square": np.float64(value) ** 2, "outcome": outcome}))
    return found


def diverged(dataset: xr.Dataset) -> bool:
    return str(dataset["outcome"].values) == "diverged"


WORK = Work("squares", squares, revision=1, diverged=diverged)


def units(values: Sequence[int], **settings: object) -> list[Unit]:
    return [Unit((cell,)) for cell in grid_cells({"value": list(values)}, settings, [0])]
