"""Which records go into a labelled dataset, and how that becomes a NetCDF file."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import InputError, NormscopeError, StateError
from normscope.files import replacing
from normscope.registry import unknown_name
from normscope.results.identity import canonical_json
from normscope.results.record import Record

__all__ = ["latest_results", "nothing_to_combine", "write_netcdf"]


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


def nothing_to_combine(
    everything: Sequence[Record],
    experiment: str,
    found: Sequence[Record],
    conditions: Mapping[str, Any],
) -> NormscopeError:
    """The error for a selection without results, which says what there is.

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
        told = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
        return StateError(
            f"no record of {experiment!r} has a whole result yet ({told}); run the experiment "
            "to its end (a scope ends with close), or read what there is from each record of "
            "store.select(...) by its .dataset."
        )
    present = [record for record in everything if record.experiment == experiment]
    told = "; ".join(f"{name}: {_values(present, name)}" for name in conditions)
    return InputError(f"no record of {experiment!r} has {dict(conditions)}; there are {told}.")


def write_netcdf(dataset: xr.Dataset, path: str | os.PathLike[str]) -> None:
    """Write a dataset as NetCDF, all of it or nothing.

    Attributes that the format does not know become texts (JSON) or numbers.

    Raises:
        InputError: if a variable has a type that the format does not know.
        StateError: if the file cannot be written.
    """
    plain = dataset.assign_attrs(_writable(dataset.attrs))
    for name in plain.variables:
        plain[name].attrs = _writable(plain[name].attrs)
    try:
        with replacing(path) as unfinished:
            plain.to_netcdf(unfinished, engine="scipy")
    except OSError as error:
        raise StateError(f"{path} cannot be written ({error.strerror or error}).") from error
    except (ValueError, TypeError) as error:
        raise InputError(
            f"the dataset does not fit NetCDF ({error}); convert that variable, or use to_xarray."
        ) from error


def _values(records: Sequence[Record], name: str) -> str:
    settings = [
        {**record.parameters, "seed": record.seed, "state": str(record.state)} for record in records
    ]
    texts = list(dict.fromkeys(canonical_json(each.get(name)) for each in settings))
    return ", ".join(texts[:8]) + (f" and {len(texts) - 8} more" if len(texts) > 8 else "")


def _writable(attributes: Mapping[Hashable, Any]) -> dict[Hashable, Any]:
    return {name: _writable_value(value) for name, value in attributes.items()}


def _writable_value(value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        return int(value)
    if value is None or isinstance(value, dict):
        return canonical_json(value)
    if isinstance(value, list | tuple) and not all(isinstance(each, int | float) for each in value):
        return canonical_json(value)
    return value
