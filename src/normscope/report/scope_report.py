"""A scope's measurements as a page of their own, and as a table in a notebook."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.errors import StateError
from normscope.report.dataset_section import dataset_section
from normscope.report.document import Report
from normscope.report.page import write_report
from normscope.report.scope_words import scope_table, scope_words
from normscope.report.versions import present_versions
from normscope.results.notebook import table_html

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["scope_html", "write_scope_report"]

_TITLE = "What the scope saw"


def write_scope_report(
    dataset: xr.Dataset,
    path: str | os.PathLike[str],
    title: str | None = None,
    further: Mapping[str, Any] | None = None,
) -> Path:
    """Write what a scope measured as one HTML file.

    Args:
        dataset: as ``Scope.results`` gives it.
        path: of the file.
        title: of the page.
        further: settings besides those in the dataset, such as the optimizer and the labels.

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
    report = Report(title or _TITLE, scope_words(dataset), [section])
    return write_report(report, path)


def scope_html(dataset: xr.Dataset, caption: str) -> str:
    """What a scope measured so far, as a table for a notebook.

    Args:
        dataset: as ``Scope.results`` gives it; it may be empty.
        caption: above the table.
    """
    if not dataset.sizes.get("step"):
        return table_html([], caption, "No step was measured yet.")
    table = scope_table(dataset)
    return table_html([dict(zip(table.columns, row, strict=True)) for row in table.rows], caption)
