"""``normscope report``: stores and results as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normscope.cli.destinations import check_file
from normscope.cli.options import Json

if TYPE_CHECKING:
    import xarray as xr

    from normscope.report import Report

Inputs = Annotated[
    list[Path],
    typer.Argument(
        metavar="STORE|RESULT",
        help="Stores, files that run or sweep wrote, NetCDF files, or folders of them.",
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="The HTML file.")]
Title = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Title of the page.", show_default="by its content"),
]

_PAGES = (".html", ".htm")


def report(
    inputs: Inputs,
    out: Out = Path("report.html"),
    title: Title = None,
    as_json: Json = False,
) -> None:
    """Write one HTML file with the figures, claims, tables, settings and data of results.

    It needs no network and no other file: open it in a browser, send it, print it.

    Example: normscope report normscope-out phase.sqlite -o report.html
    """
    from normscope.cli.output import print_json, progress
    from normscope.cli.tables import print_note
    from normscope.errors import InputError
    from normscope.report import report_of, write_report
    from normscope.text import printable

    check_file(out, "report", "report.html")
    if out.suffix.lower() not in _PAGES:  # before a slip replaces a store or a figure
        raise InputError(f"a report is an HTML file, got --out {out}; let its name end in .html.")
    with progress("report") as begin:
        begin("reading")
        found = report_of(inputs, title, _theory, _page)
        begin("writing")
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
    """The page of a demo's numbers; None of any others."""
    if "theory_says" not in numbers:  # before anything heavy is loaded
        return None
    from normscope.experiments.tour.page import tour_report
    from normscope.experiments.tour.record import is_tour

    if not is_tour(numbers):
        return None
    try:
        return tour_report(numbers)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # of another version, or changed: its variables are shown as any others are
        typer.echo(
            "Note: the numbers of a demo were found, but its page cannot be made of them "
            f"({type(error).__name__}: {error}); they are shown as plain variables.",
            err=True,
        )
        return None


def _theory(settings: Mapping[str, Any], axis: str, values: Sequence[float]) -> xr.DataArray | None:
    """The critical learning rates beside a diagram; None where the training is not known whole."""
    from normscope.report.sweep_records import TRAINED

    if not {*settings, axis} >= TRAINED:  # it would be the theory of another training
        return None
    import xarray as xr

    from normscope.errors import NormscopeError
    from normscope.meanfield import CLOSURES
    from normscope.sweeps.theory import NO_ANSWER, critical_rates, why_unanswered
    from normscope.sweeps.training_settings import Training

    try:
        training = Training.of(settings)
        if training.places:  # to read a store must not run the code that it names
            return None
        rates = critical_rates(training, axis, values)
        reasons = why_unanswered(training, axis, values, rates)
    except (NormscopeError, TypeError, AttributeError):  # records of another program name anything
        return None
    attributes = {NO_ANSWER: reasons.pop()} if len(reasons) == 1 else {}
    return xr.DataArray(rates, {"closure": list(CLOSURES)}, ("closure", axis), attrs=attributes)
