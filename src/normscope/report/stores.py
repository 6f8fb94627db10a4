"""Stores as sections: one for each experiment, with its records, pictures and data."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from normscope.errors import InputError, StateError
from normscope.plots.names import display_settings
from normscope.report.datasets import dataset_section, is_surface
from normscope.report.diagrams import SWEPT, CodeVersions, Theory, diagrams, sweep_command
from normscope.report.document import Card, Download, Picture, Section, Table, Value
from normscope.report.downloads import LARGEST, NETCDF, dataset_downloads, table_download
from normscope.report.narrative import describe_scope, package_versions, states_sentence
from normscope.report.pictures import (
    Drawn,
    curves_picture,
    draw_diagrams,
    scope_picture,
    try_drawing,
)
from normscope.results import Record, State, Store
from normscope.results.codec import RawDataset
from normscope.results.grid import (
    grid_size,
    is_scattered,
    latest_results,
    setting_labels,
    varying_settings,
)
from normscope.results.record import canonical_json
from normscope.text import plural

MOST_PICTURES = 6
MOST_ROWS = 1000
_MOST_CURVES = 8  # distinguishable lines in one panel

_EXPERIMENT = re.compile(r"[a-z]+\d{4}/\w+")
SURFACES, SURFACE_PARTS = "surface", "landscape"  # records of surfaces, and of parts of them
_IDENTITY = ("surface", "structure", "losses", "mode", "directions", "axes")  # equal in both


@dataclass(frozen=True)
class Entry:
    """A record with what the report needs of its result, which is not kept in memory.

    Args:
        record: itself.
        single: the scalars of its result, without those the state implies.
        is_scope: whether a scope measured it.
        has_curve: whether it has the losses of a training run.
        bytes: size of its arrays.
    """

    record: Record
    single: dict[str, Any] = field(default_factory=dict)
    is_scope: bool = False
    has_curve: bool = False
    bytes: int = 0


def store_sections(path: Path, theory: Theory | None = None) -> list[Section]:
    """Return every experiment of a store as a section.

    Args:
        path: of the store; another process may be writing to it.
        theory: returns the critical learning rates of a phase diagram.

    Raises:
        InputError: if the store has no records.
    """
    with Store(path, read_only=True) as store:
        by_name: dict[str, list[Record]] = {}
        for record in store.select():
            by_name.setdefault(record.experiment, []).append(record)
        if not by_name:
            raise InputError(
                f"{path} holds no records yet; fill it by normscope run or sweep, or a Scope with "
                "store=."
            )
        drawn = _surface_sections(store, path, by_name)
        others = [_section(store, path, name, each, theory) for name, each in by_name.items()]
        return [*drawn, *others]


def _surface_sections(store: Store, path: Path, by_name: dict[str, list[Record]]) -> list[Section]:
    """Return a section for each loss surface, the newest first; take what they show out of others.

    Args:
        store: open.
        path: of the store.
        by_name: records by their experiment; those that are shown here are removed.
    """
    found = []
    surfaces = [each for each in by_name.get(SURFACES, ()) if each.state.has_result]
    for number, record in reversed([*enumerate(surfaces, 1)][-MOST_PICTURES:]):
        dataset = record.read()
        if not is_surface(dataset):  # records of another program
            continue
        title = f"Loss surface {number}" if len(surfaces) > 1 else "Loss surface"
        section = dataset_section(
            dataset,
            f"{title} in {path.name}",
            stem=f"surface_{number}",
            versions={"normscope": record.version, **package_versions(store.versions(SURFACES))},
            command_note="There is no command: the surface is of a model of your own program.",
        )
        found.append(replace(section, seconds=float(dataset.attrs.get("seconds", math.nan))))
        by_name[SURFACES].remove(record)
    if SURFACE_PARTS in by_name:
        by_name[SURFACE_PARTS] = _parts_left(by_name[SURFACE_PARTS], surfaces)
    for name in [name for name, records in by_name.items() if not records]:
        del by_name[name]
    return found


def _parts_left(parts: Sequence[Record], surfaces: Sequence[Record]) -> list[Record]:
    """Return the parts that no complete surface contains, as after an interruption."""

    def identity(record: Record) -> list[Any]:
        return [record.parameters.get(name) for name in _IDENTITY]

    complete = [identity(each) for each in surfaces]
    return [each for each in parts if identity(each) not in complete]


def read_entry(store: Store, record: Record) -> Entry:
    """Read a record once; unfinished ones may have their steps so far.

    Variables are read without building a dataset, which for thousands of records would take most
    of a minute.

    Args:
        store: open.
        record: of the store.
    """
    if record.state is State.PENDING and not record.attempts:
        return Entry(record)
    try:
        pieces = store.read_raw(record.key)
    except StateError:  # no data yet; damage raises another error
        return Entry(record)
    single = _scalars(pieces) if record.state.has_result else {}
    loss = pieces.variables.get("loss")
    steps = loss is not None and not loss.is_coordinate and loss.dims == ("step",)
    curve = steps and loss is not None and loss.values.size > 0 and loss.values.dtype.kind in "iuf"
    size = sum(each.values.nbytes for each in pieces.variables.values())
    return Entry(record, single, steps and "probes" in pieces.attributes, curve, size)


def _scalars(pieces: RawDataset) -> dict[str, Any]:
    return {
        name: each.values.item()
        for name, each in pieces.variables.items()
        if name != "outcome"
        and not each.dims
        and not each.is_coordinate
        and each.values.dtype.kind in "biufU"
    }


def _section(
    store: Store, path: Path, name: str, records: Sequence[Record], theory: Theory | None
) -> Section:
    counts = {str(state): sum(each.state is state for each in records) for state in State}
    versions = CodeVersions.of(records, store.times(name))
    records = versions.newest_first(records)
    entries = [read_entry(store, record) for record in records]
    varying = varying_settings([record.parameters for record in records])
    drawn = try_drawing(lambda: _draw(name, entries, varying, theory, versions))
    if name == SWEPT:
        entries = _sort_by_settings(entries, varying)
        records = [each.record for each in entries]
    table = _records_table(entries, varying)
    downloads = _downloads(store, path.name, entries, table)
    failures, more = _failures(records, varying)
    command, note = _command(name, entries, path.name)
    times = [record.seconds for record in records if record.seconds is not None]
    cut = _cut_note(len(records), has_file=not downloads[0].left_out)
    cards = [Card(state, str(number), "records") for state, number in counts.items() if number]
    return Section(
        title=f"{name} in {path.name}",
        paragraphs=[f"{path.name} holds {states_sentence(counts)}.", *drawn.words, *cut, *more],
        pictures=drawn.pictures,
        tables=[replace(_first_rows(table, records), folded=bool(drawn.pictures)), *failures],
        settings=_settings(name, records, varying),
        versions={
            "normscope": ", ".join(sorted({record.version for record in records})),
            **package_versions(store.versions(name)),
        },
        command=command,
        command_note=note,
        seconds=sum(times) if times else None,
        seconds_note="the times of the records added up" if len(times) > 1 else "",
        downloads=downloads,
        asked=_question(name, entries),
        cards=cards,
        headline=drawn.headline,
    )


def _question(name: str, entries: Sequence[Entry]) -> str:
    """Return the question that records of this kind answer."""
    if name == SWEPT:
        return "Under which settings does training converge, and where does it diverge?"
    if any(each.is_scope for each in entries):
        return "How rough is the loss in these trainings?"
    return ""


def _settings(name: str, records: Sequence[Record], varying: Sequence[str]) -> dict[str, Any]:
    """Return the settings that all records share, and their seeds."""
    seeds = sorted({record.seed for record in records})
    common = {k: value for k, value in records[0].parameters.items() if k not in varying}
    return {**(display_settings(common) if name == SWEPT else common), "seeds": seeds}


def _sort_by_settings(entries: Sequence[Entry], varying: Sequence[str]) -> list[Entry]:
    """Sort records by the settings that vary: numbers ascending, strings in order of occurrence."""
    values = [[each.record.parameters.get(name) for each in entries] for name in varying]
    ranks = [setting_labels(each)[1] for each in values]
    keys = list(zip(*ranks, [each.record.seed for each in entries], strict=True))
    return [entries[index] for index in sorted(range(len(entries)), key=keys.__getitem__)]


def _draw(
    name: str,
    entries: Sequence[Entry],
    varying: Sequence[str],
    theory: Theory | None,
    versions: CodeVersions,
) -> Drawn:
    """Return sentences and pictures of the records that are not superseded, by their kind."""
    latest = {each.key for each in latest_results(one.record for one in entries)}
    current = [e for e in entries if not e.record.state.has_result or e.record.key in latest]
    if name == SWEPT:
        drawn = _draw_sweep(current, theory, versions)
    elif any(each.is_scope for each in current):
        drawn = _draw_scopes([e.record for e in current if e.is_scope], varying)
    else:
        records = [e.record for e in current if e.has_curve]
        drawn = Drawn(pictures=_draw_curves(records, varying))
    old = len(entries) - len(current)
    if old:
        verb = "is" if old == 1 else "are"
        superseded = f"{plural(old, 'result')} {verb} superseded by a later revision or version"
        drawn.words.append(f"{superseded}: in the table, not in the figures and data.")
    return drawn


def _draw_sweep(entries: Sequence[Entry], theory: Theory | None, versions: CodeVersions) -> Drawn:
    losses = {each.record.key: each.single.get("test_loss") for each in entries}
    known = {key: loss for key, loss in losses.items() if isinstance(loss, int | float)}
    found = diagrams([each.record for each in entries], theory, known, versions)
    if not found:
        return Drawn(["No diagram is drawn: it takes the learning rate and one more setting."])
    return draw_diagrams(found, MOST_PICTURES)


def _draw_scopes(records: Sequence[Record], varying: Sequence[str]) -> Drawn:
    chosen = records[:MOST_PICTURES]
    words, pictures = [], []
    for record in chosen:
        name, dataset = _record_name(record, varying), record.read()
        words.append(f"{name}: {' '.join(describe_scope(dataset))}")
        picture = scope_picture(dataset, name)
        pictures += [] if picture is None else [picture]
    further = len(records) - len(chosen)
    words += [f"{plural(further, 'further training')} not drawn here."] if further else []
    return Drawn(words, pictures)


def _draw_curves(records: Sequence[Record], varying: Sequence[str]) -> list[Picture]:
    """Draw the losses of the first training runs."""
    if not records:
        return []
    chosen = records[:_MOST_CURVES]
    losses = [(_record_name(each, varying), each.read()["loss"]) for each in chosen]
    return [curves_picture(losses, omitted=len(records) - len(chosen))]


def _record_name(record: Record, varying: Sequence[str]) -> str:
    """Return the parameters that distinguish a record from the others."""
    given = [f"{name} {_value(record.parameters.get(name))}" for name in varying]
    return ", ".join([*given, f"seed {record.seed}"])


def _records_table(entries: Sequence[Entry], varying: Sequence[str]) -> Table:
    """Return one row for each record: parameters that vary, state and scalars."""
    records = [each.record for each in entries]
    marks = [
        mark
        for mark in ("revision", "version")
        if len({getattr(record, mark) for record in records}) > 1
    ]
    names = list(dict.fromkeys(name for each in entries for name in each.single))
    rows = [
        (
            *(_value(entry.record.parameters.get(name)) for name in varying),
            entry.record.seed,
            str(entry.record.state),
            *(_value(entry.single.get(name)) for name in names),
            entry.record.seconds,
            entry.record.attempts,
            *(_value(getattr(entry.record, mark)) for mark in marks),
            entry.record.error,
        )
        for entry in entries
    ]
    columns = [*varying, "seed", "state", *names, "seconds", "attempts", *marks, "error"]
    table = Table(f"Records of {records[0].experiment}", columns, rows)
    return table if any(record.error is not None for record in records) else _without_errors(table)


def _value(value: Any) -> Value:
    return value if value is None or isinstance(value, Value) else canonical_json(value)


def _without_errors(table: Table) -> Table:
    """Return the table without its column of errors, which is the last if there is one."""
    if table.columns[-1] != "error":
        return table
    return replace(table, columns=table.columns[:-1], rows=[row[:-1] for row in table.rows])


def _first_rows(table: Table, records: Sequence[Record]) -> Table:
    """Return the rows to show; without errors if the table of failures lists them all."""
    listed_below = all(each.state is State.FAILED for each in records if each.error is not None)
    shown = _without_errors(table) if listed_below else table
    return replace(shown, rows=shown.rows[:MOST_ROWS])


def _cut_note(records: int, has_file: bool) -> list[str]:
    """Return a sentence if there are more records than the table shows."""
    if records <= MOST_ROWS:
        return []
    rest = "the CSV file has all" if has_file else "the store has all, too many for a file in here"
    return [f"The table shows the first {MOST_ROWS} records; {rest}."]


def _failures(records: Sequence[Record], varying: Sequence[str]) -> tuple[list[Table], list[str]]:
    """Return a table of the failed records, and a sentence if they are too many to show."""
    failed = [record for record in records if record.state is State.FAILED]
    if not failed:
        return [], []
    rows = [
        (_record_name(each, varying), each.attempts, each.error or "")
        for each in failed[:MOST_ROWS]
    ]
    more = [f"Of {len(failed)} that failed the first {MOST_ROWS} are listed."]
    table = Table("Records that failed", ("record", "attempts", "error"), rows)
    return [table], more if len(failed) > MOST_ROWS else []


def _command(name: str, entries: Sequence[Entry], store: str) -> tuple[str, str]:
    """Return the command that computes the records, and a sentence about it or its absence."""
    if name == SWEPT:
        return sweep_command([each.record for each in entries], store)
    if any(each.is_scope for each in entries):
        return "", "There is no command: a scope watches a training of your own program."
    if name == SURFACE_PARTS:
        return "", "These are parts of a surface; the call that began it completes it."
    experiment = _EXPERIMENT.match(name)
    if experiment is not None:
        return "", (
            f"There is no command for these alone: normscope run {experiment[0]} computes them, "
            "and its own result (.json) says with which settings."
        )
    return "", "There is no command: a store keeps names and parameters, not the program."


def _downloads(
    store: Store, file: str, entries: Sequence[Entry], table: Table
) -> tuple[Download, ...]:
    """Return the records as a table, and their results as a dataset."""
    name = entries[0].record.experiment
    stem = name.replace("/", "_")
    records = table_download(table, f"{stem}_records.csv")
    if _result_bytes(entries) > LARGEST:  # checked first, since the grid may not fit in memory
        reason = f"not in this page, since it is larger than {LARGEST / 1e6:g} MB; "
        reason += f"Store({file!r}, read_only=True).to_netcdf(path, {name!r}) writes it."
        return records, Download(f"{stem}.nc", NETCDF, b"", reason)
    try:
        return records, *dataset_downloads(store.to_xarray(name), stem)
    except (InputError, StateError) as error:
        return records, Download(f"{stem}.nc", NETCDF, b"", f"not in this page: {error}")


def _result_bytes(entries: Sequence[Entry]) -> int:
    """Return the size of all results in one dataset, every cell as large as the largest."""
    settings = [{**each.record.parameters, "seed": each.record.seed} for each in entries]
    done = [index for index, each in enumerate(entries) if each.record.state.has_result]
    cells = len(done)
    if not is_scattered(settings):
        cells = grid_size([settings[index] for index in done])
    return cells * max((entries[index].bytes for index in done), default=0)
