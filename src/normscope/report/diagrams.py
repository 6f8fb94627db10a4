"""Sweeps: phase diagrams as grids, the command that computes them, versions of the user's files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from math import prod
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from normscope.ranges import range_text
from normscope.results import Record
from normscope.results.grid import SCATTERED, varying_settings
from normscope.results.record import CODE, canonical_json, custom_parts
from normscope.text import join_words, plural

SWEPT = "phase_diagram"  # the name of the records
RATE = "learning_rate"
# Every cell of a sweep has these settings; a record without one of them is not of a sweep.
TRAINED = frozenset(["model", "data", "loss", "norm", "batch_size", "momentum"])
# A sweep leaves these unset unless they are given; for options of a model that is not known.
_UNSET = frozenset(["samples", "test_samples", "every_epoch"])

_Paths = tuple[str, ...]

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


@dataclass(frozen=True)
class CodeVersions:
    """Versions of the user's files among the records of a store, known without the files.

    Args:
        digests: by the import paths of the custom parts, the newest version first.
        times: when the last record of a version was started, if that is recorded.
    """

    digests: Mapping[_Paths, Sequence[str]]
    times: Mapping[tuple[_Paths, str], float]

    @classmethod
    def of(cls, records: Iterable[Record], times: Mapping[str, float]) -> CodeVersions:
        """Return the versions of some records.

        Args:
            records: in the order they were added, which decides if times are not recorded.
            times: when a record was last started, by its key.
        """
        last: dict[_Paths, dict[str, tuple[float, int]]] = {}
        known: dict[tuple[_Paths, str], float] = {}
        for number, record in enumerate(records):
            digest = record.parameters.get(CODE)
            if not isinstance(digest, str):
                continue
            paths = custom_parts(record.parameters)
            found = last.setdefault(paths, {})
            here = (times.get(record.key, 0.0), number)
            found[digest] = max(here, found.get(digest, here))
            if record.key in times:
                known[paths, digest] = found[digest][0]
        ordered = {
            paths: sorted(found, key=found.__getitem__, reverse=True)
            for paths, found in last.items()
        }
        return cls(ordered, known)

    def newest_first(self, records: Iterable[Record]) -> list[Record]:
        """Sort records by the version of their files, the newest first."""
        return sorted(records, key=lambda record: self._age(record.parameters))

    def _age(self, parameters: Mapping[str, Any]) -> int:
        """Return how many newer versions there are of the files of a record."""
        digest, digests = parameters.get(CODE), self.digests.get(custom_parts(parameters), ())
        return digests.index(digest) if digest in digests else 0

    def describe(self, parameters: Mapping[str, Any]) -> str | None:
        """Describe the version of a record; None if its files have only one.

        Args:
            parameters: of the record.
        """
        paths = custom_parts(parameters)
        digest = parameters.get(CODE)
        if len(self.digests.get(paths, ())) < 2 or not isinstance(digest, str):
            return None
        which = "earlier" if self._age(parameters) else "newest"
        seconds = self.times.get((paths, digest))
        date = ""
        if seconds is not None:
            date = f", of {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"
        return f"{which} version of the user's files{date} ({CODE} {digest})"


def sweep_command(records: Sequence[Record], store: str) -> tuple[str, str]:
    """Return the command of a sweep with every setting, and what else it would compute.

    Args:
        records: of the sweep.
        store: name of its file.

    Returns:
        The command, or "" if the records are scattered or lack settings; a sentence about it, or
        "".
    """
    missing = sorted(
        name for name in TRAINED if any(name not in each.parameters for each in records)
    )
    if missing:
        return "", f"There is no command: the records do not name their {join_words(missing)}."
    codes = (each.parameters.get(CODE) for each in records)
    digests = list(dict.fromkeys(code for code in codes if isinstance(code, str)))
    records = [
        replace(each, parameters={k: v for k, v in each.parameters.items() if k != CODE})
        for each in records
    ]
    seeds = range(min(each.seed for each in records), max(each.seed for each in records) + 1)
    names = list(dict.fromkeys(name for record in records for name in record.parameters))
    values = {name: _distinct_values(records, name) for name in names}
    cells = len({(json.dumps(each.parameters, sort_keys=True), each.seed) for each in records})
    whole = prod(map(len, values.values())) * len(seeds)
    if whole > SCATTERED * cells:
        return "", (
            f"There is no one command: the {cells} trainings lie scattered over a grid of {whole}, "
            "as those of sweep --boundary do; the table has the settings of each."
        )
    texts = {
        name: range_text(each) or ",".join(v if isinstance(v, str) else repr(v) for v in each)
        for name, each in values.items()
        if not (name in _UNSET and each in ([None], [False]))
    }
    settings = " ".join(f"--set {shlex.quote(f'{name}={text}')}" for name, text in texts.items())
    numbers = f"--seeds {len(seeds)} --seed {seeds[0]}"
    command = f"normscope sweep phase_diagram {settings} {numbers} --out {shlex.quote(store)}"
    return command, " ".join(filter(None, (_grid_note(records, cells, whole), _code_note(digests))))


def _grid_note(records: Sequence[Record], cells: int, whole: int) -> str:
    """Return what the command computes besides the records."""
    resumes = "It resumes: results that are there are not computed again."
    if whole > cells:
        others = plural(whole - cells, "training")
        return (
            f"The store holds {cells} trainings of a grid of {whole}; the command computes the "
            f"other {others} too. {resumes}"
        )
    return "" if all(record.state.has_result for record in records) else resumes


def _code_note(digests: Sequence[str]) -> str:
    """Return which versions of the user's files the runs used."""
    if not digests:
        return ""
    were = "digest was" if len(digests) == 1 else "digests were"
    return (
        "A model, data or loss of your own is in these trainings: run the command where its file "
        f"lies. The {were} {join_words(digests)}; a file that has changed since makes trainings "
        "of its own."
    )


def _distinct_values(records: Sequence[Record], name: str) -> list[Any]:
    """Return the values of a parameter, numbers sorted, others in the order of the records."""
    given = [each.parameters.get(name) for each in records]
    values = list({json.dumps(value, sort_keys=True): value for value in given}.values())
    numeric = all(isinstance(each, int | float) for each in values)
    return sorted(values) if numeric else values
