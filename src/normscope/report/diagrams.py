"""Phase diagrams as grids, from the records of a store or from the dataset of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from normscope.results import Record
from normscope.results.grid import varying_settings
from normscope.results.record import CODE, canonical_json

if TYPE_CHECKING:
    from normscope.report.sweep_records import CodeVersions

SWEPT = "phase_diagram"  # the name of the records
RATE = "learning_rate"

# From all settings of a training run, the name of a setting and its values to the critical learning
# rates (closure, setting); None if the theory has no answer.
Theory = Callable[[Mapping[str, Any], str, Sequence[float]], "xr.DataArray | None"]


def diagrams(
    records: Sequence[Record],
    theory: Theory | None = None,
    losses: Mapping[str, float] | None = None,
    versions: CodeVersions | None = None,
) -> dict[str, xr.Dataset]:
    """Return every phase diagram in the records, by what distinguishes it from the others.

    Args:
        records: of training runs, one for each cell; those without a result are holes.
        theory: returns the critical learning rates.
        losses: the test loss by the key of a record; None to read it from the records.
        versions: of the user's files, to order and name the diagrams by.

    Returns:
        For each combination of the further settings the grid over one setting and the learning
        rate; none if fewer than two of these vary.
    """
    varying = varying_settings([record.parameters for record in records])
    axis = _vertical(records, varying)
    rates: list[Any] = [record.parameters.get(RATE) for record in records]
    if (
        axis is None
        or RATE not in varying
        or not all(_is_number(rate) and rate > 0 for rate in rates)
    ):
        return {}
    others = [name for name in varying if name not in (axis, RATE)]
    groups: dict[str, list[Record]] = {}
    if versions is not None:
        records = versions.newest_first(records)
    for record in records:
        words = ", ".join(_setting_words(record.parameters, name, versions) for name in others)
        groups.setdefault(words, []).append(record)
    return {words: _grid(group, axis, theory, losses) for words, group in groups.items()}


def dataset_diagrams(dataset: xr.Dataset) -> dict[str, xr.Dataset]:
    """Return every phase diagram in a dataset of `Store.to_xarray` or `phase_diagram`.

    Args:
        dataset: any dataset.

    Returns:
        Diagrams by what distinguishes them; none if the dataset is not of a phase diagram.
    """
    diverged = _diverged(dataset)
    if diverged is None:
        return {}
    loss = dataset["test_loss"]
    named = [str(dim) for dim in loss.dims if dim not in (RATE, "seed")]
    numeric = [name for name in named if dataset[name].dtype.kind in "iuf"]
    if not numeric or 0 in loss.shape or not bool((dataset[RATE] > 0).all()):
        return {}
    axis = "gamma" if "gamma" in numeric else numeric[0]
    others = [name for name in named if name != axis]
    kept = {"test_loss": loss, "diverged": diverged}
    lines = dataset.get("critical_learning_rate")
    if lines is not None and set(lines.dims) == {"closure", *named}:
        kept["critical_learning_rate"] = lines
    settings = dataset.attrs.get("settings", dataset.attrs.get("parameters", "{}"))
    whole = xr.Dataset(kept, attrs={"settings": settings})
    found = {}
    for indices in product(*(range(whole.sizes[name]) for name in others)):
        one = whole.isel(dict(zip(others, indices, strict=True)))
        words = ", ".join(f"{name} {_text(one[name].values.item())}" for name in others)
        found[words] = one.drop_vars(others)
    return found


def setting_axis(diagram: xr.Dataset) -> str:
    """Return the setting on the vertical axis of a diagram."""
    return next(str(d) for d in diagram["test_loss"].dims if d not in (RATE, "seed"))


def has_result(diagram: xr.Dataset) -> xr.DataArray:
    """Return which training runs have a result: a test loss, or a divergence."""
    return diagram["test_loss"].notnull() | (diagram["diverged"] == 1)


def grid_bracket(diagram: xr.Dataset) -> xr.Dataset:
    """Return the last stable and the first unstable rate of each row of a diagram.

    A cell is stable if all its seeds have a result and none diverged. Cells that failed or have
    not been computed count as neither.

    Args:
        diagram: one phase diagram.

    Returns:
        ``low`` and ``high``; NaN for rows without both.
    """
    diagram = diagram.sortby(RATE)
    unstable = (diagram["diverged"] == 1).any("seed").transpose(..., RATE)
    stable = diagram["test_loss"].notnull().all("seed").transpose(..., RATE) & ~unstable
    rates = diagram[RATE].values
    found = np.full((2, unstable.shape[0]), np.nan)
    for row, (bad, good) in enumerate(zip(unstable.values, stable.values, strict=True)):
        below = rates[good & (rates < rates[bad].min(initial=np.inf))]
        if bad.any() and len(below):
            found[:, row] = below[-1], rates[bad][0]
    axis = unstable.dims[0]
    return xr.Dataset({"low": (axis, found[0]), "high": (axis, found[1])}, {axis: unstable[axis]})


def grid_boundary(diagram: xr.Dataset) -> xr.DataArray:
    """Return the measured critical rate of each row: the geometric mean of its bracket.

    Args:
        diagram: one phase diagram.

    Returns:
        The rates; NaN for rows without a bracket.
    """
    bracket = grid_bracket(diagram)
    return (bracket["low"] * bracket["high"]) ** 0.5


def _diverged(dataset: xr.Dataset) -> xr.DataArray | None:
    """Return 1 where a run diverged, 0 if not, NaN if unknown; None if it is not a diagram."""
    names = set(map(str, dataset.data_vars))
    if "test_loss" not in names or not {RATE, "seed"} < set(dataset["test_loss"].dims):
        return None
    if dataset["test_loss"].dtype.kind not in "iuf" or dataset[RATE].dtype.kind not in "iuf":
        return None
    dims = dataset["test_loss"].dims
    mark = next((dataset[name] for name in ("diverged", "outcome") if name in names), None)
    if mark is None or set(mark.dims) != set(dims):
        return None
    if mark.name == "diverged":
        return mark if mark.dtype.kind in "biuf" else None
    outcomes: NDArray[np.str_] = mark.values.astype(str)  # "" where there is no result
    values = np.where(outcomes == "diverged", 1.0, np.where(outcomes == "finished", 0.0, np.nan))
    return mark.copy(data=values)


def _vertical(records: Sequence[Record], varying: Sequence[str]) -> str | None:
    """Return the setting on the vertical axis: gamma, or the first numeric one."""
    for name in ("gamma", *varying):
        values = [record.parameters.get(name) for record in records]
        if name in varying and name != RATE and all(map(_is_number, values)):
            return name
    return None


def _grid(
    records: Sequence[Record],
    axis: str,
    theory: Theory | None,
    losses: Mapping[str, float] | None,
) -> xr.Dataset:
    labels = {
        axis: sorted({record.parameters[axis] for record in records}),
        RATE: sorted({record.parameters[RATE] for record in records}),
        "seed": sorted({record.seed for record in records}),
    }
    indices = [{value: index for index, value in enumerate(each)} for each in labels.values()]
    shape = tuple(map(len, labels.values()))
    loss, diverged = np.full(shape, np.nan), np.full(shape, np.nan)
    for record in (each for each in records if each.state.has_result):
        here = (record.parameters[axis], record.parameters[RATE], record.seed)
        cell = tuple(index[value] for index, value in zip(indices, here, strict=True))
        loss[cell] = _loss(record) if losses is None else losses.get(record.key, np.nan)
        diverged[cell] = record.state == "diverged"
    found = xr.Dataset(
        {"test_loss": (tuple(labels), loss), "diverged": (tuple(labels), diverged)}, labels
    )
    settings = {k: v for k, v in records[0].parameters.items() if k not in (axis, RATE)}
    lines = theory(settings, axis, labels[axis]) if theory is not None else None
    found = found if lines is None else found.assign(critical_learning_rate=lines)
    return found.assign_attrs(settings=canonical_json(settings))


def _loss(record: Record) -> float:
    dataset = record.read()
    return float(dataset["test_loss"]) if "test_loss" in dataset else np.nan


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _setting_words(parameters: Mapping[str, Any], name: str, versions: CodeVersions | None) -> str:
    """Return a setting that distinguishes a diagram from others, with its value."""
    if versions is not None and name == CODE:
        version = versions.describe(parameters)
        if version is not None:
            return version
    return f"{name} {_text(parameters.get(name))}"


def _text(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)
