"""A store as sections of a report: one for each experiment in it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from normscope.errors import InputError
from normscope.plots.names import display_settings
from normscope.report.code_versions import CodeVersions
from normscope.report.curves import curves_picture
from normscope.report.diagram import SWEPT, Theory, diagrams
from normscope.report.diagram_words import shown_diagrams
from normscope.report.document import Picture, Section, Table
from normscope.report.looked import Looked, in_order, look
from normscope.report.records_table import parameter_words, records_table, without_errors
from normscope.report.scope_words import scope_picture, scope_words
from normscope.report.store_downloads import store_downloads
from normscope.report.sweep_command import sweep_command
from normscope.report.versions import said_versions
from normscope.report.words import counted, states_sentence
from normscope.results import Record, State, Store
from normscope.results.export import latest_results
from normscope.results.labels import varying_settings

__all__ = ["store_sections"]

MOST_PICTURES = 6
MOST_ROWS = 1000

_Shown = tuple[list[str], list[Picture]]
_EXPERIMENT = re.compile(r"[a-z]+\d{4}/\w+")


def store_sections(path: Path, theory: Theory | None = None) -> list[Section]:
    """Every experiment of a store as a section.

    Args:
        path: of the store; another process may be writing it.
        theory: gives the critical learning rates of a phase diagram.

    Raises:
        InputError: if the store holds no records.
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
        return [_section(store, path, name, records, theory) for name, records in by_name.items()]


def _section(
    store: Store, path: Path, name: str, records: Sequence[Record], theory: Theory | None
) -> Section:
    counts = {str(state): sum(each.state is state for each in records) for state in State}
    versions = CodeVersions.of(records, store.times(name))
    records = sorted(records, key=lambda each: versions.age(each.parameters))  # the newest first
    looked = [look(store, record) for record in records]
    varying = varying_settings([record.parameters for record in records])
    words, pictures = _drawn(name, looked, varying, theory, versions)
    if name == SWEPT:
        looked = in_order(looked, varying)
        records = [each.record for each in looked]
    table = records_table(records, [each.single for each in looked], varying)
    downloads = store_downloads(store, path.name, looked, table)
    failures, more = _failures(records, varying)
    command, note = _command(name, looked, path.name)
    times = [record.seconds for record in records if record.seconds is not None]
    cut = _cut(len(records), has_file=not downloads[0].left_out)
    return Section(
        title=f"{name} in {path.name}",
        paragraphs=[f"{path.name} holds {states_sentence(counts)}.", *words, *cut, *more],
        pictures=pictures,
        tables=[_first_rows(table, records), *failures],
        settings=_settings(name, records, varying),
        versions={
            "normscope": ", ".join(sorted({record.version for record in records})),
            **said_versions(store.versions(name)),
        },
        command=command,
        command_note=note,
        seconds=sum(times) if times else None,
        seconds_note="the times of the records added up" if len(times) > 1 else "",
        downloads=downloads,
        asked=_asked(name, looked),
    )


def _first_rows(table: Table, records: Sequence[Record]) -> Table:
    """What is shown of the records; errors are told once, in the table of those that failed."""
    told_below = all(each.state is State.FAILED for each in records if each.error is not None)
    shown = without_errors(table) if told_below else table
    return Table(shown.caption, shown.columns, shown.rows[:MOST_ROWS])


def _asked(name: str, looked: Sequence[Looked]) -> str:
    """The question that records of this kind answer."""
    if name == SWEPT:
        return "Under which settings does training converge, and where does it diverge?"
    if any(each.is_scope for each in looked):
        return "How smooth are these trainings, and how do the layers fare in them?"
    return ""


def _settings(name: str, records: Sequence[Record], varying: Sequence[str]) -> dict[str, Any]:
    """What all records have in common, and their seeds."""
    seeds = sorted({record.seed for record in records})
    common = {k: value for k, value in records[0].parameters.items() if k not in varying}
    return {**(display_settings(common) if name == SWEPT else common), "seeds": seeds}


def _cut(records: int, has_file: bool) -> list[str]:
    """A sentence if there are more records than the table shows."""
    if records <= MOST_ROWS:
        return []
    rest = "the CSV file has all" if has_file else "the store has all, too many for a file in here"
    return [f"The table shows the first {MOST_ROWS} records; {rest}."]


def _drawn(
    name: str,
    looked: Sequence[Looked],
    varying: Sequence[str],
    theory: Theory | None,
    versions: CodeVersions,
) -> _Shown:
    """Words and pictures, by the kind of the records."""
    latest = {each.key for each in latest_results(one.record for one in looked)}
    current = [e for e in looked if not e.record.state.has_result or e.record.key in latest]
    words, pictures = _drawn_current(name, current, varying, theory, versions)
    old = len(looked) - len(current)
    if old:
        verb = "is" if old == 1 else "are"
        told = f"{counted(old, 'result')} {verb} superseded by a later revision or version"
        words.append(f"{told}: in the table, not in the figures and data.")
    return words, pictures


def _drawn_current(
    name: str,
    looked: Sequence[Looked],
    varying: Sequence[str],
    theory: Theory | None,
    versions: CodeVersions,
) -> _Shown:
    if name == SWEPT:
        losses = {each.record.key: each.single.get("test_loss") for each in looked}
        known = {key: loss for key, loss in losses.items() if isinstance(loss, int | float)}
        found = diagrams([each.record for each in looked], theory, known, versions)
        if not found:
            return ["No diagram is drawn: it takes the learning rate and one more setting."], []
        return shown_diagrams(found, MOST_PICTURES)
    scoped = [each.record for each in looked if each.is_scope]
    if scoped:
        return _drawn_scopes(scoped, varying)
    curves = curves_picture([each.record for each in looked if each.has_curve], varying)
    return [], [] if curves is None else [curves]


def _drawn_scopes(records: Sequence[Record], varying: Sequence[str]) -> _Shown:
    chosen = records[:MOST_PICTURES]
    words, pictures = [], []
    for record in chosen:
        name, dataset = parameter_words(record, varying), record.read()
        words.append(f"{name}: {' '.join(scope_words(dataset))}")
        picture = scope_picture(dataset, name)
        pictures += [] if picture is None else [picture]
    further = len(records) - len(chosen)
    left = [f"{counted(further, 'further training')} not drawn here."] if further else []
    return [*words, *left], pictures


def _failures(records: Sequence[Record], varying: Sequence[str]) -> tuple[list[Table], list[str]]:
    """The records that failed, and a sentence if there are too many to show."""
    failed = [record for record in records if record.state is State.FAILED]
    if not failed:
        return [], []
    rows = [
        (parameter_words(each, varying), each.attempts, each.error or "")
        for each in failed[:MOST_ROWS]
    ]
    more = [f"Of {len(failed)} that failed the first {MOST_ROWS} are listed."]
    table = Table("Records that failed", ("record", "attempts", "error"), rows)
    return [table], more if len(failed) > MOST_ROWS else []


def _command(name: str, looked: Sequence[Looked], store: str) -> tuple[str, str]:
    """What computes the records again, and a sentence on it or on why there is nothing."""
    if name == SWEPT:
        return sweep_command([each.record for each in looked], store)
    if any(each.is_scope for each in looked):
        return "", "There is no command: a scope watches a training of your own program."
    experiment = _EXPERIMENT.match(name)
    if experiment is not None:
        return "", (
            f"There is no command for these alone: normscope run {experiment[0]} computes them, "
            "and its own result (.json) says with which settings."
        )
    return "", "There is no command: a store keeps names and parameters, not the program."
