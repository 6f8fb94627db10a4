"""Compute the points of a surface in parts, which a store keeps and an engine distributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import StateError
from normscope.landscape.directions import Axis
from normscope.landscape.identity import structure_digest
from normscope.landscape.points import Plane
from normscope.progress import Progress, ProgressCallback
from normscope.results import Store
from normscope.sweeps.run import sweep
from normscope.sweeps.work import Cell, Unit, Work
from normscope.text import plural

RECORDS = "landscape"
"""Name of the records of a surface's parts in a store."""
WHOLE = "surface"
"""Name of the records of complete surfaces, which reports draw."""

_PARTS = 64  # of a grid, at most, if no part has fewer than this many points:
_FEWEST = 16


class Parts:
    """Computes the points of a grid in parts, which a store keeps and an engine distributes.

    Args:
        plane: with its directions.
        grid: the values of each axis.
        axes: of the surface.
        centre_loss: the loss at the weights.
        store: of the parts.
        engine: options of `sweep`.
        progress: receives the events.
    """

    def __init__(
        self,
        plane: Plane,
        grid: Sequence[np.ndarray],
        axes: Sequence[Axis],
        centre_loss: float,
        store: Store,
        engine: Mapping[str, Any],
        progress: ProgressCallback,
    ) -> None:
        self._plane, self._grid, self._store = plane, grid, store
        self._engine, self._progress = engine, progress
        # a checksum does not know all that a model and a loss compute with: losses help
        losses = [centre_loss, *plane.along(plane.directions).losses(_off_centre(grid))]
        self._settings = {
            "surface": plane.digest(),
            "structure": structure_digest(
                plane.problem.model, plane.problem.loss, with_flags=plane.mode == "as_is"
            ),
            "losses": [f"{loss:.6g}" for loss in losses],
            "mode": plane.mode,
            "directions": [axis.name for axis in axes],
            "axes": [[float(each[0]), float(each[-1]), len(each)] for each in grid],
        }

    def measure(self, indices: list[tuple[int, ...]], level: int) -> np.ndarray:
        """Return the losses at points of the grid."""
        size = max(_FEWEST, self._plane.stack, -(-len(indices) // _PARTS))
        units = [
            self._unit(indices[low : low + size], level, number)
            for number, low in enumerate(range(0, len(indices), size))
        ]
        work = Work(RECORDS, _PartFunction(self._plane, self._grid))

        def send(event: Progress) -> None:
            done = min((event.done or 0) * size, len(indices))
            self._progress(
                Progress(
                    "surface", done=done, total=len(indices), unit="points", kept=event.kept * size
                )
            )

        report = sweep(work, units, self._store, progress=send, **self._engine)
        if report.failures:
            raise StateError(
                f"{len(report.failures)} of {plural(report.cells, 'part')} of the surface failed: "
                f"{report.failures[0].error}"
            )
        keys = [work.key(unit.cells[0]) for unit in units]
        return np.concatenate([self._store.get(key).dataset["loss"].values for key in keys])

    def keep(self, dataset: xr.Dataset, options: Mapping[str, Any]) -> None:
        """Store the complete surface, unless it is stored already.

        Args:
            dataset: of the surface.
            options: settings that its parts do not depend on.
        """
        settings = {**self._settings, **options}
        self._store.compute(WHOLE, settings, self._plane.seed, lambda: dataset)

    def _unit(self, indices: Sequence[tuple[int, ...]], level: int, number: int) -> Unit:
        flat = np.ravel_multi_index(tuple(np.array(indices).T), [len(each) for each in self._grid])
        place = {"level": level, "part": number, "points": flat.tolist()}
        return Unit((Cell({**self._settings, **place}, self._plane.seed),))


def _off_centre(grid: Sequence[np.ndarray]) -> list[tuple[float, ...]]:
    """Return two points off the centre, whose losses help to identify a surface."""
    return [
        tuple(share * float(each[end]) for each in grid) for share, end in ((0.3, 0), (0.4, -1))
    ]


@dataclass(frozen=True)
class _PartFunction:
    """Computes parts of a grid, in this process or in a worker.

    Args:
        plane: with its directions.
        grid: the values of each axis.
    """

    plane: Plane
    grid: Sequence[np.ndarray]

    def __call__(self, cells: Sequence[Cell]) -> list[xr.Dataset]:
        """Return the losses of each cell's points."""
        sizes = [len(each) for each in self.grid]
        found = []
        for cell in cells:
            indices = np.unravel_index(cell.parameters["points"], sizes)
            places = zip(*(v[i] for v, i in zip(self.grid, indices, strict=True)), strict=True)
            losses = self.plane.losses([tuple(map(float, place)) for place in places])
            found.append(xr.Dataset({"loss": ("point", losses)}))
        return found
