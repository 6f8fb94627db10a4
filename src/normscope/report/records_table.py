"""Records of a store as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from normscope.report.document import Table, Value
from normscope.results import Record
from normscope.results.identity import canonical_json

__all__ = ["parameter_words", "records_table", "without_errors"]


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
    table = Table(f"Records of {records[0].experiment}", columns, rows)
    return table if any(record.error is not None for record in records) else without_errors(table)


def without_errors(table: Table) -> Table:
    """The table without its column of errors, if it has one.

    Args:
        table: of records.
    """
    if table.columns[-1] != "error":  # the last; a number of the user's may have the same name
        return table
    return Table(table.caption, table.columns[:-1], [tuple(row)[:-1] for row in table.rows])


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
