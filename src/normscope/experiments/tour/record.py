"""How a tour was run, kept in the attributes of its dataset, so that a file can be reported."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xarray as xr

from normscope.experiments.result import Result, plain_value
from normscope.results import Store

_PREFIX = "run_"  # of the attributes
_MARKS = ("predicted", "theory_says", "shared_training_loss", "diagram_test_loss", "refuted")
_NET = {"data": "data", "width": "width", "layers": "depth", "batch_size": "batch_size"}


@dataclass(frozen=True)
class Record:
    """How a tour was run.

    Args:
        settings: all settings, by name.
        versions: of the packages it ran on, by name.
        command: that reproduces it.
        seconds: it took in all; None if that is not known.
        earlier: seconds of them in interrupted runs.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    seconds: float | None = None
    earlier: float = 0.0

    @property
    def earlier_words(self) -> str:
        """Return which part of the seconds was spent in earlier runs.

        >>> Record(seconds=90.0, earlier=31.7).earlier_words
        '32 of them before it was interrupted'
        """
        return f"{self.earlier:.0f} of them before it was interrupted" if self.earlier else ""


def with_record(result: Result, command: str, earlier: float = 0.0) -> xr.Dataset:
    """Return the numbers of a tour with its record in their attributes.

    Args:
        result: of the experiment "tour".
        command: that reproduces it.
        earlier: seconds of what it found in a store.

    Returns:
        What `record_of` reads, also after it was a NetCDF file.
    """
    kept = {
        "settings": result.to_dict()["settings"],
        "versions": result.versions,
        "command": command,
        "seconds": result.seconds + earlier,
        "earlier": earlier,
    }
    return result.dataset.assign_attrs(
        {f"{_PREFIX}{name}": json.dumps(value) for name, value in kept.items()}
    )


def record_of(results: xr.Dataset) -> Record:
    """Return how the numbers of a tour were made; without a record, only the net's settings."""
    kept = {
        str(name).removeprefix(_PREFIX): json.loads(value)
        for name, value in results.attrs.items()
        if str(name).startswith(_PREFIX)
    }
    if not kept:
        return Record(
            settings={str(name): plain_value(value) for name, value in results.attrs.items()}
        )
    return Record(**kept)


def is_tour(results: xr.Dataset) -> bool:
    """Return whether a dataset is that of a tour."""
    return all(name in results for name in _MARKS)


def seconds_in_store(store: Store, settings: Mapping[str, Any]) -> float:
    """Return the seconds of a tour's parts that a store has already.

    Args:
        store: of tours, such as an interrupted one.
        settings: of this tour; parts of other nets and seeds are not counted.

    Returns:
        Their sum.
    """
    seeds = range(settings["seed"], settings["seed"] + settings["seeds"])
    net = {theirs: settings[ours] for ours, theirs in _NET.items()}
    return sum(
        record.seconds or 0.0
        for record in store.select()
        if record.state.has_result
        and record.seed in seeds
        and all(record.parameters.get(name) == value for name, value in net.items())
    )
