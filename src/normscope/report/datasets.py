"""Datasets as sections: scopes, phase diagrams, loss surfaces, any other labelled numbers."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import StateError
from normscope.plots.names import dimension_name, display_settings, quantity_name
from normscope.report.diagrams import dataset_diagrams
from normscope.report.document import Card, Name, Report, Section, Surface, Table
from normscope.report.downloads import dataset_downloads
from normscope.report.narrative import describe_scope, not_finite, scope_cards
from normscope.report.page import write_report
from normscope.report.pictures import Drawn, draw_diagrams, picture_of, scope_picture, try_drawing
from normscope.results.tables import present_versions
from normscope.text import Table as TextTable
from normscope.text import format_number, join_words, plural

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


def dataset_section(
    dataset: xr.Dataset,
    title: str,
    *,
    stem: str = "numbers",
    settings: Mapping[str, Any] | None = None,
    versions: Mapping[str, str] | None = None,
    command_note: str = "",
) -> Section:
    """Return a dataset as a section.

    Measurements of a scope are drawn in panels, a phase diagram as a heat map, a loss surface by
    its contours; any other dataset gets a table of its variables.

    Args:
        dataset: labelled numbers.
        title: the heading.
        stem: of the names of its data files.
        settings: by name; None for the dataset's attributes.
        versions: of the packages it ran on, by name.
        command_note: why there is no command that reproduces it.
    """
    drawn, table, question, cards = _content(dataset)
    if settings is None:
        settings = _attributes(dataset)
        settings = display_settings(settings) if "test_loss" in dataset else settings
    return Section(
        title,
        drawn.words,
        drawn.pictures,
        [replace(table, folded=bool(drawn.pictures))],
        settings=settings,
        versions=versions or {},
        command_note=command_note,
        downloads=dataset_downloads(dataset, stem),
        asked=question,
        cards=cards,
        headline=drawn.headline,
    )


def _content(dataset: xr.Dataset) -> tuple[Drawn, Table, str, list[Card]]:
    """Return sentences with pictures, a table, the question and the cards of a dataset."""
    has_losses = "loss" in dataset and dataset["loss"].dims == ("step",)
    if has_losses and "probes" in dataset.attrs:
        drawn = try_drawing(lambda: _draw_scope(dataset))
        model = dataset.attrs.get("model", "model")
        question = f"How rough is the loss in the training of this {model}?"
        return drawn, scope_table(dataset), question, scope_cards(dataset)
    if is_surface(dataset):
        drawn = try_drawing(lambda: draw_surface(dataset))
        return drawn, surface_table(dataset), SURFACE_QUESTION, surface_cards(dataset)
    table = variables_table(dataset)
    found = dataset_diagrams(dataset)
    if found:
        return try_drawing(lambda: draw_diagrams(found)), table, "", []
    sizes = ", ".join(f"{name}: {size}" for name, size in dataset.sizes.items())
    words = [f"{plural(len(dataset.data_vars), 'variable')} over {sizes or 'no dimension'}."]
    return Drawn(words), table, "", []


def _draw_scope(dataset: xr.Dataset) -> Drawn:
    picture = scope_picture(dataset)
    return Drawn(describe_scope(dataset), [] if picture is None else [picture])


def variables_table(dataset: xr.Dataset) -> Table:
    """Return one row for each variable: dimensions, number of values, and their range."""
    rows = []
    for name, values in dataset.data_vars.items():
        numbers = values.values.ravel() if values.dtype.kind in "biuf" else np.array([])
        known = numbers[np.isfinite(numbers.astype(float))].astype(float)
        ends = (known.min(), np.median(known), known.max()) if known.size else (None,) * 3
        unknown = values.size - known.size if numbers.size else None
        limits = (None if end is None else float(end) for end in ends)
        rows.append((str(name), ", ".join(map(str, values.dims)), values.size, unknown, *limits))
    columns = ("variable", "over", "values", "not finite", "least", "median", "largest")
    return Table("Variables", columns, rows)


def _attributes(dataset: xr.Dataset) -> dict[str, Any]:
    """Return the attributes, with those that hold settings as JSON expanded."""
    found: dict[str, Any] = {}
    for name, value in dataset.attrs.items():
        expanded = None
        if name in ("settings", "parameters") and isinstance(value, str):
            with suppress(ValueError):
                expanded = json.loads(value)
        found |= expanded if isinstance(expanded, dict) else {str(name): value}
    return {
        name: value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for name, value in found.items()
    }


def scope_table(dataset: xr.Dataset) -> Table:
    """Return one row for each quantity of a scope: course and range; over layers the median.

    Least and largest are of the finite values; the number of others is in the last column.
    """
    rows = []
    for name, values in dataset.data_vars.items():
        others = [dim for dim in values.dims if dim != "step"]
        if "step" not in values.dims or values.dtype.kind not in "biuf":
            continue
        course = values.median(others, skipna=True).values if others else values.values
        broken = not_finite(dataset, course)
        measured = course[np.isfinite(course) | broken]
        known = measured[np.isfinite(measured)]
        ends = (measured[0], measured[-1]) if measured.size else (None, None)
        limits = (known.min(), known.max()) if known.size else (None, None)
        # a float NaN would be shown as unknown
        known_as = [
            None if v is None else "nan" if np.isnan(v) else float(v) for v in (*ends, *limits)
        ]
        numbers = (*known_as, int(broken.sum()))
        over = join_words([dimension_name(str(dim)) for dim in others]) if others else ""
        rows.append((Name(quantity_name(str(name)), str(name)), over, *numbers))
    columns = ("quantity", "median over", "first", "last", "least", "largest", "not finite")
    return Table("What was measured, over the steps, with its name in the data", columns, rows)


def write_scope_report(
    dataset: xr.Dataset,
    path: str | os.PathLike[str],
    title: str | None = None,
    further: Mapping[str, Any] | None = None,
) -> Path:
    """Write what a scope measured as one HTML file.

    Args:
        dataset: as ``Scope.results`` returns it.
        path: of the file.
        title: of the page.
        further: settings that are not in the dataset, such as the optimizer and the labels.

    Returns:
        The path.

    Raises:
        StateError: if nothing was measured.
    """
    if not dataset.sizes.get("step"):
        raise StateError("there is nothing to report: no step was measured yet.")
    settings = {**dataset.attrs, **(further or {}), "seed": int(dataset["seed"])}
    if "distance" in dataset.coords:
        settings["distances"] = dataset["distance"].values.tolist()
    section = dataset_section(
        dataset,
        "Measurements",
        stem="scope",
        settings=settings,
        versions=present_versions(),
        command_note="There is no command: a scope watches a training of your own program.",
    )
    report = Report(title or "What the scope measured", describe_scope(dataset), [section])
    return write_report(report, path)


def write_surface_report(
    dataset: xr.Dataset, path: str | os.PathLike[str], title: str | None = None
) -> Path:
    """Write a loss surface as one HTML file.

    Args:
        dataset: of a `normscope.landscape.Surface`.
        path: of the file.
        title: of the page.

    Returns:
        The path.
    """
    section = dataset_section(
        dataset,
        "Loss surface",
        stem="surface",
        versions=present_versions(),
        command_note="There is no command: the surface is of a model of your own program.",
    )
    return write_report(Report(title or "Loss surface", section.paragraphs, [section]), path)


def scope_html(dataset: xr.Dataset, caption: str) -> str:
    """Return what a scope measured so far as an HTML table for a notebook.

    Args:
        dataset: as ``Scope.results`` returns it; it may be empty.
        caption: above the table.
    """
    if not dataset.sizes.get("step"):
        return TextTable([], caption, ["No step was measured yet."]).html()
    table = scope_table(dataset)
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    return TextTable(rows, caption).html()


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
