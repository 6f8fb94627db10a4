"""The grids of phase diagrams, from the records of a store or from the numbers of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from normscope.report.code_versions import CodeVersions
from normscope.results import Record
from normscope.results.identity import canonical_json
from normscope.results.labels import varying_settings
from normscope.results.own_parts import CODE

__all__ = ["RATE", "SWEPT", "Theory", "dataset_diagrams", "diagrams"]

SWEPT = "phase_diagram"  # the name of the records
RATE = "learning_rate"

# From all settings of a training, the name of a setting and its values to the critical learning
# rates (closure, setting); None where the theory says nothing.
Theory = Callable[[Mapping[str, Any], str, Sequence[float]], "xr.DataArray | None"]


def diagrams(
    records: Sequence[Record],
    theory: Theory | None = None,
    losses: Mapping[str, float] | None = None,
    versions: CodeVersions | None = None,
) -> dict[str, xr.Dataset]:
    """Every diagram in the records, by what tells it from the others.

    Args:
        records: of trainings, of each cell the one that counts; those without a result are holes.
        theory: gives the critical learning rates.
        losses: the test loss by the key of a record; None: read from the records.
        versions: of the user's own files, which are told in words then, the newest first.

    Returns:
        For each combination of the further settings the grid over one setting and the learning
        rate; none where fewer than two of these vary.
    """
    varying = varying_settings([record.parameters for record in records])
    axis = _vertical(records, varying)
    rates = [record.parameters.get(RATE) for record in records]
    if axis is None or RATE not in varying or not all(map(_is_positive, rates)):
        return {}
    others = [name for name in varying if name not in (axis, RATE)]
    groups: dict[str, list[Record]] = {}
    versions = CodeVersions({}, {}) if versions is None else versions
    for record in sorted(records, key=lambda each: versions.age(each.parameters)):
        words = ", ".join(_told(record.parameters, name, versions) for name in others)
        groups.setdefault(words, []).append(record)
    return {words: _grid(group, axis, theory, losses) for words, group in groups.items()}


def dataset_diagrams(dataset: xr.Dataset) -> dict[str, xr.Dataset]:
    """Every diagram in the numbers of a sweep, as `Store.to_xarray` or `phase_diagram` give them.

    Args:
        dataset: any labelled numbers.

    Returns:
        By what tells each from the others; none if the numbers are no diagram.
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
    for places in product(*(range(whole.sizes[name]) for name in others)):
        one = whole.isel(dict(zip(others, places, strict=True)))
        words = ", ".join(f"{name} {_text(one[name].values.item())}" for name in others)
        found[words] = one.drop_vars(others)
    return found


def _diverged(dataset: xr.Dataset) -> xr.DataArray | None:
    """1 where a training diverged, 0 where not, not-a-number where unknown; None: no diagram."""
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
    words: NDArray[np.str_] = mark.values.astype(str)  # "" where there is no result
    values = np.where(words == "diverged", 1.0, np.where(words == "finished", 0.0, np.nan))
    return mark.copy(data=values)


def _vertical(records: Sequence[Record], varying: Sequence[str]) -> str | None:
    """The setting on the vertical axis: gamma, or the first one that is numbers."""
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
    places = [{value: place for place, value in enumerate(each)} for each in labels.values()]
    shape = tuple(map(len, labels.values()))
    loss, diverged = np.full(shape, np.nan), np.full(shape, np.nan)
    for record in (each for each in records if each.state.has_result):
        here = (record.parameters[axis], record.parameters[RATE], record.seed)
        where = tuple(place[value] for place, value in zip(places, here, strict=True))
        loss[where] = _loss(record) if losses is None else losses.get(record.key, np.nan)
        diverged[where] = record.state == "diverged"
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


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive(value: Any) -> bool:
    return _is_number(value) and value > 0


def _told(parameters: Mapping[str, Any], name: str, versions: CodeVersions) -> str:
    """A setting that tells a diagram from others, in words."""
    version = versions.words(parameters) if name == CODE else None
    return f"{name} {_text(parameters.get(name))}" if version is None else version


def _text(value: object) -> str:
    return value if isinstance(value, str) else canonical_json(value)
