"""Loss surfaces in a report: sentences, numbers, contours, and a view that can be turned."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import xarray as xr

from normscope.report.document import Card, Surface, Table
from normscope.report.pictures import Drawn, picture_of
from normscope.text import format_number, join_words

SURFACE_QUESTION = "What does the loss look like around these weights?"
"""What a surface answers."""

_STATISTICS = {
    "train": "the batch's statistics at every point, as in training",
    "population": "population statistics, recomputed at every point",
    "eval": "the running statistics of the centre at every point, which do not fit other weights",
    "as_is": "statistics by each layer's own flag",
}
_COLUMNS = {
    "direction": "direction",
    "direction_norm": "its length",
    "curvature": "curvature",
    "hessian_curvature": "d'Hd",
    "roughness": "roughness",
    "width": "width",
}
_DIGITS = 6  # of values that the page shows under the pointer
_MOST_POINTS = 101  # of an axis, in the page


def is_surface(dataset: xr.Dataset) -> bool:
    """Return whether a dataset is a loss surface."""
    if dataset.attrs.get("kind") != "loss surface" or "loss" not in dataset:
        return False
    numbers = ("curvature", "hessian_curvature", "roughness", "width")
    if not {"axis", "direction", *numbers} <= {*dataset.variables}:
        return False
    names = ("alpha", "beta")[: dataset["loss"].ndim]
    return (
        dataset["loss"].dims == names
        and tuple(map(str, dataset["axis"].values.tolist())) == names
        and all(dataset[key].dims == ("axis",) for key in ("direction", *numbers))
        and all(dataset[key].dtype.kind in "fiu" for key in ("loss", *names, *numbers))
    )


def draw_surface(dataset: xr.Dataset) -> Drawn:
    """Return sentences and the picture of a surface."""
    from normscope.plots.surface import surface_plot

    figure = surface_plot(dataset).get_figure(root=True)
    assert figure is not None
    words = describe_surface(dataset)
    marks = "Cross: the weights. Circle: the lowest point."
    marks = "Dotted: the weights. Circle: the lowest point." if len(dataset["axis"]) < 2 else marks
    path = " Line: the path of the checkpoints." if "trajectory" in dataset else ""
    turn = " Below, drag to turn it; the sliders cut it." if len(dataset["axis"]) == 2 else ""
    picture = picture_of(figure, " ".join(words), f"Loss over the directions. {marks}{path}{turn}")
    return Drawn(words, [replace(picture, surface=_surface(dataset))], words[0])


def describe_surface(dataset: xr.Dataset) -> list[str]:
    """Return what a surface shows, in sentences."""
    loss = dataset["loss"].values
    known = loss[np.isfinite(loss)]
    low, high = (float(known.min()), float(known.max())) if known.size else (math.nan, math.nan)
    centre = float(dataset.attrs.get("centre_loss", math.nan))
    names = [_direction_words(str(each)) for each in dataset["direction"].values]
    mode = str(dataset.attrs.get("statistics", ""))
    words = [
        f"The loss is {centre:.3g} at the weights; around them it goes from {low:.3g} to "
        f"{high:.3g} along {join_words(list(dict.fromkeys(names)))}.",
    ]
    if dataset.attrs.get("batch_norm_layers", 1):
        words.append(f"BatchNorm uses {_STATISTICS.get(mode, 'unknown statistics')}.")
    if len(known) < loss.size:
        words.append(f"At {loss.size - known.size} of {loss.size} points it is not finite.")
    interpolated = int((dataset["measured"].values == 0).sum()) if "measured" in dataset else 0
    if interpolated:
        words.append(f"{interpolated} of {loss.size} points are interpolated, not measured.")
    if "trajectory_distance" in dataset:
        far = float(dataset["trajectory_distance"].max())
        words.append(f"The checkpoints are up to {far:.3g} away from the drawn plane.")
    return words


def _direction_words(name: str) -> str:
    """Return a direction as a sentence has it."""
    known = {
        "random": "random directions",
        "gradient": "the gradient",
        "hessian": "top eigenvectors of the Hessian",
        "ggn": "top eigenvectors of the Gauss-Newton matrix",
        "checkpoints": "principal directions of the checkpoints",
    }
    return known.get(name, f"the direction {name}")


def surface_cards(dataset: xr.Dataset) -> list[Card]:
    """Return the numbers of the first screen."""
    cards = [
        Card("loss at the weights", f"{float(dataset.attrs.get('centre_loss', math.nan)):.3g}")
    ]
    for index, name in enumerate(dataset["axis"].values):
        at = {
            key: dataset[key].values[index] for key in ("curvature", "hessian_curvature", "width")
        }
        form = float(at["hessian_curvature"])
        note = f"d'Hd {form:.3g}" if math.isfinite(form) else "d'Hd not computed"
        cards.append(Card(f"curvature along {name}", f"{float(at['curvature']):.3g}", note))
    widths = [format_number(float(each), 3) for each in dataset["width"].values]
    cards.append(Card("width at twice the minimum", " x ".join(widths), "in units of the axes"))
    return cards


def surface_table(dataset: xr.Dataset) -> Table:
    """Return one row for each axis, with its numbers."""
    rows = [
        [str(name), *(_plain(dataset[key].values[index]) for key in _COLUMNS if key in dataset)]
        for index, name in enumerate(dataset["axis"].values)
    ]
    columns = ["axis", *(words for key, words in _COLUMNS.items() if key in dataset)]
    note = (
        "Curvature: second difference at the weights; d'Hd: the Hessian's quadratic form, which it "
        "approaches on a fine grid. Roughness: largest second difference anywhere; over the "
        "squared length of the direction it is a lower bound of the smoothness constant beta. "
        "Width: of the region below twice the minimum. All in units of the axis."
    )
    return Table("Numbers of each axis", columns, rows, note)


def _plain(value: object) -> str | float:
    return float(value) if isinstance(value, np.floating | np.integer | float) else str(value)


def _surface(dataset: xr.Dataset) -> Surface | None:
    """Return the values that a page draws; None for a line."""
    if dataset["loss"].ndim != 2:
        return None
    every = {
        name: slice(None, None, -(-size // _MOST_POINTS))
        for name, size in dataset["loss"].sizes.items()
    }
    shown = dataset.isel(every)
    rows = [
        [_rounded(value) if math.isfinite(value) else None for value in row]
        for row in shown["loss"].values.astype(float)
    ]
    path = dataset["trajectory"].values if "trajectory" in dataset else np.empty((0, 2))
    names = [f"{axis} ({dataset['direction'].sel(axis=axis).item()})" for axis in ("alpha", "beta")]
    return Surface(
        (names[0], names[1]),
        [_rounded(each) for each in shown["alpha"].values],
        [_rounded(each) for each in shown["beta"].values],
        rows,
        [(_rounded(a), _rounded(b)) for a, b in path if math.isfinite(a + b)],
    )


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
