"""Numbers and figure beside a store, written whole, also while a sweep is on."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import xarray as xr

    from normscope.results import Store
    from normscope.sweeps.diagram import Diagram

__all__ = ["Picture", "draw_status", "write_boundary", "write_diagram"]

_PARTS = 8  # pictures on the way, at most
_SECONDS = 10.0  # between two of them, at least: drawing must cost little


class Picture:
    """The numbers and the figure of a diagram, renewed as its trainings end.

    Args:
        plan: the diagram.
        store: with the trainings so far.
        out: the path of the store.
        progress: told of every unit that ends.
    """

    def __init__(
        self, plan: Diagram, store: Store, out: Path, progress: Callable[[str], None]
    ) -> None:
        self._plan, self._store, self._out, self._progress = plan, store, out, progress
        self._ended, self._drawn, self._written = 0, 0, time.monotonic()
        self.found: xr.Dataset | None = None  # what was written last

    def tell(self, label: str) -> None:
        """A unit has ended: after every eighth of them the files are written anew."""
        self._progress(label)
        self._ended += 1
        due = self._ended - self._drawn >= len(self._plan.units) / _PARTS
        if due and time.monotonic() - self._written >= _SECONDS:
            with suppress(OSError):  # a full disk, say: the end of the sweep tells of it
                self.write()
            self._drawn, self._written = self._ended, time.monotonic()

    def write(self) -> dict[str, str]:
        """Write the files from what is stored; their paths."""
        self.found = self._plan.results(self._store)
        return write_diagram(self.found, self._out)


def write_diagram(found: xr.Dataset, out: Path) -> dict[str, str]:
    """Numbers beside the store, and a heat map if there is one to draw.

    Args:
        found: the results on their grid.
        out: the path of the store.

    Returns:
        The paths of the files by what they hold.
    """
    files = {"numbers": _write_numbers(found, out)}
    figure = _figure_of(found)
    if figure is not None:
        from normscope.cli.figures import save_figure

        save_figure(figure, out.with_suffix(".svg"))
        files["figure"] = str(out.with_suffix(".svg"))
    return files


def _figure_of(found: xr.Dataset) -> Any:
    """One heat map, or one for each loss; None where further settings vary."""
    from normscope.plots.phase_diagram import phase_diagram, phase_diagrams

    dims = {str(name) for name in found["test_loss"].dims} - {"learning_rate", "seed"}
    if len(dims) == 1:
        return phase_diagram(found).figure
    return phase_diagrams(found) if len(dims) == 2 and "loss" in dims else None


def write_boundary(found: xr.Dataset, out: Path) -> dict[str, str]:
    """Numbers and figure of critical learning rates; their paths."""
    from normscope.cli.figures import save_figure
    from normscope.plots.phase_diagram import boundary

    figure: Any = boundary(found).figure
    save_figure(figure, out.with_suffix(".svg"))
    return {"numbers": _write_numbers(found, out), "figure": str(out.with_suffix(".svg"))}


def draw_status(store: Path, figure: Path) -> None:
    """Draw the phase diagram of a store as far as it is.

    Args:
        store: its path.
        figure: where the picture goes.

    Raises:
        InputError: if the store does not hold just one diagram.
    """
    from normscope.cli.figures import check_figure, save_figure
    from normscope.errors import InputError
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


def _write_numbers(found: xr.Dataset, out: Path) -> str:
    from normscope.files import replacing

    path = out.with_suffix(".nc")
    with replacing(path) as unfinished:
        found.to_netcdf(unfinished, engine="scipy")
    return str(path)
