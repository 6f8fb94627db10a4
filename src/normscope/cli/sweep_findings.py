"""What came out of a phase diagram, in sentences: its best cell and where training diverges."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    from normscope.report.diagrams import dataset_diagrams
    from normscope.report.narrative import diagram_findings

    diagrams = dataset_diagrams(results)
    words = []
    for name, diagram in list(diagrams.items())[:_MOST]:
        told = diagram_findings(diagram)
        words.append(f"{name}: {told}" if name else told)
    if len(diagrams) > _MOST:
        words.append(f"{len(diagrams) - _MOST} more diagrams are in the numbers.")
    return words
