"""What came out of a phase diagram, in sentences: its best cell and where training diverges."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["findings"]

_MOST = 6  # diagrams that are told, as a report shows


def findings(results: xr.Dataset) -> list[str]:
    """The best cell and the boundary of every diagram in the results of a sweep.

    Args:
        results: as ``normscope.sweeps.phase_diagram`` returns them, over any settings.

    Returns:
        Sentences, those of a report and where training diverges.
    """
    from normscope.report.diagram import dataset_diagrams
    from normscope.report.diagram_words import diagram_words

    diagrams = dataset_diagrams(results)
    words = []
    for name, diagram in list(diagrams.items())[:_MOST]:
        told = " ".join(filter(None, (diagram_words(diagram), _boundary(diagram))))
        words.append(f"{name}: {told}" if name else told)
    if len(diagrams) > _MOST:
        words.append(f"{len(diagrams) - _MOST} more diagrams are in the numbers.")
    return words


def _boundary(diagram: xr.Dataset) -> str:
    """From which learning rate on training diverges, at both ends of the other setting."""
    from normscope.experiments.wei2018.phase_diagram import grid_boundary

    measured = grid_boundary(diagram)
    axis = str(measured.dims[0])
    known = measured[np.isfinite(measured.values)]
    if not known.size:
        return "The learning rates hold no boundary between trainings that held and diverged."
    ends = dict.fromkeys([float(known[axis].min()), float(known[axis].max())])
    places = [f"{float(known.sel({axis: end})):.3g} at {axis} {end:.3g}" for end in ends]
    told = f"Training diverges above a learning rate of about {' and '.join(places)}"
    rates = _theory(diagram, axis, list(ends))
    if len(rates) < len(ends):  # which end a rate is of is not plain then
        rates = {end: f"{rate} at {axis} {end:.3g}" for end, rate in rates.items()}
    theory = f"; the theory (train) has {' and '.join(rates.values())}" if rates else ""
    return f"{told}{theory}."


def _theory(diagram: xr.Dataset, axis: str, ends: list[float]) -> dict[float, str]:
    """The critical learning rates by the theory of training, at those ends where it has one."""
    if "critical_learning_rate" not in diagram or "closure" not in diagram.coords:
        return {}
    line = diagram["critical_learning_rate"]
    if "train" not in line["closure"].values:
        return {}
    if "closure" in line.dims:
        line = line.sel(closure="train")
    rates = {end: float(line.sel({axis: end})) for end in ends}
    return {end: f"{rate:.3g}" for end, rate in rates.items() if not np.isnan(rate)}
