"""Results of many records as one labelled dataset: a dimension for every setting that varies.

Records that are scattered over their grid, as those of a random search, become a list instead: one
dimension "record", along which the settings are labels. Their grid would be almost empty, and for a
few hundred records larger than any memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import InputError, NormscopeError, StateError
from normscope.registry import unknown_name
from normscope.results.chunks import with_fill_value
from normscope.results.codec import Content, RawDataset, RawVariable, encode, from_raw
from normscope.results.record import Record, canonical_json

_NUMBERS = "biufc"  # kinds of dtypes
_LARGEST = 2**63 - 1  # of numpy's int64
_MOST_VALUES = 8  # listed in an error
_RECORD = "record"  # the dimension of records that are scattered
SCATTERED = 4  # cells of the smallest grid for each record, above which records are scattered

Position = slice | np.ndarray


@dataclass(frozen=True)
class Cell:
    """One result and its settings."""

    parameters: dict[str, Any]
    seed: int
    raw: RawDataset


def combine(
    experiment: str, cells: Sequence[Cell], planned: Sequence[dict[str, Any]] = ()
) -> xr.Dataset:
    """Combine cells into a dataset with a dimension for each varying parameter and the seed.

    Cells that are scattered over that grid become a list, with one dimension "record".

    Args:
        experiment: its name, stored as an attribute.
        cells: at least one; of two with the same labels the later one counts.
        planned: settings of all records, with or without a result, which decide about the form, so
            that it is the same at the beginning and at the end of a sweep.
    """
    settings = [{**cell.parameters, "seed": cell.seed} for cell in cells]
    axes = [*(name for name in varying_settings(settings) if name != "seed"), "seed"]
    labelled = {name: setting_labels([each.get(name) for each in settings]) for name in axes}
    if is_scattered(planned or settings):
        indices: list[tuple[int, ...]] = [(number,) for number in range(len(cells))]
        grid = {_RECORD: np.arange(len(cells))}
        variables = {
            name: RawVariable((_RECORD,), labels[positions], {}, True)
            for name, (labels, positions) in labelled.items()
        }
        axes = [*axes, _RECORD]
    else:
        indices = list(zip(*(positions for _, positions in labelled.values()), strict=True))
        grid = {name: labels for name, (labels, _) in labelled.items()}
        variables = {name: RawVariable((name,), labels, {}, True) for name, labels in grid.items()}
    chosen = dict(zip(indices, (cell.raw for cell in cells), strict=True))  # the later one counts
    parts = {index: _without_axes(raw.variables, axes) for index, raw in chosen.items()}
    constants = {name: value for name, value in settings[0].items() if name not in axes}
    attributes = _common([raw.attributes for raw in chosen.values()])
    attributes |= {"experiment": experiment, "parameters": canonical_json(constants)}
    return from_raw(RawDataset(variables | _gridded(parts, grid), attributes))


def is_scattered(settings: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the smallest grid of the settings is far larger than their number.

    >>> is_scattered([{"rate": rate, "gamma": rate} for rate in range(4)])
    False
    >>> is_scattered([{"rate": rate, "gamma": rate} for rate in range(5)])
    True
    """
    cells = len({canonical_json(each) for each in settings})
    return grid_size(settings) > SCATTERED * cells


def grid_size(settings: Sequence[Mapping[str, Any]]) -> int:
    """Number of cells of the smallest grid that holds all settings."""
    values = [
        {_identity(each.get(name)) for each in settings} for name in varying_settings(settings)
    ]
    return prod(map(len, values))


def latest_results(records: Iterable[Record]) -> list[Record]:
    """Of the records with a result, one for each parameters and seed, in the order added.

    The highest revision counts; of several versions of the package, the one added last.
    """
    latest: dict[tuple[str, int], Record] = {}
    for record in records:
        cell = (canonical_json(record.parameters), record.seed)
        known = latest.get(cell)
        if record.state.has_result and (known is None or known.revision <= record.revision):
            latest[cell] = record
    return list(latest.values())


def no_results_error(
    everything: Sequence[Record],
    experiment: str,
    found: Sequence[Record],
    conditions: Mapping[str, Any],
) -> NormscopeError:
    """Error for a selection without results, which lists what there is.

    Args:
        everything: all records.
        experiment: that was asked for.
        found: the records that met the conditions, none with a result.
        conditions: that were given.
    """
    experiments = {record.experiment for record in everything}
    if experiment not in experiments:
        return unknown_name("experiment", experiment, experiments)
    if found:
        states = [str(record.state) for record in found]
        counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return StateError(
            f"no record of {experiment!r} has a whole result yet ({counts}); run the experiment "
            "to its end (a scope ends with close), or read what there is from each record of "
            "store.select(...) by its .dataset."
        )
    present = [record for record in everything if record.experiment == experiment]
    values = "; ".join(f"{name}: {_values(present, name)}" for name in conditions)
    return InputError(f"no record of {experiment!r} has {dict(conditions)}; there are {values}.")


