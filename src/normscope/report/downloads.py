"""Data files embedded in the page: datasets as CSV and NetCDF, tables as CSV."""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

import xarray as xr

from normscope.errors import InputError
from normscope.report.document import Download, Name, Table
from normscope.results.netcdf import write_netcdf
from normscope.text import csv_value

LARGEST = 1_000_000  # bytes of an embedded file
_CSV, NETCDF = "text/csv;charset=utf-8", "application/netcdf"


def dataset_downloads(dataset: xr.Dataset, stem: str) -> tuple[Download, ...]:
    """Return a dataset as CSV and NetCDF; files larger than `LARGEST` are left out.

    Variables over the same dimensions share one CSV file, with a row for each combination of
    labels.

    Args:
        dataset: labelled numbers.
        stem: of the files' names.
    """
    stem = stem.replace("/", "_")
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, values in dataset.data_vars.items():
        groups.setdefault(tuple(map(str, values.dims)), []).append(str(name))
    tables = []
    for dims, names in sorted(groups.items()):  # a file may hold the variables in another order
        over = f"_by_{'_'.join(dims)}" if dims else "_values"
        tables.append(_csv(dataset[sorted(names)], f"{stem}{over if len(groups) > 1 else ''}.csv"))
    return (*tables, _netcdf(dataset, f"{stem}.nc"))


def table_download(table: Table, name: str) -> Download:
    """Return a table as CSV, in full precision; missing values are empty.

    Args:
        table: to write.
        name: of the file.
    """
    return _csv_download(name, table.columns, table.rows)


def _csv_download(
    name: str, columns: Iterable[object], rows: Iterable[Iterable[object]]
) -> Download:
    written = StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(map(_cell, columns))
    writer.writerows(map(_cell, row) for row in rows)
    return _limited(Download(name, _CSV, written.getvalue().encode(errors="replace")))


def _cell(value: object) -> object:
    return csv_value(str(value) if isinstance(value, Name) else value)


def _csv(part: xr.Dataset, name: str) -> Download:
    """Return variables over the same dimensions, without scalar coordinates."""
    if sum(values.size for values in part.data_vars.values()) > LARGEST:  # at least a byte each
        return _left_out(name, _CSV)
    if not part.sizes:
        return _csv_download(
            name, part.data_vars, [[values.item() for values in part.data_vars.values()]]
        )
    frame = part.drop_vars([n for n, v in part.coords.items() if not v.dims]).to_dataframe()
    frame = frame.reset_index()
    return _csv_download(name, frame.columns, frame.itertuples(index=False))


def _netcdf(dataset: xr.Dataset, name: str) -> Download:
    if dataset.nbytes > LARGEST:
        return _left_out(name, NETCDF)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "numbers.nc"
        try:
            write_netcdf(dataset, path)
        except InputError as error:
            return Download(name, NETCDF, b"", f"not in this page: {error}")
        return _limited(Download(name, NETCDF, path.read_bytes()))


def _limited(download: Download) -> Download:
    if len(download.content) <= LARGEST:
        return download
    return _left_out(download.name, download.media_type)


def _left_out(name: str, media_type: str) -> Download:
    reason = (
        f"not in this page, since it is larger than {LARGEST / 1e6:g} MB; it is in the files that "
        "the report was made of, or comes with the dataset's own to_dataframe and to_netcdf."
    )
    return Download(name, media_type, b"", reason)
