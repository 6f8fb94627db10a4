"""Records of a store as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normscope.report.document import Table, Value
from normscope.results import Record
from normscope.results.identity import canonical_json

__all__ = ["parameter_words", "records_table"]


def records_table(
    records: Sequence[Record], single: Sequence[Mapping[str, Any]], varying: Sequence[str]
) -> Table:
    """One row for each record: what tells it from the others, its state and its single numbers.

    Args:
        records: of one experiment.
        single: the single numbers of each record, by name.
        varying: the parameters that are not the same everywhere.
    """
    marks = [mark for mark in ("revision", "version") if _varies(records, mark)]
    names = list(dict.fromkeys(name for each in single for name in each))
    rows = [
        (
            *(_value(record.parameters.get(name)) for name in varying),
            record.seed,
            str(record.state),
            *(_value(numbers.get(name)) for name in names),
            record.seconds,
            record.attempts,
            *(_value(getattr(record, mark)) for mark in marks),
            record.error,
        )
        for record, numbers in zip(records, single, strict=True)
    ]
    columns = [*varying, "seed", "state", *names, "seconds", "attempts", *marks, "error"]
    return _without_empty(Table(f"Records of {records[0].experiment}", columns, rows), "error")


def parameter_words(record: Record, varying: Sequence[str]) -> str:
    """What tells a record from the others, in words.

    Args:
        record: one of them.
        varying: the parameters that are not the same everywhere.
    """
    given = [f"{name} {_value(record.parameters.get(name))}" for name in varying]
    return ", ".join([*given, f"seed {record.seed}"])


def _varies(records: Sequence[Record], attribute: str) -> bool:
    return len({getattr(record, attribute) for record in records}) > 1


def _value(value: Any) -> Value:
    return value if value is None or isinstance(value, Value) else canonical_json(value)


def _without_empty(table: Table, column: str) -> Table:
    """The table without a column in which nothing is known."""
    place = list(table.columns).index(column)
    if any(row[place] is not None for row in table.rows):
        return table
    rows = [tuple(v for i, v in enumerate(row) if i != place) for row in table.rows]
    return Table(table.caption, [name for name in table.columns if name != column], rows)
