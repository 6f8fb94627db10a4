"""Records of a sweep: the command that computes them, and the versions of the user's files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from math import prod
from typing import Any

from normscope.ranges import range_text
from normscope.results import Record
from normscope.results.grid import SCATTERED
from normscope.results.record import CODE, custom_parts
from normscope.text import join_words, plural

# Every cell of a sweep has these settings; a record without one of them is not of a sweep.
TRAINED = frozenset(["model", "data", "loss", "norm", "batch_size", "momentum"])
# A sweep leaves these unset unless they are given; for options of a model that is not known.
_UNSET = frozenset(["samples", "test_samples", "every_epoch"])

_Paths = tuple[str, ...]


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
