"""The data of an experiment in a store as files inside the page."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import prod

from normscope.errors import InputError, StateError
from normscope.report.document import Download, Table
from normscope.report.downloads import LARGEST, NETCDF, dataset_downloads, table_download
from normscope.report.looked import Looked
from normscope.results import Store
from normscope.results.labels import varying_settings

__all__ = ["store_downloads"]


def store_downloads(
    store: Store, file: str, looked: Sequence[Looked], table: Table
) -> tuple[Download, ...]:
    """The records as a table, and their results as labelled numbers.

    Args:
        store: open.
        file: its name.
        looked: the records of one experiment.
        table: all of them.
    """
    name = looked[0].record.experiment
    stem = name.replace("/", "_")
    records = table_download(table, f"{stem}_records.csv")
    if _combined_bytes(looked) > LARGEST:  # before the grid is built, which may not fit in memory
        reason = f"not in this page, since it is larger than {LARGEST / 1e6:g} MB; "
        reason += f"Store({file!r}, read_only=True).to_netcdf(path, {name!r}) writes it."
        return records, Download(f"{stem}.nc", NETCDF, b"", reason)
    try:
        return records, *dataset_downloads(store.to_xarray(name), stem)
    except (InputError, StateError) as error:
        return records, Download(f"{stem}.nc", NETCDF, b"", f"not in this page: {error}")


def _combined_bytes(looked: Sequence[Looked]) -> int:
    """The size of the results on their grid, holes included: every cell like the largest."""
    done = [each for each in looked if each.record.state.has_result]
    settings = [each.record.parameters for each in done]
    labels = [
        {json.dumps(each.get(name), sort_keys=True) for each in settings}
        for name in varying_settings(settings)
    ]
    cells = prod(map(len, labels)) * len({each.record.seed for each in done})
    return cells * max((each.bytes for each in done), default=0)
