"""The report of a tour: headline, cards and a summary, then a section for each part."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.figure import Figure

from normscope.experiments.result import Result, plain_value
from normscope.experiments.tour import summary
from normscope.experiments.tour.claims import claims_by_part
from normscope.experiments.tour.parts import diagram_part
from normscope.experiments.tour.summary import finite_median, is_open
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
from normscope.text import format_number, plural

_DIGITS = 3
_MOST_CARDS = 5


def tour_report(results: xr.Dataset) -> Report:
    """Return the report of a tour, to be written by `normscope.report.write_report`.

    Args:
        results: of the experiment "tour"; `with_record` adds what they were made with.
    """
    claims, found = claims_by_part(results), summary.findings(results)
    sections = [
        Section(
            part.title,
            [found[name]],
            [picture_of(draw(results), caption) for draw, caption in part.pictures.items()],
            [part.table(results)],
            claims.get(name, ()),
            folded=part.folded,
        )
        for name, part in PARTS.items()
    ]
    made = Section(
        "Settings and data",
        ["Claims give means ± standard deviations over the seeds.", summary.SAME_AGAIN],
        downloads=dataset_downloads(results, "demo"),
        **record_of(results),
    )
    of = results.attrs
    return Report(
        "What normalization does to a net",
        [summary.headline(results)],
        [*sections, made],
        Table(
            f"The same net under each normalization{_medians(results)}",
            list(summary.HEADS.values()),
            [[row[name] for name in summary.HEADS] for row in summary.summary_rows(results)],
            summary.LEGEND,
            _DIGITS,
        ),
        asked="How large a learning rate can a net take, and why? Here: a fully connected net of "
        f"{of['depth']} layers of width {of['width']} on {of['data']}{_medians(results)}.",
        overview=sections[0].pictures[0],
        cards=cards(results),
    )


def _medians(results: xr.Dataset) -> str:
    seeds = results.sizes["seed"]
    return f", medians over {seeds} seeds" if seeds > 1 else ""


def cards(results: xr.Dataset) -> list[Card]:
    """Return a card for each normalization: its limit, half of it, and the ratio to the reference.

    Of more than five, those with the largest limits and the reference are chosen.
    """
    norms, reference = summary.norms_of(results), summary.reference_of(results)
    limit, half = (
        {norm: float(results[name].sel(norm=norm).median()) for norm in norms}
        for name in ("limit", "recommended")
    )
    ranked = sorted(norms, key=lambda norm: (norm != reference, -limit[norm]))
    found = []
    for norm in norms:
        has_end = not is_open(results, norm)
        ratio = format_number(limit[norm] / limit[reference])
        times = f" ({ratio}x)" if has_end and norm != reference else ""
        note = f"limit{times}, recommended {format_number(half[norm])}"
        value = f"{'' if has_end else '≥ '}{format_number(limit[norm])}"
        if norm in ranked[:_MOST_CARDS]:
            found.append(Card(name_of(norm), value, note, colour_of(norm)))
    return found


# Tables of the sections


def _limits(results: xr.Dataset) -> Table:
    heads = {
        "limit": "limit",
        "stable": "still trains",
        "unstable": "breaks",
        "predicted": "predicted limit",
        "theory": "estimate by theory",
        "curvature_bound": "curvature bound",
        "recommended": "recommended",
    }
    rows: list[list[Value]] = [
        [name_of(norm), seed, *(finite_median(results[n].sel(norm=norm, seed=seed)) for n in heads)]
        for norm in summary.norms_of(results)
        for seed in map(int, results["seed"].values)
    ]
    notes = [
        "The limit lies between the largest rate that still trains and the smallest that breaks; "
        "recommended is half of it. Curvature bound: the rate below which no direction is unstable "
        "at the first weights; where a short run broke below that, at most half of the lowest rate "
        "that broke. The theory estimates the curvature bound from the architecture alone. -: no "
        "rate that breaks was found (the limit may be higher), or there is no estimate."
    ]
    for norm in summary.norms_of(results):
        own = results.sel(norm=norm)
        if own["theory"].isnull().any():
            reason = str(own["theory_says"][own["theory"].isnull()].values[0])
            notes.append(f"No estimate {with_norm(norm)}: {reason.partition('. ')[0].rstrip('.')}.")
    caption, columns = "Learning rates by normalization and seed", list(heads.values())
    columns = ["normalization", "seed", *columns]
    return Table(caption, columns, rows, " ".join(notes), _DIGITS, folded=True)


def _theorems(results: xr.Dataset) -> Table:
    rows: list[list[Value]] = []
    for (form, name), (held, of) in summary.statement_counts(results).items():
        own = (results["form"] == form) & (results["statement"] == name)
        misses = abs(results["slack"]).values[own & (results["refuted"] == 1)]
        worst = float(misses.max()) if misses.size else None
        words = "as printed, without eps" if form == "printed" else form
        rows.append([statement_name(name), words, held, of, worst])
    layers = len(np.unique(results["norm_layer"].values))
    caption = f"Checks on the {layers} BatchNorm layers of this run's net, by statement and form"
    columns = ["statement", "form", "hold", "of", "largest failure, relative to its terms"]
    return Table(caption, columns, rows, digits=1)


def _diagram(results: xr.Dataset) -> Table:
    rates = diagram_part(results)["learning_rate"].values
    step = float(np.max(rates[1:] / rates[:-1], initial=1.0))
    columns = ["scale of BatchNorm", "training breaks at", "theory predicts", "ratio"]
    note = f"Neighbouring rates of the grid are up to a factor of {step:.1f} apart."
    caption = "Learning rates at which training breaks"
    return Table(caption, columns, summary.boundary_rows(results), note, _DIGITS)


def _by_norm(caption: str, *names: str, note: str = "") -> Callable[[xr.Dataset], Table]:
    """Return what makes a table of quantities, with the range of the first over the seeds."""

    def table(results: xr.Dataset) -> Table:
        columns = [summary.quantities(results)[name] for name in names]
        several = "seed" in columns[0].dims and results.sizes["seed"] > 1
        rows: list[list[Value]] = []
        for norm in summary.norms_of(results):
            middle, *others = (finite_median(values.sel(norm=norm)) for values in columns)
            spread = [_range(columns[0].sel(norm=norm).values)] if several else []
            rows.append([name_of(norm), middle, *spread, *others])
        heads = ["normalization", *(summary.HEADS.get(name, name) for name in names)]
        if several:
            heads.insert(2, "range over the seeds")
        missing = any(value is None for row in rows for value in row)
        notes = [note, _MISSING if missing else ""]
        whole = f"{caption}{_medians(results) if several else ''}"
        return Table(whole, heads, rows, " ".join(filter(None, notes)), _DIGITS)

    return table


def _range(values: np.ndarray) -> str | None:
    """Return the range over the seeds, and how many have a number if not all do."""
    known = values[np.isfinite(values)]
    if not known.size:
        return None
    low, high = (format_number(float(each), _DIGITS) for each in (known.min(), known.max()))
    return f"{low} to {high}" + (
        "" if known.size == values.size else f" ({plural(known.size, 'seed')})"
    )


# Sections


@dataclass(frozen=True)
class Part:
    """A section: its title, its table, its drawings with their captions, and if it is folded."""

    title: str
    table: Callable[[xr.Dataset], Table]
    pictures: Mapping[Callable[[xr.Dataset], Figure], str]
    folded: bool = False


def _phases(results: xr.Dataset) -> Figure:
    found = phase_diagram(diagram_part(results)).get_figure(root=True)
    assert found is not None  # the axes were made with it
    return found


_SAME_RATE = (
    "The learning rate is half the smallest limit: a net with a higher limit takes steps that are "
    "small for it."
)
_MISSING = "-: no finite number, as a training diverged or the mode has none."
_LINES = "Thin line: one seed. Thick line: median."
PARTS = {
    "limits": Part(
        "How large a learning rate",
        _limits,
        {
            limits_figure: "The learning rate at which training breaks, on a logarithmic axis. "
            "Dot: limit found by short training runs, one for each seed. Diamond: predicted before "
            "any run. Triangle: estimate of mean-field theory. Right: median over seeds."
        },
    ),
    "training": Part(
        "What the limit means in training",
        _by_norm(
            "After training at half the own limit, and at the shared rate",
            *("accuracy", "loss", "seeds that diverge"),
            *("loss, shared rate", "seeds that diverge, shared rate"),
        ),
        {
            training_figure: "Training loss over steps, each net at half its own limit, and all at "
            f"half the largest limit. {_LINES} Cross: the training diverged."
        },
    ),
    "landscape": Part(
        "The landscape along the gradient",
        _by_norm(
            "Along the gradient, medians over the steps",
            *("loss varies by", "gradient changes by", "smoothness"),
            note=_SAME_RATE,
        ),
        {
            norm_landscape: "Range of the loss and of the gradient's change from half a step to "
            "four steps along the gradient, over training; medians over seeds. Dotted: the range "
            "of the first net, for comparison.",
            norm_roughness: "Roughness (beta) over training: the largest change of the gradient "
            f"per distance along its own direction. Larger is rougher. {_LINES}",
        },
    ),
    "shift": Part(
        "Internal covariate shift",
        _by_norm(
            "Covariate shift, arithmetic means over the steps and all layers but the first",
            *("shift cosine", "l2 difference"),
            note=_SAME_RATE,
        ),
        {
            norm_shift: "Cosine and l2 difference of each layer's gradient before and after the "
            "layers below it are updated, over training; means over all layers but the first. "
            f"{_LINES}"
        },
    ),
    "curvature": Part(
        "Curvature before training",
        _by_norm(
            "Largest eigenvalue of the Gauss-Newton matrix in train mode, with statistics held "
            "fixed and in eval mode, and the ends of the Hessian's; first seed alone",
            *("λ max", "statistics held fixed", "in eval mode"),
            *("lowest of the Hessian", "highest of the Hessian"),
        ),
        {
            spectra: "Density of the Hessian's eigenvalues before training. Shaded: standard error "
            "over random directions. Dashed: the largest eigenvalue of the Gauss-Newton matrix in "
            "train mode."
        },
    ),
    "depth": Part(
        "Gradients through depth",
        _by_norm("Growth of the squared gradient per layer, backwards", "growth"),
        {
            gradient_depth: "Size of the gradient by layer in a deep net before training, relative "
            "to its last hidden layer. Dots: each seed. Dashed: the growth that theory expects of "
            "a wide net with BatchNorm."
        },
    ),
    "theorems": Part(
        "Theorems on the net's own layers",
        _theorems,
        {
            verdicts: "Difference of the two sides of every statement on every unit that was "
            "checked. An identity holds if its sides differ by rounding error only; a bound may "
            "have slack. Some statements are an identity in their exact form and a bound as "
            "printed."
        },
        folded=True,
    ),
    "diagram": Part(
        "Phase diagram",
        _diagram,
        {
            _phases: "Test loss over learning rate and the scale of BatchNorm. Blank: training "
            "diverged. Red: the theory's critical rate. Train follows the batch statistics, as "
            "training does; frozen holds them fixed; printed is the paper's formula. Thin: half of "
            "it."
        },
    ),
}


# How a tour was run, in the attributes of its dataset, so that its file can be reported

_PREFIX = "run_"
_MARKS = ("predicted", "theory_says", "shared_training_loss", "diagram_test_loss", "refuted")


def with_record(result: Result, command: str, earlier: float = 0.0) -> xr.Dataset:
    """Return the numbers of a tour with what `record_of` reads, also after it was a file.

    Args:
        result: of the experiment "tour".
        command: that reproduces it.
        earlier: seconds of what it found in a store.
    """
    kept = {
        "settings": result.to_dict()["settings"],
        "versions": result.versions,
        "command": command,
        "seconds": result.seconds + earlier,
        "earlier": earlier,
    }
    return result.dataset.assign_attrs(
        {f"{_PREFIX}{name}": json.dumps(value) for name, value in kept.items()}
    )


def record_of(results: xr.Dataset) -> dict[str, Any]:
    """Return how a tour was run as fields of a section; without a record, the net's settings."""
    kept = {
        str(name).removeprefix(_PREFIX): json.loads(value)
        for name, value in results.attrs.items()
        if str(name).startswith(_PREFIX)
    }
    if not kept:
        return {"settings": {str(name): plain_value(each) for name, each in results.attrs.items()}}
    note = earlier_note(kept.pop("earlier"))
    return {**kept, "seconds_note": note}


def earlier_note(seconds: float) -> str:
    """Return which part of the duration was spent in interrupted runs.

    >>> earlier_note(31.7), earlier_note(0.0)
    ('32 of them before it was interrupted', '')
    """
    return f"{seconds:.0f} of them before it was interrupted" if seconds else ""


def is_tour(results: xr.Dataset) -> bool:
    """Return whether a dataset is that of a tour."""
    return all(name in results for name in _MARKS)
