"""Numbers and figures that ``normscope sweep`` writes beside its store, also while it runs."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.errors import InputError
from normscope.progress import Progress, ProgressCallback

if TYPE_CHECKING:
    import xarray as xr

    from normscope.results import Store
    from normscope.sweeps.diagram import Diagram

_UPDATES = 8  # of the files while a sweep runs, at most
_SECONDS = 10.0  # between two of them, at least: drawing must cost little


class DiagramFiles:
    """The numbers and the figure of a diagram, updated as its trainings end.

    Args:
        plan: the diagram.
        store: with the trainings so far.
        out: the path of the store.
        progress: receives the events of the sweep.
    """

    def __init__(self, plan: Diagram, store: Store, out: Path, progress: ProgressCallback) -> None:
        self._plan, self._store, self._out, self._progress = plan, store, out, progress
        self._ended, self._drawn, self._written = 0, 0, time.monotonic()
        self.results: xr.Dataset | None = None  # what was written last

    def update(self, event: Progress) -> None:
        """Pass an event on; write the files after every eighth of the units."""
        self._progress(event)
        self._ended += 1
        due = self._ended - self._drawn >= len(self._plan.units) / _UPDATES
        if due and time.monotonic() - self._written >= _SECONDS:
            with suppress(OSError):  # such as a full disk: the end of the sweep reports it
                self.write()
            self._drawn, self._written = self._ended, time.monotonic()

    def write(self) -> dict[str, str]:
        """Write the files from what is stored; return their paths by content."""
        self.results = self._plan.results(self._store)
        return _write(self.results, self._out, _figure_of(self.results))


def _figure_of(results: xr.Dataset) -> Any:
    """Return one heat map, or one for each loss; None if further settings vary."""
    from normscope.plots.phase_diagram import phase_diagram, phase_diagrams

    dims = {str(name) for name in results["test_loss"].dims} - {"learning_rate", "seed"}
    if len(dims) == 1:
        return phase_diagram(results).figure
    return phase_diagrams(results) if len(dims) == 2 and "loss" in dims else None


def write_boundary(results: xr.Dataset, out: Path) -> dict[str, str]:
    """Write numbers and figure of critical learning rates; return their paths by content."""
    from normscope.plots.phase_diagram import boundary

    return _write(results, out, boundary(results).figure)


def _write(results: xr.Dataset, out: Path, figure: Any) -> dict[str, str]:
    """Write numbers and figure, if there is one, beside the store; return their paths."""
    from normscope.cli.outputs import save_figure
    from normscope.files import replacing

    files = {"numbers": str(out.with_suffix(".nc"))}
    with replacing(files["numbers"]) as unfinished:
        results.to_netcdf(unfinished, engine="scipy")
    if figure is not None:
        files["figure"] = str(save_figure(figure, out.with_suffix(".svg")))
    return files


def draw_status(store: Path, figure: Path) -> None:
    """Draw the phase diagram of a store as far as it is computed.

    Args:
        store: its path.
        figure: path of the figure.

    Raises:
        InputError: if the store does not have exactly one diagram.
    """
    from normscope.cli.outputs import check_figure, save_figure
    from normscope.plots.phase_diagram import phase_diagram
    from normscope.report.diagrams import SWEPT, diagrams
    from normscope.results import Store

    check_figure(figure)
    with Store(store, read_only=True) as opened:
        found = list(diagrams(opened.select(SWEPT)).values())
    if len(found) != 1:
        raise InputError(
            f"{store} holds {len(found)} diagrams over gamma and learning rate, and --figure draws "
            f"one; normscope report {store} shows all there is."
        )
    drawn: Any = phase_diagram(found[0]).figure
    save_figure(drawn, figure)
