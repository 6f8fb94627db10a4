"""What a scope measured, in a picture, a table and words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from normscope.errors import StateError
from normscope.plots.names import BANDS, dimension_name, quantity_name
from normscope.report.document import Name, Picture, Table
from normscope.report.pictures import picture_of
from normscope.report.words import counted, listed

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["is_scope", "scope_picture", "scope_question", "scope_table", "scope_words"]

_TOLD = ("effective_smoothness", "top_eigenvalue")  # in words, besides the losses


def is_scope(dataset: xr.Dataset) -> bool:
    """Whether a dataset is what a scope measured, of one training."""
    return "probes" in dataset.attrs and "loss" in dataset and dataset["loss"].dims == ("step",)


def scope_question(dataset: xr.Dataset) -> str:
    """What a scope is asked."""
    model = dataset.attrs.get("model", "model")
    return f"How smooth is the training of this {model}, and how do its layers fare?"


def scope_words(dataset: xr.Dataset) -> list[str]:
    """What was measured and what was seen."""
    steps = dataset["step"].values
    whose = f"A scope on {dataset.attrs.get('model', 'a model')} measured"
    if not steps.size:
        return [f"{whose} no step."]
    found = [
        f"{whose} {counted(len(steps), 'step')}, from {steps[0]} to {steps[-1]}; "
        f"{_course(dataset, 'loss', 'the loss')}.",
        *_rays(dataset),
    ]
    found += [
        f"{_course(dataset, name, f'The {quantity_name(name)}')}."
        for name in _TOLD
        if name in dataset
        and dataset[name].dims == ("step",)
        and bool(dataset[name].notnull().any())
    ]
    return found


def scope_picture(dataset: xr.Dataset, name: str = "") -> Picture | None:
    """The panels; None if no value is finite.

    Args:
        dataset: what a scope measured.
        name: of the training, for the caption.
    """
    from normscope.plots.scope import scope_figure

    try:
        figure = scope_figure(dataset)
    except StateError:
        return None
    panels = [" ".join(axes.get_title().split()) for axes in figure.axes]
    text = f"{counted(len(panels), 'panel')} over the training steps: {', '.join(panels)}. "
    text += " ".join(scope_words(dataset))
    caption = f"What the scope measured{f', {name}' if name else ''}: each panel over the steps."
    return picture_of(figure, text, f"{caption}{_bands(dataset)}")


def scope_table(dataset: xr.Dataset) -> Table:
    """One row for each quantity: its course and its range; over layers the median.

    Least and largest are of the finite values, and how many are not is told beside them.
    """
    rows = []
    for name, values in dataset.data_vars.items():
        others = [dim for dim in values.dims if dim != "step"]
        if "step" not in values.dims or values.dtype.kind not in "biuf":
            continue
        course = values.median(others, skipna=True).values if others else values.values
        broken = _broken(dataset, course)
        told = course[np.isfinite(course) | broken]  # without what was not measured
        known = told[np.isfinite(told)]
        ends = (told[0], told[-1]) if told.size else (None, None)
        limits = (known.min(), known.max()) if known.size else (None, None)
        numbers = (*map(_end, ends), *map(_end, limits), int(broken.sum()))
        over = listed([dimension_name(str(dim)) for dim in others]) if others else ""
        rows.append((Name(quantity_name(str(name)), str(name)), over, *numbers))
    columns = ("quantity", "median over", "first", "last", "least", "largest", "not finite")
    return Table("What was measured, over the steps, with its name in the data", columns, rows)


def _bands(dataset: xr.Dataset) -> str:
    """What the bands are, if there are any."""
    known = [name for name in BANDS if name in dataset and bool(dataset[name].notnull().any())]
    if not known:
        return ""
    ends = dataset["distance"].values
    return (
        " A band reaches from the least to the largest value met along the gradient, at "
        f"{ends.min():.3g} to {ends.max():.3g} times the learning rate."
    )


def _broken(dataset: xr.Dataset, values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where values are not finite, and not merely not measured.

    Not a number also stands for a quantity that was not measured at a step; the loss always was.
    """
    broken: NDArray[np.bool_] = np.isinf(values)
    if dataset["loss"].shape == values.shape:
        broken |= ~np.isfinite(values) & ~np.isfinite(dataset["loss"].values)
    return broken


def _end(value: float | None) -> float | str | None:
    """A value for the table, where not a number would show as nothing known."""
    return value if value is None else "nan" if np.isnan(value) else float(value)


def _rays(dataset: xr.Dataset) -> list[str]:
    """How much the loss varied along the gradient, and where that is not known."""
    if "ray_loss" not in dataset or set(dataset["ray_loss"].dims) != {"step", "distance"}:
        return []
    rays = dataset["ray_loss"].transpose("step", "distance").values
    measured = rays[~np.isnan(rays).all(1) | ~np.isfinite(dataset["loss"].values)]
    finite = measured[np.isfinite(measured).all(1)]
    unknown = len(measured) - len(finite)
    lost = f"at {unknown} of {counted(len(measured), 'step')} it was not finite there"
    if not len(finite):
        return [f"Along the gradient, {lost}."] if unknown else []
    width = np.ptp(finite, axis=1)
    return [
        f"Along the gradient the loss varied by {np.median(width):.3g} in the median, "
        f"{width.max():.3g} at most{f'; {lost}' if unknown else ''}."
    ]


def _course(dataset: xr.Dataset, name: str, words: str) -> str:
    values, steps = dataset[name].values, dataset["step"].values
    known = values[np.isfinite(values)]
    if not known.size:
        return f"{words} was never finite"
    course = f"went from {known[0]:.4g} to {known[-1]:.4g}"
    told = f"{words} {course if known.size > 1 else f'was {known[0]:.4g}'}"
    broken = _broken(dataset, values)
    after = np.flatnonzero(np.isfinite(values))[-1] + 1
    if broken[after:].any():
        told += f", then not finite from step {steps[after:][broken[after:]][0]}"
    if broken[:after].any():
        told += f", with {counted(int(broken[:after].sum()), 'step')} in between not finite"
    return told
