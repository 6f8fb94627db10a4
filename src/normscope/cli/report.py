"""``normscope report``: stores and results as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli import options as opt
from normscope.cli.app import command
from normscope.cli.render import check_file, print_json, print_note, warnings_as_notes
from normscope.errors import InputError, NormscopeError
from normscope.progress import Progress
from normscope.progress_bar import show_progress
from normscope.text import printable

if TYPE_CHECKING:
    import xarray as xr

    from normscope.report import Report

_INPUTS = "Stores, files that run or sweep wrote, NetCDF files, or folders of them."
Inputs = Annotated[list[Path], opt.argument("STORE|RESULT", _INPUTS)]
Out = Annotated[Path, opt.option("FILE", "The HTML file.", "--out", "-o")]
Title = Annotated[str | None, opt.option("TEXT", "Title of the page.", default="by its content")]

_PAGES = (".html", ".htm")


@command("report", "Write results as one HTML file: claims, figures, data.")
def report(
    inputs: Inputs,
    out: Out = Path("report.html"),
    title: Title = None,
    as_json: opt.Json = False,
) -> None:
    """Write one HTML file with the figures, claims, tables, settings and data of results.

    It needs no network and no other file: open it in a browser, send it, print it.

    Example: normscope report normscope-out phase.sqlite -o report.html
    """
    from normscope.report import report_of, write_report

    check_file(out, "report", "report.html")
    if out.suffix.lower() not in _PAGES:  # a typing error must not replace a store or a figure
        raise InputError(f"a report is an HTML file, got --out {out}; let its name end in .html.")
    with show_progress("report") as show, warnings_as_notes():
        show(Progress("reading"))
        found = report_of(inputs, title, _theory, _page)
        show(Progress("writing"))
        path = write_report(found, out)
    if as_json:
        print_json(
            {
                "report": str(path),
                "title": found.title,
                "bytes": path.stat().st_size,
                "findings": list(found.findings),
                "sections": [each.title for each in found.sections],
                "claims": [claim.to_dict() for each in found.sections for claim in each.claims],
            }
        )
        return
    for finding in found.findings:
        print_note(printable(finding))
    print(f"Report: {printable(str(path))} ({path.stat().st_size / 1000:.0f} kB)")


def _page(numbers: xr.Dataset) -> Report | None:
    """Return the page of a demo's numbers; None for other numbers."""
    if "theory_says" not in numbers:  # do not load the experiments for others
        return None
    from normscope.experiments.tour.page import is_tour, tour_report

    if not is_tour(numbers):
        return None
    try:
        return tour_report(numbers)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # written by another version, or edited
        typer.echo(
            "Note: the numbers of a demo were found, but its page cannot be made of them "
            f"({type(error).__name__}: {error}); they are shown as plain variables.",
            err=True,
        )
        return None


def _theory(settings: Mapping[str, Any], axis: str, values: Sequence[float]) -> xr.DataArray | None:
    """Return the critical learning rates for a diagram; None if settings of it are missing."""
    from normscope.report.diagrams import TRAINED

    if not {*settings, axis} >= TRAINED:  # the theory would be of another training
        return None
    from normscope.sweeps.settings import Training
    from normscope.sweeps.theory import critical_lines

    try:
        if Training.of(settings).import_paths:  # reading a store must not run user code
            return None
        return critical_lines(settings, {axis: values})
    except (NormscopeError, TypeError, AttributeError):  # records of another program
        return None
