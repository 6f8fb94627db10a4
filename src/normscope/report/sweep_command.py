"""The command that computes the records of a sweep."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from normscope.ranges import range_text
from normscope.report.words import counted, listed
from normscope.results import Record
from normscope.results.own_parts import CODE

__all__ = ["TRAINED", "sweep_command"]

# Every cell of a sweep names these; without one of them a training is not known whole.
TRAINED = frozenset(["model", "data", "loss", "norm", "batch_size", "momentum"])
# A sweep leaves these off unless they are given; of a model's own options that is not known.
_UNSET = frozenset(["samples", "test_samples", "every_epoch"])
_SCATTERED = 4  # cells of the smallest grid around the records, for each of them


def sweep_command(records: Sequence[Record], store: str) -> tuple[str, str]:
    """The sweep with every setting written out, and what else it would compute.

    Args:
        records: of the sweep.
        store: name of its file.

    Returns:
        The command, or "" if the records lie scattered or do not say all that they are of; a
        sentence on it, "" if it says all.
    """
    unnamed = sorted(
        name for name in TRAINED if any(name not in each.parameters for each in records)
    )
    if unnamed:
        return "", f"There is no command: the records do not name their {listed(unnamed)}."
    digests = _digests(records)
    records = [_without_digest(each) for each in records]
    seeds = range(min(each.seed for each in records), max(each.seed for each in records) + 1)
    names = list(dict.fromkeys(name for record in records for name in record.parameters))
    values = {name: _different(records, name) for name in names}
    cells = len({(json.dumps(each.parameters, sort_keys=True), each.seed) for each in records})
    whole = prod(map(len, values.values())) * len(seeds)
    if whole > _SCATTERED * cells:
        return "", (
            f"There is no one command: the {cells} trainings lie scattered over a grid of {whole}, "
            "as those of sweep --boundary do; the table has the settings of each."
        )
    given = [
        shlex.quote(f"{name}={range_text(each) or ','.join(map(_text, each))}")
        for name, each in values.items()
        if not (name in _UNSET and each in ([None], [False]))
    ]
    settings = " ".join(f"--set {each}" for each in given)
    numbers = f"--seeds {len(seeds)} --seed {seeds[0]}"
    command = f"normscope sweep phase_diagram {settings} {numbers} --out {shlex.quote(store)}"
    return command, " ".join(filter(None, (_note(records, cells, whole), _code_note(digests))))


def _note(records: Sequence[Record], cells: int, whole: int) -> str:
    """What a command does that resumes."""
    resumes = "It resumes: results that are there are not computed again."
    if whole > cells:
        others = counted(whole - cells, "training")
        return (
            f"The store holds {cells} trainings of a grid of {whole}; the command computes the "
            f"other {others} too. {resumes}"
        )
    return "" if all(record.state.has_result for record in records) else resumes


def _digests(records: Sequence[Record]) -> list[str]:
    """The digests of the code that the user's own parts of the trainings were of."""
    codes = (each.parameters.get(CODE) for each in records)
    return list(dict.fromkeys(code for code in codes if isinstance(code, str)))


def _without_digest(record: Record) -> Record:
    """The record without the digest, which a sweep takes anew from the files themselves."""
    parameters = {name: value for name, value in record.parameters.items() if name != CODE}
    return replace(record, parameters=parameters)


def _code_note(digests: Sequence[str]) -> str:
    """Which code the trainings were of: the files may have changed since."""
    if not digests:
        return ""
    were = "digest was" if len(digests) == 1 else "digests were"
    return (
        "A model, data or loss of your own is in these trainings: run the command where its file "
        f"lies. The {were} {listed(digests)}; a file that has changed since makes trainings of its "
        "own."
    )


def _different(records: Sequence[Record], name: str) -> list[Any]:
    """The values of a parameter, each once, in the order of the records."""
    given = [each.parameters.get(name) for each in records]
    values = list({json.dumps(value, sort_keys=True): value for value in given}.values())
    numeric = all(isinstance(each, int | float) for each in values)
    return sorted(values) if numeric else values


def _text(value: Any) -> str:
    """A value as the option ``--set`` reads it."""
    return value if isinstance(value, str) else repr(value)
