"""Export of results to CSV (one number per row) and NetCDF."""

from __future__ import annotations

import os

import pandas as pd
import xarray as xr

from normscope.errors import InputError, StateError
from normscope.files import replacing
from normscope.text import csv_value

_COLUMNS = ("variable", "value")


def long_table(results: xr.Dataset) -> pd.DataFrame:
    """Return all numbers of a dataset in one table, one number per row.

    Variables may have different dimensions, so each row names its variable and its coordinates.
    A coordinate that a variable does not have is an empty string.

    Args:
        results: of a scope, of an experiment, or of a store.

    Returns:
        A table with the column ``variable``, one column for each dimension and other coordinate,
        and the column ``value``; missing numbers (NaN) are left out.

    Raises:
        InputError: if a dimension is called ``variable`` or ``value``.

    >>> sizes = {"step": [0, 1], "layer": ["a", "b"]}
    >>> norms = (("step", "layer"), [[1.0, 2.0], [3.0, float("nan")]])
    >>> long_table(xr.Dataset({"loss": ("step", [0.5, 0.25]), "norm": norms}, sizes))
      variable  step layer  value
    0     loss     0         0.50
    1     loss     1         0.25
    2     norm     0     a   1.00
    3     norm     0     b   2.00
    4     norm     1     a   3.00
    """
    taken = [name for name in _COLUMNS if name in results.dims or name in results.coords]
    if taken:
        raise InputError(f"the dimension {taken[0]!r} has the name of a column; rename it.")
    labels = [str(name) for name in dict.fromkeys((*results.dims, *results.coords))]
    parts = [
        _rows(variable).assign(variable=str(name)) for name, variable in results.data_vars.items()
    ]
    filled = [  # an empty string for each coordinate that the variable does not have
        part.assign(**{label: "" for label in labels if label not in part})
        for part in parts
        if len(part)
    ]
    columns = ["variable", *labels, "value"]
    if not filled:
        return pd.DataFrame(columns=columns)
    return pd.concat(filled)[columns].reset_index(drop=True)


def write_csv(results: xr.Dataset, path: str | os.PathLike[str]) -> None:
    """Write all numbers of a dataset as a CSV file, atomically: see `long_table`.

    Numbers are written with all digits, so that they are read back bit for bit. Text that a
    spreadsheet would run as a formula gets an apostrophe in front (`normscope.text.csv_value`).

    Args:
        results: of a scope, of an experiment, or of a store.
        path: of the file.

    Raises:
        StateError: if the file cannot be written.
    """
    table = long_table(results)
    texts = table.select_dtypes(exclude=["number", "bool"])
    table[texts.columns] = texts.map(csv_value)
    try:
        with replacing(path) as unfinished:
            table.rename(columns=csv_value).to_csv(unfinished, index=False)
    except OSError as error:
        raise StateError(f"{path} cannot be written ({error.strerror or error}).") from error


def _rows(variable: xr.DataArray) -> pd.DataFrame:
    if variable.ndim == 0:
        labels = {str(name): [label.item()] for name, label in variable.coords.items()}
        return pd.DataFrame({**labels, "value": [variable.item()]}).dropna(subset="value")
    named = variable.rename("value")
    return named.to_dataframe().reset_index().dropna(subset="value")