def varying_settings(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names whose values are not the same everywhere; a missing value counts as null."""
    names = dict.fromkeys(name for each in settings for name in each)
    return [name for name in names if len({_identity(each.get(name)) for each in settings}) > 1]


def setting_labels(values: Sequence[Any]) -> tuple[np.ndarray, list[int]]:
    """Return the distinct values as an array, and the position of each value in it.

    >>> labels, positions = setting_labels([0.5, 0.1, 0.5])
    >>> labels.tolist(), positions
    ([0.1, 0.5], [1, 0, 1])
    """
    numeric = all(map(_is_number, values))
    if not numeric and not _all_of(values, str) and not _all_of(values, bool):
        values = [canonical_json(value) for value in values]
    different = list(dict.fromkeys(values))
    if numeric:
        different.sort()
    position = {value: index for index, value in enumerate(different)}
    return np.array(different), [position[value] for value in values]


def _values(records: Sequence[Record], name: str) -> str:
    settings = [
        {**record.parameters, "seed": record.seed, "state": str(record.state)} for record in records
    ]
    texts = list(dict.fromkeys(canonical_json(each.get(name)) for each in settings))
    more = len(texts) - _MOST_VALUES
    return ", ".join(texts[:_MOST_VALUES]) + (f" and {more} more" if more > 0 else "")


def _identity(value: Any) -> Any:
    return value if _is_number(value) else canonical_json(value)


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return isinstance(value, float) or -_LARGEST <= value <= _LARGEST


def _all_of(values: Sequence[Any], kind: type) -> bool:
    return all(isinstance(value, kind) for value in values)


def _without_axes(variables: dict[str, RawVariable], axes: Sequence[str]) -> dict[str, RawVariable]:
    """A cell's variables without what the grid's labels hold already, such as its own seed."""
    found = {}
    for name, variable in variables.items():
        values, dims = variable.values, variable.dims
        for axis in set(axes) & set(dims):
            if values.shape[dims.index(axis)] != 1:
                raise InputError(
                    f"variable {name!r} has a dimension {axis!r} of its own, which also varies "
                    "between the records; rename one of them."
                )
            values = values.squeeze(dims.index(axis))
            dims = tuple(dim for dim in dims if dim != axis)
        if name not in axes:
            found[name] = replace(variable, dims=dims, values=values)
        elif not variable.is_coordinate or dims:
            raise InputError(
                f"the results have a variable {name!r}, which is also the name of a setting that "
                "varies between the records; rename one of them."
            )
    return found


def _gridded(
    parts: dict[tuple[int, ...], dict[str, RawVariable]], grid: dict[str, np.ndarray]
) -> dict[str, RawVariable]:
    """The variables of all cells over the whole grid."""
    inner, sizes = _inner_labels(list(parts.values()))
    along = {
        index: {dim: _positions(inner[dim], part[dim].values) for dim in inner if dim in part}
        for index, part in parts.items()
    }
    variables = {}
    for name in dict.fromkeys(name for part in parts.values() for name in part):
        if name in inner:
            first = next(part[name] for part in parts.values() if name in part)
            variables[name] = replace(first, values=inner[name])
        else:
            variables[name] = _spread(name, parts, along, grid, sizes)
    return variables


def _inner_labels(
    parts: Sequence[dict[str, RawVariable]],
) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """All labels of each dimension that has some, and the size of each dimension."""
    found: dict[str, list[np.ndarray]] = {}
    sizes: dict[str, int] = {}
    bare: set[str] = set()
    for part in parts:
        dims = {
            dim: size
            for variable in part.values()
            for dim, size in zip(variable.dims, variable.values.shape, strict=True)
        }
        for dim, size in dims.items():
            sizes[dim] = max(size, sizes.get(dim, 0))
            if dim in part:
                found.setdefault(dim, []).append(part[dim].values)
            else:
                bare.add(dim)
    if mixed := sorted(bare & set(found)):
        raise InputError(
            f"some records have labels along {mixed[0]!r} and some have none; give all of them "
            "labels."
        )
    unions = {dim: _union(dim, labels) for dim, labels in found.items()}
    return unions, sizes | {dim: len(labels) for dim, labels in unions.items()}


def _union(dim: str, labels: Sequence[np.ndarray]) -> np.ndarray:
    """All labels that occur along a dimension.

    Equal labels are returned unchanged; else numbers are sorted, strings in order of appearance.
    """
    if _equal_bits(labels):
        return labels[0]
    _common_dtype(dim, labels)
    distinct = list({(each.dtype.str, each.tobytes()): each for each in labels}.values())
    if any(len(np.unique(each)) < len(each) for each in distinct):
        raise InputError(
            f"the records have different labels along {dim!r} and some repeat; give each its own."
        )
    everything = np.concatenate(distinct)
    found, where = np.unique(everything, return_index=True)
    return everything[np.sort(where)] if everything.dtype.kind in "US" else found


def _positions(everything: np.ndarray, labels: np.ndarray) -> Position:
    """Positions of the labels among all; a slice if they are the first ones."""
    if len(labels) <= len(everything) and np.array_equal(everything[: len(labels)], labels):
        return slice(0, len(labels))
    order = np.argsort(everything)
    found: np.ndarray = order[np.searchsorted(everything, labels, sorter=order)]
    return found


def _spread(
    name: str,
    parts: dict[tuple[int, ...], dict[str, RawVariable]],
    along: dict[tuple[int, ...], dict[str, Position]],
    grid: dict[str, np.ndarray],
    sizes: dict[str, int],
) -> RawVariable:
    """One variable over the grid; a coordinate that is the same everywhere stays as it is."""
    shape = tuple(map(len, grid.values()))
    present = {index: part[name] for index, part in parts.items() if name in part}
    first = next(iter(present.values()))
    whole = tuple(sizes[dim] for dim in first.dims)
    arrays = [_transposed(name, each, first.dims) for each in present.values()]
    full = all(array.shape == whole for array in arrays)
    if first.is_coordinate and full and len(present) == len(parts) and _equal_bits(arrays):
        return first
    dtype = _common_dtype(name, arrays)
    if full and len(present) == math.prod(shape):
        values = np.empty(shape + whole, dtype)
    else:
        dtype, fill = with_fill_value(dtype)
        values = np.full(shape + whole, fill, dtype)
    for index, array in zip(present, arrays, strict=True):
        cell: tuple[Any, ...] = (*index, ...)  # a view also where one value is left
        _put(values[cell], array, [along[index].get(dim) for dim in first.dims])
    return RawVariable((*grid, *first.dims), values, first.attributes, first.is_coordinate)


def _put(target: np.ndarray, values: np.ndarray, along: Sequence[Position | None]) -> None:
    where = [
        slice(0, size) if each is None else each
        for each, size in zip(along, values.shape, strict=True)
    ]
    if all(isinstance(each, slice) for each in where):
        target[tuple(where)] = values
        return
    ranges = (np.arange(size)[each] for each, size in zip(where, target.shape, strict=True))
    target[np.ix_(*ranges)] = values


def _transposed(name: str, variable: RawVariable, dims: tuple[str, ...]) -> np.ndarray:
    if variable.dims == dims:
        return variable.values
    if set(variable.dims) != set(dims):
        raise InputError(
            f"variable {name!r} has the dimensions {list(dims)} in one record and "
            f"{list(variable.dims)} in another; select the records that belong together."
        )
    return variable.values.transpose([variable.dims.index(dim) for dim in dims])


def _common_dtype(name: str, arrays: Sequence[np.ndarray]) -> np.dtype:
    dtypes = {array.dtype for array in arrays}
    kinds = {"number" if dtype.kind in _NUMBERS else dtype.kind for dtype in dtypes}
    if len(kinds) > 1:
        raise InputError(
            f"variable {name!r} has the dtypes {', '.join(sorted(map(str, dtypes)))} in different "
            "records, which have no common dtype; convert it before storing."
        )
    return np.result_type(*dtypes) if len(dtypes) > 1 else next(iter(dtypes))


def _equal_bits(arrays: Sequence[np.ndarray]) -> bool:
    first = arrays[0]
    bits = first.tobytes()
    return all(
        each is first
        or (each.dtype == first.dtype and each.shape == first.shape and each.tobytes() == bits)
        for each in arrays
    )


def _common(attributes: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The attributes that are the same in all cells."""
    return {
        name: value
        for name, value in attributes[0].items()
        if all(name in each and _encoded(each[name]) == _encoded(value) for each in attributes[1:])
    }


def _encoded(value: Any) -> Content:
    return encode(RawDataset({}, {"value": value}))
