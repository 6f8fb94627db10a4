"""Datasets as NetCDF files."""

from __future__ import annotations

import os
from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import InputError, StateError
from normscope.files import replacing
from normscope.results.record import canonical_json


def write_netcdf(dataset: xr.Dataset, path: str | os.PathLike[str]) -> None:
    """Write a dataset as NetCDF, atomically.

    Attributes of types unknown to the format become strings (JSON) or numbers.

    Raises:
        InputError: if a variable has a type that the format does not support.
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
