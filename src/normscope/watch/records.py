"""The records of one experiment as columns: a hundred thousand of them take about 15 MB."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from normscope.results import State
from normscope.results.record import CODE, canonical_json
from normscope.results.tables import Row
from normscope.text import format_number

STATES = tuple(State)
PENDING, RUNNING, FINISHED, DIVERGED, FAILED = range(len(STATES))
_CODES = {state: code for code, state in enumerate(STATES)}
_MISSING = ""  # of a parameter that some records lack
_LARGEST = 1e300  # a forged file may have integers that no float can hold
_MOST_ERRORS = 20
_FEW = 4  # parameters that are named if none differ
_LONGEST = 300  # characters of an error, 80 of a value
_LONGEST_LIST = 40  # characters of a list in the name of a record


class Column:
    """The values of one parameter, each stored once.

    Args:
        length: number of records that lack it so far.
    """

    def __init__(self, length: int) -> None:
        self.values: list[Any] = []
        self.codes = array("i")
        self._known: dict[object, int] = {}
        if length:
            self.codes.extend([self._code(_MISSING)] * length)

    def extend(self, values: Iterable[Any]) -> None:
        """Add the values of more records."""
        for value in values:
            kind = type(value)
            try:  # True equals 1, so their types are part of the key
                code = self._known.get(value if kind is float or kind is str else (kind, value))
            except TypeError:  # a list or dict
                code = None
            self.codes.append(self._code(value) if code is None else code)

    def _code(self, value: Any) -> int:
        plain = value is None or isinstance(value, bool | int | float | str)
        kept = value if plain else canonical_json(value)
        key = kept if isinstance(value, float | str) else (type(value), kept)
        code = self._known.setdefault(key, len(self.values))
        if code == len(self.values):
            self.values.append(kept)
        return code

    @property
    def varies(self) -> bool:
        """Whether the records differ in it."""
        return len(self.values) > 1

    @property
    def is_numeric(self) -> bool:
        """Whether every record has a number."""
        return all(type(value) in (int, float) and abs(value) < _LARGEST for value in self.values)


class Records:
    """Parameters, states and results of the records of one experiment.

    Args:
        experiment: its name.
    """

    def __init__(self, experiment: str) -> None:
        self.experiment = experiment
        self.columns: dict[str, Column] = {}
        self.positions: dict[int, int] = {}  # by the number of the record
        self.numbers, self.seeds, self.revisions = array("q"), array("q"), array("q")
        self.editions: set[tuple[int, str]] = set()  # revisions and versions of the code
        self.states, self.attempts = array("b"), array("i")
        self.seconds, self.started, self.losses = array("d"), array("d"), array("d")
        self.errors: dict[int, str] = {}  # by position, of the last failures

    def __len__(self) -> int:
        return len(self.numbers)

    def update(self, rows: Sequence[Row], starts: Mapping[int, float]) -> None:
        """Add records, or change their states.

        Args:
            rows: of the store.
            starts: last start of a record in seconds since 1970, by its number, if that is known.
        """
        self._append([row for row in rows if row.id not in self.positions])
        for row in rows:
            position = self.positions[row.id]
            self.states[position] = _CODES[row.state]
            self.attempts[position] = row.attempts
            self.seconds[position] = np.nan if row.seconds is None else row.seconds
            self.started[position] = starts.get(row.id, np.nan)
            if row.state is State.FAILED:
                self.errors.pop(position, None)  # of an attempt before
                self.errors[position] = (row.error or "")[:_LONGEST]
        while len(self.errors) > _MOST_ERRORS:
            del self.errors[next(iter(self.errors))]

    def _append(self, rows: Sequence[Row]) -> None:
        """Add records as pending; column by column, since a large store has many."""
        length = len(self)
        self.positions.update((row.id, length + index) for index, row in enumerate(rows))
        for name in {name: None for row in rows for name in row.parameters}:
            if name not in self.columns:
                self.columns[name] = Column(length)
        for name, column in self.columns.items():
            column.extend([row.parameters.get(name, _MISSING) for row in rows])
        self.numbers.extend(row.id for row in rows)
        self.seeds.extend(row.identity.seed for row in rows)
        self.revisions.extend(row.identity.revision for row in rows)
        self.editions.update((row.identity.revision, row.identity.version) for row in rows)
        for values in (self.states, self.attempts):
            values.extend([0] * len(rows))
        for measured in (self.seconds, self.started, self.losses):
            measured.extend([np.nan] * len(rows))

    @property
    def varying(self) -> list[str]:
        """Names of the parameters that differ between records, in order of occurrence."""
        return [name for name, column in self.columns.items() if column.varies]

    def state_codes(self, at_work: bool = True) -> NDArray[np.int8]:
        """Return the state of every record as a code, the index in `STATES`.

        Args:
            at_work: whether a process is writing; if not, running records count as pending.
        """
        codes = np.array(self.states, dtype=np.int8)
        if not at_work:
            codes[codes == RUNNING] = PENDING
        return codes

    def counts(self, at_work: bool) -> dict[str, int]:
        """Return the number of records in each state; see `state_codes`."""
        found = np.bincount(self.state_codes(at_work), minlength=len(STATES)).tolist()
        return {str(state): number for state, number in zip(STATES, found, strict=True)}

    def newest(self, *states: int, most: int) -> list[int]:
        """Return positions of the records in some states, by their start, the newest first."""
        chosen = np.flatnonzero(np.isin(self.state_codes(), states))
        starts = np.nan_to_num(np.array(self.started)[chosen], nan=0.0)
        return [int(each) for each in chosen[np.lexsort((chosen, starts))][::-1][:most]]

    def describe(self, position: int) -> str:
        """Return the parameters that differ between records, and the seed.

        If none differ, the first few. Long lists, such as the points of a part of a surface, are
        left out.
        """
        names = self.varying or list(self.columns)[:_FEW]
        words = self.settings([n for n in names if not self._is_long_list(n, position)], position)
        return ", ".join([*words, f"seed {self.seeds[position]}"])

    def _is_long_list(self, name: str, position: int) -> bool:
        value = self.columns[name].values[self.columns[name].codes[position]]
        return isinstance(value, str) and value[:1] in ("[", "{") and len(value) > _LONGEST_LIST

    def settings(self, names: Sequence[str], position: int) -> list[str]:
        """Return some parameters of a record, each with its name."""
        found = []
        for name in names:
            column = self.columns[name]
            value = column.values[column.codes[position]]
            is_code = name == CODE and isinstance(value, str)
            found.append(
                f"files {value[:8]}" if is_code else f"{readable(name)} {value_text(value)}"
            )
        return found


def readable(name: str) -> str:
    """Return the name of a parameter in words."""
    return name.replace("_", " ")[:80]


def value_text(value: Any) -> str:
    """Return the value of a parameter as short text.

    >>> value_text(0.30000000000000004), value_text("batch"), value_text(None)
    ('0.3', 'batch', 'none')
    """
    if value is None:
        return "none"
    return format_number(value, 4) if isinstance(value, float) else str(value)[:80]
