"""The tour as a page: what was found in words, then one section for each part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import xarray as xr

from normscope.experiments.tour.claims import claims_by_part
from normscope.experiments.tour.diagram import diagram_part
from normscope.experiments.tour.headlines import findings, question
from normscope.experiments.tour.kept import record_of
from normscope.experiments.tour.summary import (
    HEADS,
    LEGEND,
    SAME_AGAIN,
    STORIES,
    summary_table,
)
from normscope.experiments.tour.tables import tables_of
from normscope.plots.depth import gradient_depth
from normscope.plots.layer_shift import norm_shift
from normscope.plots.loss_landscape import norm_landscape
from normscope.plots.overview import overview
from normscope.plots.phase_diagram import phase_diagram
from normscope.plots.spectrum import spectra
from normscope.plots.verdicts import verdicts
from normscope.report import Picture, Report, Section, Table, dataset_downloads, picture_of
from normscope.report.document import Value
from normscope.results import Claim

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    found = phase_diagram(diagram_part(results)).get_figure(root=True)
    assert found is not None  # the axes were made with it
    return found


# drawing, what it shows in words, caption
_Drawing = tuple[Callable[[xr.Dataset], "Figure"], str, str]
_OVERVIEW: _Drawing = (
    overview,
    "Three panels. Learning-rate limits of every normalization on a logarithmic axis: verified, "
    "predicted by curvature and estimated by theory. Training loss over steps, each net at half "
    "its own limit, and all at half the largest.",
    "Where training breaks: a dot is the limit that short runs enclosed, one for each seed; a "
    "diamond what curvature predicted, a triangle the theory's estimate. The losses, in the same "
    "colours: a thin line for each seed, the median thick; a cross marks a training that diverged.",
)
_OVERVIEWED = ("limits", "training")  # the parts that it shows
_PICTURES: dict[str, _Drawing] = {
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
        "Arithmetic mean over the layers after the first; a thin line for each seed, a thick one "
        "for the median.",
    ),
    "curvature": (
        spectra,
        "Density of the Hessian's eigenvalues before training, one row for each normalization.",
        "Shaded: standard error over random directions. The dashed line marks the largest "
        "eigenvalue of the Gauss-Newton matrix, with the batch's own statistics.",
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
        "An identity holds where its sides differ by rounding alone; a bound may have room. Some "
        "statements are an identity in their exact form and a bound as printed.",
    ),
    "diagram": (
        _phases,
        "Test loss over learning rate and the scale of BatchNorm, with the theory's critical rate.",
        "Blank: training broke. Red: the theory's critical rate; train follows the batch's "
        "statistics, as training does, frozen holds them fixed, printed is the paper's formula. "
        "Thin: half of it.",
    ),
}


def tour_report(results: xr.Dataset) -> Report:
    """The report of a tour.

    Args:
        results: of the experiment "tour"; `with_record` adds what they were made with.

    Returns:
        The page, to be written by `normscope.report.write_report`.
    """
    claims = claims_by_part(results)
    first = _drawn(_OVERVIEW, results)
    pictures = {
        part: first if part in _OVERVIEWED else _drawn(_PICTURES[part], results) for part in STORIES
    }
    sections = [
        _section(part, results, picture, claims.get(part, ())) for part, picture in pictures.items()
    ]
    return Report(
        "What normalization does to a net",
        findings(results),
        [*sections, _record(results)],
        _summary(results),
        asked=question(results),
        overview=first,
    )


def _drawn(drawing: _Drawing, results: xr.Dataset) -> Picture:
    draw, text, caption = drawing
    return picture_of(draw(results), text, caption)


def _summary(results: xr.Dataset) -> Table:
    rows = summary_table(results)
    seeds = results.sizes["seed"]
    caption = "The same net under each normalization"
    caption += f", medians over {seeds} seeds" if seeds > 1 else ""
    cells = [[_value(value) for value in row.values()] for row in rows]
    return Table(caption, list(HEADS.values()), cells, LEGEND, 3)


def _value(value: object) -> Value:
    return value if isinstance(value, str | float) or value is None else str(value)


def _section(part: str, results: xr.Dataset, picture: Picture, claims: Sequence[Claim]) -> Section:
    return Section(
        _TITLES[part],
        STORIES[part](results),
        [picture],
        tables=tables_of(part, results),
        claims=claims,
    )


def _record(results: xr.Dataset) -> Section:
    """Settings and data of the whole."""
    record = record_of(results)
    return Section(
        "Settings and data",
        [
            "What the papers say of such nets is judged beside each part, by these numbers; there "
            "± stands between the mean over the seeds and their standard deviation.",
            SAME_AGAIN,
        ],
        settings=record.settings,
        versions=record.versions,
        command=record.command,
        seconds=record.seconds,
        seconds_note=record.earlier_words,
        downloads=dataset_downloads(results, "demo"),
    )
