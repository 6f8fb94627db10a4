"""The report of a tour: headline, cards, and tables, pictures and text of every part."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from normscope.experiments.tour.claims import claims_by_part
from normscope.experiments.tour.findings import (
    STORIES,
    boundary_rows,
    late_loss,
    norms_of,
    over_steps,
    reference_of,
    shift_cosine,
    statement_counts,
)
from normscope.experiments.tour.parts import diagram_part
from normscope.experiments.tour.record import record_of
from normscope.experiments.tour.summary import (
    HEADS,
    LEGEND,
    SAME_AGAIN,
    findings,
    finite_median,
    question,
    summary_table,
)
from normscope.experiments.tour.wording import factor, typical
from normscope.plots.depth import gradient_depth
from normscope.plots.layer_shift import norm_shift
from normscope.plots.loss_landscape import norm_landscape, norm_roughness
from normscope.plots.names import name_of, statement_name, with_norm
from normscope.plots.overview import limits_figure, training_figure
from normscope.plots.phase_diagram import phase_diagram
from normscope.plots.spectrum import spectra
from normscope.plots.style import colour_of
from normscope.plots.verdicts import verdicts
from normscope.report import Report, Section, Table, dataset_downloads, picture_of
from normscope.report.document import Card, Value
from normscope.text import format_number

_DIGITS = 3
_MOST_CARDS = 5
_MISSING = "-: no finite number, as a training diverged or the mode has none."


def tables_of(part: str, results: xr.Dataset) -> list[Table]:
    """Return the tables of a part of the tour.

    Args:
        part: a name of ``STORIES``.
        results: of the tour.

    Returns:
        At most one table.
    """
    return [_TABLES[part](results)] if part in _TABLES else []


_RATES = {
    "limit": "limit",
    "stable": "still trains",
    "unstable": "breaks",
    "predicted": "predicted limit",
    "theory": "estimate by theory",
    "curvature_bound": "curvature bound",
    "recommended": "recommended",
}


def _rates(results: xr.Dataset) -> Table:
    rows: list[list[Value]] = []
    for norm in norms_of(results):
        for seed in map(int, results["seed"].values):
            own = results.sel(norm=norm, seed=seed)
            rows.append([name_of(norm), seed, *(finite_median(own[name]) for name in _RATES)])
    note = (
        "The limit lies between the largest rate that still trains and the smallest that breaks; "
        "recommended is half of it. Curvature bound: the rate below which no direction is unstable "
        "at the first weights; where a short run broke below that, at most half of the lowest rate "
        "that broke. The theory estimates the curvature bound from the architecture alone. -: no "
        "rate that breaks was found, or the theory has no estimate."
    )
    columns = ["normalization", "seed", *_RATES.values()]
    caption = "Learning rates by normalization and seed"
    return Table(caption, columns, rows, note, _DIGITS, folded=True)


def _training(results: xr.Dataset) -> Table:
    return _by_norm(
        "After training at half the own limit, and at the rate that all share",
        results,
        {
            "test accuracy": results["test_accuracy"],
            "training loss": late_loss(results),
            "training loss, shared rate": late_loss(results, "shared_"),
        },
    )


def _landscape(results: xr.Dataset) -> Table:
    return _by_norm(
        "Along the gradient, medians over the steps",
        results,
        {
            "loss varies by": over_steps(results["loss_high"] - results["loss_low"]),
            "gradient changes by": over_steps(results["gradient_distance_high"]),
            "roughness (beta)": over_steps(results["effective_smoothness"]),
        },
    )


def _shift(results: xr.Dataset) -> Table:
    distance = results["shift_distance"].isel(layer=slice(1, None)).mean(("step", "layer"))
    columns = {"shift cosine": shift_cosine(results), "l2 difference": distance}
    caption = "Covariate shift, arithmetic means over the steps and all layers but the first"
    return _by_norm(caption, results, columns)


_MODES = {"train": "in training", "frozen": "statistics held fixed", "eval": "in eval mode"}


def _curvature(results: xr.Dataset) -> Table:
    columns = {
        words: results["lambda_max"].sel(mode=mode)
        for mode, words in _MODES.items()
        if mode in results["mode"].values
    }
    columns |= {
        "lowest of the Hessian": results["lowest"],
        "highest of the Hessian": results["highest"],
    }
    caption = "Largest eigenvalue of the Gauss-Newton matrix, and the ends of the Hessian's"
    return _by_norm(f"{caption}; first seed alone", results, columns, seeds=1)


def _checks(results: xr.Dataset) -> Table:
    rows: list[list[Value]] = [
        [statement_name(name), "as printed" if form == "printed" else form, held, of]
        for form, counts in statement_counts(results).items()
        for name, (held, of) in counts.items()
    ]
    return Table("Checks by statement and form", ["statement", "form", "hold", "of"], rows)


def _diagram(results: xr.Dataset) -> Table:
    known = boundary_rows(diagram_part(results))
    rows = [[*row, factor(row[1], row[2])] for row in known]
    columns = ["scale of BatchNorm", "training breaks at", "theory predicts", "ratio"]
    return Table("Learning rates at which training breaks", columns, rows, digits=_DIGITS)


def _by_norm(
    caption: str,
    results: xr.Dataset,
    columns: Mapping[str, xr.DataArray],
    seeds: int | None = None,
) -> Table:
    """Return a table of medians over the seeds, a row for each normalization."""
    seeds = results.sizes["seed"] if seeds is None else seeds
    rows: list[list[Value]] = [
        [name_of(norm), *(finite_median(values.sel(norm=norm)) for values in columns.values())]
        for norm in norms_of(results)
    ]
    of_seeds = f"; medians over {seeds} seeds" if seeds > 1 else ""
    heads = ["normalization", *columns]
    missing = any(value is None for row in rows for value in row)
    note = _MISSING if missing else ""
    return Table(f"{caption}{of_seeds}", heads, rows, note, _DIGITS)


_TABLES: dict[str, Callable[[xr.Dataset], Table]] = {
    "limits": _rates,
    "training": _training,
    "landscape": _landscape,
    "shift": _shift,
    "curvature": _curvature,
    "theorems": _checks,
    "diagram": _diagram,
}


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
    # the sentences of the section name the settings
    found = phase_diagram(diagram_part(results), with_settings=False).get_figure(root=True)
    assert found is not None  # the axes were made with it
    return found


# drawing, what it shows in words, caption
_Drawing = tuple[Callable[[xr.Dataset], Figure], str, str]
_PICTURES: dict[str, list[_Drawing]] = {
    "limits": [
        (
            limits_figure,
            "Learning-rate limits of every normalization on a logarithmic axis: verified, "
            "predicted before any run, and estimated by theory.",
            "The learning rate at which training breaks, on a logarithmic axis. Dot: limit found "
            "by short training runs, one for each seed. Diamond: predicted before any run. "
            "Triangle: estimate of mean-field theory. Right: median over seeds.",
        )
    ],
    "training": [
        (
            training_figure,
            "Training loss over steps, each net at half its own limit, and all at half the largest "
            "limit.",
            "Thin line: one seed. Thick line: median. Cross: the training diverged.",
        )
    ],
    "landscape": [
        (
            norm_landscape,
            "Bands of the loss and of the gradient's change along the gradient over training, one "
            "panel for each normalization.",
            "Range of values from half a step to four steps along the gradient; medians over "
            "seeds. Dotted: the range of the first net, for comparison.",
        ),
        (
            norm_roughness,
            "Roughness (beta) of every normalization over training.",
            "Roughness (beta): the largest change of the gradient per distance along its own "
            "direction. Larger is rougher. Thin line: one seed. Thick line: median.",
        ),
    ],
    "shift": [
        (
            norm_shift,
            "Cosine and l2 difference of each layer's gradient before and after the layers below "
            "it are updated, over training.",
            "Mean over all layers but the first. Thin line: one seed. Thick line: median.",
        )
    ],
    "curvature": [
        (
            spectra,
            "Density of the Hessian's eigenvalues before training, one row for each normalization.",
            "Shaded: standard error over random directions. Dashed: the largest eigenvalue of the "
            "Gauss-Newton matrix in train mode.",
        )
    ],
    "depth": [
        (
            gradient_depth,
            "Size of the gradient by layer in a deep net before training, relative to its last "
            "hidden layer.",
            "Dots: each seed. Dashed: the growth that theory expects of a wide net with BatchNorm.",
        )
    ],
    "theorems": [
        (
            verdicts,
            "Difference of the two sides of every statement on every unit that was checked, exact "
            "and as printed.",
            "An identity holds if its sides differ by rounding error only; a bound may have slack. "
            "Some statements are an identity in their exact form and a bound as printed.",
        )
    ],
    "diagram": [
        (
            _phases,
            "Test loss over learning rate and the scale of BatchNorm, with the theory's critical "
            "rate.",
            "Blank: training diverged. Red: the theory's critical rate. Train follows the batch "
            "statistics, as training does; frozen holds them fixed; printed is the paper's "
            "formula. Thin: half of it.",
        )
    ],
}
_FOLDED = ("theorems",)


def tour_report(results: xr.Dataset) -> Report:
    """Return the report of a tour.

    Args:
        results: of the experiment "tour"; `with_record` adds what they were made with.

    Returns:
        The page, to be written by `normscope.report.write_report`.
    """
    claims = claims_by_part(results)
    sections = [
        Section(
            _TITLES[part],
            tell(results),
            [picture_of(draw(results), text, caption) for draw, text, caption in _PICTURES[part]],
            tables=tables_of(part, results),
            claims=claims.get(part, ()),
            folded=part in _FOLDED,
        )
        for part, tell in STORIES.items()
    ]
    return Report(
        "What normalization does to a net",
        findings(results),
        [*sections, _record(results)],
        _summary(results),
        asked=question(results),
        overview=sections[0].pictures[0],
        headline=headline(results),
        cards=cards(results),
    )


def headline(results: xr.Dataset) -> str:
    """Return the largest limit and its ratio to that of the reference, in a sentence.

    If no limit is larger, the smallest is given. There is a ratio only if the seeds agree on
    which of the two is larger.

    Args:
        results: ``limit`` over (norm, seed).
    """
    limit, reference = results["limit"], reference_of(results)
    if limit.sizes["norm"] == 1:
        return f"Training breaks at a learning rate of {typical(limit)} {with_norm(reference)}."
    best = str(limit.median("seed").idxmax("norm").item())
    if best == reference:
        best = str(limit.median("seed").idxmin("norm").item())
    own, base = limit.sel(norm=best), limit.sel(norm=reference)
    found, compared = (float(each.median()) for each in (own, base))
    words = f"Training breaks at a learning rate of {format_number(found)} {with_norm(best)}"
    other = f"{with_norm(reference)} ({format_number(compared)})"
    if bool((own > base).all() or (own < base).all()):
        return f"{words}, {format_number(found / compared)} times the limit {other}."
    return f"{words}. That is not clearly different from the limit {other}: the seeds disagree."


def cards(results: xr.Dataset) -> list[Card]:
    """Return a card for each normalization: its limit, half of it, and the ratio to the reference.

    Of more than five, those with the largest limits and the reference are chosen.

    Args:
        results: ``limit``, ``recommended`` and ``unstable`` over (norm, seed).
    """
    norms, reference = norms_of(results), reference_of(results)
    middle = results["limit"].median("seed")
    largest = sorted(norms, key=lambda norm: (norm != reference, -float(middle.sel(norm=norm))))
    chosen = set(largest[:_MOST_CARDS])
    return [_card(results, norm, reference) for norm in norms if norm in chosen]


def _card(results: xr.Dataset, norm: str, reference: str) -> Card:
    own = results.sel(norm=norm)
    middle, half = (float(own[name].median()) for name in ("limit", "recommended"))
    is_open = bool(np.isinf(own["unstable"]).any())
    value = f"{'≥ ' if is_open else ''}{format_number(middle)}"
    ratio = ""
    if norm != reference and not is_open:
        base = float(results["limit"].sel(norm=reference).median())
        ratio = f" ({format_number(middle / base)}x)"
    note = f"limit{ratio}, recommended {format_number(half)}"
    return Card(name_of(norm), value, note, colour_of(norm))


def _summary(results: xr.Dataset) -> Table:
    rows = summary_table(results)
    seeds = results.sizes["seed"]
    caption = "The same net under each normalization"
    caption += f", medians over {seeds} seeds" if seeds > 1 else ""
    return Table(caption, list(HEADS.values()), [list(row.values()) for row in rows], LEGEND, 3)


def _record(results: xr.Dataset) -> Section:
    """Return the section with settings and data."""
    record = record_of(results)
    return Section(
        "Settings and data",
        [
            "The papers' claims are judged in each section by these numbers, given as mean ± "
            "standard deviation over the seeds.",
            SAME_AGAIN,
        ],
        settings=record.settings,
        versions=record.versions,
        command=record.command,
        seconds=record.seconds,
        seconds_note=record.earlier_words,
        downloads=dataset_downloads(results, "demo"),
    )
