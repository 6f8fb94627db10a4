"""What ``normscope check`` prints: rows of statements, and how many are false."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from normscope.cli.check_summary import place_words, summary, verdict_cells
from normscope.cli.output import print_json
from normscope.cli.tables import Row, print_note, print_table

if TYPE_CHECKING:
    from normscope.errors import InputError
    from normscope.theorems import Unchecked, Verdict

__all__ = ["Found", "Parts", "nothing_to_check", "print_verdicts", "with_remedy"]

Found = list[tuple[str, "Verdict | Unchecked"]]
Parts = dict[str, int]  # layers whose batch is too large for Theorem C.1, and the samples it has

_NUMBERS = ("cases", "unmet", "fail", "slack")
_FEW = 10  # false rows that a summary shows in full


def print_verdicts(
    found: Found, form: str, as_json: bool, every_row: bool = True, parts: Parts | None = None
) -> int:
    """Print what was found.

    Args:
        found: verdicts, and what has none, each with what it was checked on.
        form: of the statements.
        as_json: strict JSON instead of a table.
        every_row: a row for each statement and layer, or unit of the one layer; else one for each
            statement over all of them, and a few that are false in full.
        parts: samples of the batch that Theorem C.1 was put to, by layer, where not all were.

    Returns:
        The number of rows that are false.
    """
    from normscope.theorems import Verdict

    verdicts = [(subject, each) for subject, each in found if isinstance(each, Verdict)]
    others = [(subject, each) for subject, each in found if not isinstance(each, Verdict)]
    refuted = sum(verdict.refuted for _, verdict in verdicts)
    if as_json:
        plain = [{"subject": subject, **each.to_dict()} for subject, each in verdicts]
        unchecked = [{"subject": subject, **each.to_dict()} for subject, each in others]
        answer = {"form": form, "verdicts": plain, "refuted": refuted, "unchecked": unchecked}
        print_json({**answer, "samples_of_theorem_c1": parts or {}})
        return refuted
    rows = summary(found)
    every_row = every_row or len(rows) == len(found)  # there is nothing to sum up
    if every_row:
        rows = [_row(*each) for each in _by_subject(found)]
    print_table(f"Statements, {form} form", rows, _NUMBERS)
    if not every_row and 0 < refuted <= _FEW:
        false: Found = [(subject, each) for subject, each in verdicts if each.refuted]
        print_table("Those that are false", [_row(*each) for each in _by_subject(false)], _NUMBERS)
    print_note(_legend([verdict for _, verdict in verdicts]))
    if form != "exact":
        print_note("Random cases have eps = 0, as the sources suppose; real layers have theirs.")
    if any(verdict.unmet for _, verdict in verdicts):
        print_note("unmet: cases outside the statement's premise, which do not count.")
    if parts:
        print_note(_part_words(parts))
    for reason in dict.fromkeys(each.reason for _, each in others):
        words, has_command, command = reason.partition(": try ")
        print_note(f"not checked: {words}{':' if has_command else '.'}")
        if has_command:
            print(f"  {command}")  # in one line, to copy
    if not every_row:
        part = "layer" if len({subject for subject, _ in found}) > 1 else "unit"
        print_note(f"{len(found)} rows in all, one a statement and {part}: --all shows them.")
    held = "All that were checked hold." if others else "All hold."
    print(f"{refuted} of {len(verdicts)} checked rows are false." if refuted else held)
    return refuted


def with_remedy(found: Verdict | Unchecked, batch_size: int, smaller: str) -> Verdict | Unchecked:
    """What was found; where a batch was too large to check, with the size that is not.

    Args:
        found: as the library has it.
        batch_size: of the batch it was found on.
        smaller: how a smaller batch is asked for; the size follows.

    Returns:
        The same, or with the reason in the words of the command line.
    """
    from normscope.theorems import Unchecked

    if not isinstance(found, Unchecked) or found.too_large is None:
        return found
    values, limit = found.too_large.values, found.too_large.limit
    fitting = batch_size * limit // values
    # a batch of one has no statistics
    advice = (
        f"{smaller} {fitting}" if fitting > 1 else "choose by --layer one that has fewer positions"
    )
    reason = f"a unit has {values} values in a batch of {batch_size}, more than {limit}: {advice}"
    return replace(found, reason=reason)


def nothing_to_check(model: str, network: Any, fitting: Sequence[str]) -> InputError:
    """What can be done with a model that the theorems do not speak of, as an error.

    Args:
        model: its name or place.
        network: itself.
        fitting: the kinds of normalization that it can have, of none, batch and layer.
    """
    from normscope.errors import InputError
    from normscope.layers.kinds import norm_layers

    others = sorted({type(each).__name__ for each in norm_layers(network).values()})
    has = f", but {' and '.join(others)}, which the theorems are not about" if others else ""
    make = "" if others else "add some"
    if others and "batch" in fitting:
        make = 'let it return normscope.layers.convert(model, to="batch")'
    if ":" not in model:
        make = "give --norm batch"
    remedy = f"; to check it with such layers, {make}" if make else ""
    compared = f", and normscope compare --norms {','.join(fitting)} those of other normalizations"
    return InputError(
        f"{model} has no batch normalization to check{has}{remedy}. As it is, normscope lr finds "
        f"its learning rates{compared if len(fitting) > 1 else ''}."
    )


def _part_words(parts: Parts) -> str:
    """On how many samples Theorem C.1 was checked."""
    fewest, most = min(parts.values()), max(parts.values())
    number = str(most) if fewest == most else f"{fewest} to {most}"
    return (
        f"theorem_c1: on the first {number} samples of the batch; it makes a matrix of all values "
        "of a unit."
    )


def _by_subject(found: Found) -> Found:
    """What was found on one layer together, the layers in their order."""
    groups: dict[str, Found] = {}
    for subject, each in found:
        groups.setdefault(subject, []).append((subject, each))
    return [pair for group in groups.values() for pair in group]


def _legend(verdicts: list[Verdict]) -> str:
    """What the columns are."""
    tolerance = max((each.tolerance for each in verdicts), default=0.0)
    lines = [
        "kind: = the two sides are equal; <= the left is at most the right.",
        "on: what it was checked on; a layer by its name in the model.",
        "cases: random ones, or units of the layer and their total; fail: those in which it is "
        "false.",
        "slack: right minus left relative to their terms, in the worst case; up to "
        f"{tolerance:g} below 0, and of = above it, is rounding and holds.",
    ]
    return "\n".join(lines)


def _on(subject: str, layer: str | None, unit: str | None) -> str:
    place = place_words(subject, layer)
    return place if unit is None else f"{place}, {unit}"


def _unchecked_row(subject: str, unchecked: Unchecked) -> Row:
    unit = None if unchecked.unit is None else f"unit {unchecked.unit}"
    row: Row = dict.fromkeys(("statement", "kind", "on", *_NUMBERS), "-")
    on = _on(subject, unchecked.layer, unit)
    return {**row, "statement": unchecked.label, "on": on, "verdict": "not checked"}


def _row(subject: str, verdict: Verdict | Unchecked) -> Row:
    from normscope.theorems import Unchecked

    if isinstance(verdict, Unchecked):
        return _unchecked_row(subject, verdict)
    single = verdict.cases == 1 and verdict.layer is not None
    unit = ("total" if verdict.unit is None else f"unit {verdict.unit}") if single else None
    cells = verdict_cells(verdict)
    where = {"kind": cells.pop("kind"), "on": _on(subject, verdict.layer, unit)}
    return {"statement": verdict.label, **where, **cells}
