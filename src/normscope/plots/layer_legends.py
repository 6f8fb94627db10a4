"""Legends of a figure's layers: one for all panels over the same layers, beside no other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import xarray as xr
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from normscope.plots.quantities import dimension_name

__all__ = ["name_layers"]

_Place = Literal["outside lower left", "outside lower right", "outside upper right"]

_KINDS = ("layer", "norm_layer")
_MOST = 4  # names in a row
_SIZE = 10.0  # of the letters in points
_LETTER, _KEY = 0.6, 4.8  # sizes of a letter, and of a line with the space about it
_LINE = 0.22  # inches of a row


def name_layers(figure: Figure, panels: Mapping[str, Axes], results: xr.Dataset) -> None:
    """Name the layers of every kind, by the panel that shows most of them.

    The figure grows by the rows of the legends. Two of them stand side by side below it where both
    fit there, else one goes above.

    Args:
        figure: with the panels.
        panels: by the variable that each shows.
        results: with these variables over ``layer``, ``norm_layer`` or neither.
    """
    kinds = {kind: _keys(panels, results, kind) for kind in _KINDS}
    kinds = {kind: keys for kind, keys in kinds.items() if keys}
    room = figure.get_figwidth() * 72 / _SIZE / max(len(kinds), 1)
    beside = all(_columns(list(keys), room) for keys in kinds.values())
    room = room if beside else room * len(kinds)
    rows = []
    for kind, keys in kinds.items():
        columns = max(_columns(list(keys), room), 1)
        figure.legend(
            list(keys.values()),
            list(keys),
            loc=_place(kind, beside),
            ncols=columns,
            frameon=False,
            title=_title(kind, len(keys), _count(panels, results, kind)),
        )
        rows.append(1 - (-len(keys) // columns))
    height = max(rows, default=0) if beside else sum(rows)
    figure.set_figheight(figure.get_figheight() + _LINE * height)


def _keys(panels: Mapping[str, Axes], results: xr.Dataset, kind: str) -> dict[str, Artist]:
    """What the fullest panel of a kind shows, by its names."""
    found: list[dict[str, Artist]] = [{}]
    for name, axes in panels.items():
        if kind in results[name].dims:
            handles, labels = axes.get_legend_handles_labels()
            found.append(dict(zip(labels, handles, strict=True)))
    return max(found, key=len)


def _count(panels: Mapping[str, Axes], results: xr.Dataset, kind: str) -> int:
    """Lines in the panel that shows most layers of a kind."""
    own = [axes for name, axes in panels.items() if kind in results[name].dims]
    return max(len(axes.lines) for axes in own)


def _title(kind: str, named: int, drawn: int) -> str:
    """What is named; of many layers, how many of them."""
    words = dimension_name(kind)
    return words if named == drawn else f"{named} of {drawn} {words}"


def _place(kind: str, beside: bool) -> _Place:
    if kind == "layer":
        return "outside lower left"
    return "outside lower right" if beside else "outside upper right"


def _columns(labels: Sequence[str], room: float) -> int:
    """Names that stand in a row of so many letter sizes; zero where not even one does."""
    widest = _LETTER * max(map(len, labels), default=0) + _KEY
    return min(len(labels), _MOST, int(room // widest))
