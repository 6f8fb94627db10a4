"""Datasets as sections: scopes, phase diagrams, and any other labelled numbers."""

from __future__ import annotations

import json
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
from normscope.report.document import Card, Name, Report, Section, Table
from normscope.report.downloads import dataset_downloads
from normscope.report.narrative import describe_scope, not_finite, scope_cards
from normscope.report.page import write_report
from normscope.report.pictures import Drawn, draw_diagrams, scope_picture, try_drawing
from normscope.report.surfaces import (
    SURFACE_QUESTION,
    draw_surface,
    is_surface,
    surface_cards,
    surface_table,
)
from normscope.results.tables import present_versions
from normscope.text import Table as TextTable
from normscope.text import join_words, plural


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
    if _is_scope(dataset):
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


def _is_scope(dataset: xr.Dataset) -> bool:
    """Return whether a dataset is what a scope measured in one training run."""
    return "probes" in dataset.attrs and "loss" in dataset and dataset["loss"].dims == ("step",)


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
        numbers = (*map(_table_value, (*ends, *limits)), int(broken.sum()))
        over = join_words([dimension_name(str(dim)) for dim in others]) if others else ""
        rows.append((Name(quantity_name(str(name)), str(name)), over, *numbers))
    columns = ("quantity", "median over", "first", "last", "least", "largest", "not finite")
    return Table("What was measured, over the steps, with its name in the data", columns, rows)


def _table_value(value: float | None) -> float | str | None:
    """Return a value for a table, in which a float NaN would be shown as unknown."""
    return value if value is None else "nan" if np.isnan(value) else float(value)


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
