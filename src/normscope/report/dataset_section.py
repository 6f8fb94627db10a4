"""Labelled numbers as a section: drawn by what they are, and told in words and tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from normscope.plots.names import display_settings
from normscope.report.diagram import dataset_diagrams
from normscope.report.diagram_words import shown_diagrams
from normscope.report.document import Picture, Section, Table
from normscope.report.downloads import dataset_downloads
from normscope.report.scope_words import (
    is_scope,
    scope_picture,
    scope_question,
    scope_table,
    scope_words,
)
from normscope.report.words import counted

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["dataset_section", "variables_table"]


def dataset_section(
    dataset: xr.Dataset,
    title: str,
    *,
    stem: str = "numbers",
    settings: Mapping[str, Any] | None = None,
    versions: Mapping[str, str] | None = None,
    command_note: str = "",
) -> Section:
    """A dataset as a section.

    What a scope measured gets its panels, a phase diagram its heat map; any other dataset a table
    of its variables.

    Args:
        dataset: labelled numbers.
        title: the head.
        stem: of the names of its files.
        settings: by name; None: the dataset's attributes.
        versions: of the packages it ran on, by name.
        command_note: why there is no command that gives it again.
    """
    paragraphs, pictures, tables = _shown(dataset)
    if settings is None:
        settings = _attributes(dataset)
        settings = display_settings(settings) if "test_loss" in dataset else settings
    return Section(
        title,
        paragraphs,
        pictures,
        tables,
        settings=settings,
        versions=versions or {},
        command_note=command_note,
        downloads=dataset_downloads(dataset, stem),
        asked=scope_question(dataset) if is_scope(dataset) else "",
    )


def variables_table(dataset: xr.Dataset) -> Table:
    """One row for each variable: over what, how many values, and their range."""
    rows = []
    for name, values in dataset.data_vars.items():
        numbers = values.values.ravel() if values.dtype.kind in "biuf" else np.array([])
        known = numbers[np.isfinite(numbers.astype(float))].astype(float)
        ends = (known.min(), np.median(known), known.max()) if known.size else (None,) * 3
        row = (str(name), ", ".join(map(str, values.dims)), values.size, values.size - known.size)
        unknown = row[3] if numbers.size else None
        rows.append((*row[:3], unknown, *(None if end is None else float(end) for end in ends)))
    columns = ("variable", "over", "values", "not finite", "least", "median", "largest")
    return Table("Variables", columns, rows)


def _shown(dataset: xr.Dataset) -> tuple[list[str], list[Picture], list[Table]]:
    """Words, pictures and tables of a dataset."""
    if is_scope(dataset):
        picture = scope_picture(dataset)
        return scope_words(dataset), [] if picture is None else [picture], [scope_table(dataset)]
    found = dataset_diagrams(dataset)
    if found:
        words, pictures = shown_diagrams(found)
        return words, pictures, [variables_table(dataset)]
    sizes = ", ".join(f"{name}: {size}" for name, size in dataset.sizes.items())
    told = f"{counted(len(dataset.data_vars), 'variable')} over {sizes or 'no dimension'}."
    return [told], [], [variables_table(dataset)]


def _attributes(dataset: xr.Dataset) -> dict[str, Any]:
    """The attributes, those that hold settings as JSON spread out."""
    found: dict[str, Any] = {}
    for name, value in dataset.attrs.items():
        if name in ("settings", "parameters") and isinstance(value, str):
            try:
                spread = json.loads(value)
            except ValueError:
                spread = None
            if isinstance(spread, dict):
                found |= spread
                continue
        found[str(name)] = value.item() if isinstance(value, np.generic) else value
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else value
