"""The tour as a page: what was found in words, then one section for each part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import xarray as xr

from normscope.experiments.tour.claims import claims_by_part
from normscope.experiments.tour.diagram import diagram_part
from normscope.experiments.tour.findings import norms_of
from normscope.experiments.tour.findings_of_theory import statement_counts
from normscope.experiments.tour.summary import STORIES, findings, summary_rows
from normscope.plots.gradient_depth import gradient_depth
from normscope.plots.names import name_of, statement_name
from normscope.plots.norm_landscape import norm_landscape, norm_shift
from normscope.plots.overview import trainings
from normscope.plots.phase_diagram import phase_diagram
from normscope.plots.rate_limits import rate_limits
from normscope.plots.spectra import spectra
from normscope.plots.verdicts import verdicts
from normscope.report import Report, Section, Table, dataset_downloads, picture_of
from normscope.results import Claim

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from normscope.experiments.result import Result

__all__ = ["tour_report"]

_TITLES = {
    "limits": "How large a learning rate",
    "training": "What the limit means in training",
    "landscape": "The landscape along the gradient",
    "shift": "Internal covariate shift",
    "curvature": "Curvature before training",
    "depth": "Gradients through depth",
    "theorems": "Theorems on the net's own layers",
    "diagram": "Phase diagram",
}


def _phases(results: xr.Dataset) -> Figure:
    return _whole(phase_diagram(diagram_part(results)))


def _limits(results: xr.Dataset) -> Figure:
    return _whole(rate_limits(results))


def _whole(axes: Axes) -> Figure:
    found = axes.get_figure(root=True)
    assert found is not None  # the axes were made with it
    return found


Value = str | float | int | bool | None

# drawing, what it shows in words, caption
_Picture = tuple[Callable[[xr.Dataset], "Figure"], str, str]
_PICTURES: dict[str, _Picture] = {
    "limits": (
        _limits,
        "Learning-rate limits of every normalization on a logarithmic axis: verified, predicted by "
        "curvature and bounded by theory.",
        "A dot is the limit that short runs enclosed, one for each seed, a diamond what curvature "
        "predicted, a triangle the theory's bound.",
    ),
    "training": (
        trainings,
        "Training loss over steps, each net at half its own limit and all at half the largest.",
        "A thin line for each seed, the median thick; a cross marks a training that diverged.",
    ),
    "landscape": (
        norm_landscape,
        "Bands of the loss and of the gradient's change along the gradient over training, one "
        "panel for each normalization, and the effective smoothness of all.",
        "Bands reach from the least to the largest value met from half a step to four steps along "
        "the gradient; medians over seeds. Behind each band, in grey, the one it is compared with.",
    ),
    "shift": (
        norm_shift,
        "Cosine and l2 difference of each layer's gradient before and after the layers below it "
        "are updated, over training.",
        "Mean over the layers after the first; a thin line for each seed, a thick one for the "
        "median.",
    ),
    "curvature": (
        spectra,
        "Density of the Hessian's eigenvalues before training, one row for each normalization.",
        "Shaded: standard error over random directions. A line marks lambda_max of the "
        "Gauss-Newton matrix in train mode.",
    ),
    "depth": (
        gradient_depth,
        "Size of the gradient by layer in a deep net before training, relative to its last hidden "
        "layer.",
        "Points: each seed. Dashed: growth as theory expects it of a wide net with BatchNorm.",
    ),
    "theorems": (
        verdicts,
        "Difference of the two sides of every statement on every unit that was checked, exact and "
        "as printed.",
        "An identity holds where its sides differ by rounding alone; a bound may have room.",
    ),
    "diagram": (
        _phases,
        "Test loss over learning rate and the scale of BatchNorm, with the theory's critical rate.",
        "White: training broke. The solid red line is the theory's critical rate with the "
        "statistics followed, as training does.",
    ),
}


def tour_report(result: Result, command: str) -> Report:
    """The report of a tour.

    Args:
        result: of the experiment "tour".
        command: that gives it again.

    Returns:
        The page, to be written by `normscope.report.write_report`.
    """
    results = result.dataset
    claims = claims_by_part(results)
    sections = [_section(part, results, claims.get(part, ())) for part in STORIES]
    title = "What normalization does to a net"
    return Report(
        title, findings(results), [*sections, _record(result, command)], _summary(results)
    )


def _summary(results: xr.Dataset) -> Table:
    rows = summary_rows(results)
    seeds, of = results.sizes["seed"], results.attrs
    caption = (
        f"One fully connected net, {of['depth']} layers of width {of['width']}, on {of['data']}: "
        f"the same first weights under {len(rows)} normalizations"
        + (f", medians over {seeds} seeds" if seeds > 1 else "")
    )
    cells = [[_value(value) for value in row.values()] for row in rows]
    return Table(caption, list(rows[0]), cells)


def _value(value: object) -> Value:
    return value if isinstance(value, str | float) or value is None else str(value)


def _section(part: str, results: xr.Dataset, claims: Sequence[Claim]) -> Section:
    draw, text, caption = _PICTURES[part]
    return Section(
        _TITLES[part],
        STORIES[part](results),
        [picture_of(draw(results), text, caption)],
        tables=_TABLES.get(part, _none)(results),
        claims=claims,
    )


def _record(result: Result, command: str) -> Section:
    """Settings and data of the whole."""
    return Section(
        "Settings and data",
        ["What the papers say of such nets is judged beside each part, by these numbers."],
        settings=result.settings,
        versions=result.versions,
        command=command,
        seconds=result.seconds,
        downloads=dataset_downloads(result.dataset, "demo"),
    )


def _none(results: xr.Dataset) -> list[Table]:
    return []


def _rates(results: xr.Dataset) -> list[Table]:
    names = ("limit", "stable", "unstable", "by_curvature", "by_theory", "safe", "recommended")
    rows: list[list[Value]] = []
    for norm in norms_of(results):
        for seed in map(int, results["seed"].values):
            own = results.sel(norm=norm, seed=seed)
            rows.append([name_of(norm), seed, *(_number(own[name]) for name in names)])
    columns = ["normalization", "seed", *(name.replace("_", " ") for name in names)]
    return [Table("Learning rates by normalization and seed", columns, rows)]


def _number(value: xr.DataArray) -> float | None:
    found = float(value)
    return found if abs(found) < float("inf") else None


def _checks(results: xr.Dataset) -> list[Table]:
    rows: list[list[Value]] = [
        [statement_name(name), form, held, of]
        for form, counts in statement_counts(results).items()
        for name, (held, of) in counts.items()
    ]
    return [Table("Checks by statement and form", ["statement", "form", "hold", "of"], rows)]


_TABLES: dict[str, Callable[[xr.Dataset], list[Table]]] = {"limits": _rates, "theorems": _checks}
