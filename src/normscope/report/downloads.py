"""Labelled numbers as files inside the page, where they are small."""

from __future__ import annotations

import csv
import tempfile
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from normscope.errors import InputError
from normscope.report.document import Download, Table
from normscope.results.export import write_netcdf

if TYPE_CHECKING:
    import xarray as xr

__all__ = ["LARGEST", "NETCDF", "dataset_downloads", "table_download"]

LARGEST = 1_000_000  # bytes of a file inside the page
_CSV, NETCDF = "text/csv;charset=utf-8", "application/netcdf"


def dataset_downloads(dataset: xr.Dataset, stem: str) -> tuple[Download, ...]:
    """The dataset as CSV and NetCDF; what is larger than `LARGEST` is left out, and says so.

    Variables over the same dimensions share one CSV file, a row for each combination of labels.

    Args:
        dataset: labelled numbers.
        stem: of the files' names.
    """
    stem = stem.replace("/", "_")
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, values in dataset.data_vars.items():
        groups.setdefault(tuple(map(str, values.dims)), []).append(str(name))
    tables = [
        _csv(dataset[sorted(names)], f"{stem}{_ending(dims, len(groups))}.csv")
        for dims, names in sorted(groups.items())  # a file may hold the variables in another order
    ]
    return (*tables, _netcdf(dataset, f"{stem}.nc"))


def table_download(table: Table, name: str) -> Download:
    """A table as CSV, in full precision.

    Args:
        table: its rows; what is missing stays empty.
        name: of the file.
    """
    written = StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(table.columns)
    writer.writerows(table.rows)
    return _kept(Download(name, _CSV, written.getvalue().encode(errors="replace")))


def _ending(dims: tuple[str, ...], groups: int) -> str:
    """What tells the files of several groups apart."""
    if groups == 1:
        return ""
    return f"_by_{'_'.join(dims)}" if dims else "_values"


def _csv(part: xr.Dataset, name: str) -> Download:
    """Variables over the same dimensions, without the labels that say nothing of their rows."""
    if sum(values.size for values in part.data_vars.values()) > LARGEST:  # at least a byte each
        return _left_out(name, _CSV)
    written = StringIO()
    writer = csv.writer(written, lineterminator="\n")
    if part.sizes:
        frame = part.drop_vars([n for n, v in part.coords.items() if not v.dims]).to_dataframe()
        frame = frame.reset_index()
        writer.writerow(frame.columns)
        writer.writerows(frame.itertuples(index=False))
    else:
        writer.writerow(part.data_vars)
        writer.writerow([values.item() for values in part.data_vars.values()])
    return _kept(Download(name, _CSV, written.getvalue().encode(errors="replace")))


def _netcdf(dataset: xr.Dataset, name: str) -> Download:
    if dataset.nbytes > LARGEST:
        return _left_out(name, NETCDF)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "numbers.nc"
        try:
            write_netcdf(dataset, path)
        except InputError as error:
            return Download(name, NETCDF, b"", f"not in this page: {error}")
        return _kept(Download(name, NETCDF, path.read_bytes()))


def _kept(download: Download) -> Download:
    if len(download.content) <= LARGEST:
        return download
    return _left_out(download.name, download.media_type)


def _left_out(name: str, media_type: str) -> Download:
    reason = (
        f"not in this page, since it is larger than {LARGEST / 1e6:g} MB; it is in the files that "
        "the report was made of, or comes with the dataset's own to_dataframe and to_netcdf."
    )
    return Download(name, media_type, b"", reason)
