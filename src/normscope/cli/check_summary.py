"""The rows of ``normscope check`` in short: a statement on random cases, on all layers or units."""

from __future__ import annotations

from typing import TYPE_CHECKING

from normscope.cli.tables import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from normscope.theorems import Unchecked, Verdict

__all__ = ["NOT_MET", "place_words", "summary", "verdict_cells"]

NOT_MET = "premise not met"


def summary(found: Sequence[tuple[str, Verdict | Unchecked]]) -> list[Row]:
    """One row for each statement on random cases and one on layers: counts, and the worst slack.

    The units of one layer are summed up likewise.

    Args:
        found: verdicts, and what has none, each with what it was checked on.

    Returns:
        The rows, in the order of the statements.
    """
    groups: dict[tuple[bool, str], list[tuple[str, Verdict | Unchecked]]] = {}
    for subject, each in found:
        groups.setdefault((each.layer is not None, each.label), []).append((subject, each))
    return [_row(label, group) for (_, label), group in groups.items()]


def _row(label: str, group: list[tuple[str, Verdict | Unchecked]]) -> Row:
    from normscope.theorems import Verdict
    from normscope.theorems.verdict import worst

    verdicts = [each for _, each in group if isinstance(each, Verdict)]
    missing = [subject for subject, each in group if not isinstance(each, Verdict)]
    subjects = list(dict.fromkeys(subject for subject, _ in group))
    row: Row = {"statement": label, "kind": "-"}
    is_one = len(subjects) == 1
    on = place_words(subjects[0], group[0][1].layer) if is_one else f"{len(subjects)} layers"
    if not verdicts:
        return {**row, "on": on, **dict.fromkeys(("cases", "unmet", "fail", "slack"), "-")} | {
            "verdict": "not checked"
        }
    cells = verdict_cells(worst(verdicts))
    if missing:
        count = _units(len(missing)) if is_one else str(len(set(missing)))
        cells["verdict"] = f"{cells['verdict']}; not checked on {count}"
    return {**row, "kind": cells.pop("kind"), "on": on, **cells}


def _units(count: int) -> str:
    return "1 unit" if count == 1 else f"{count} units"


def place_words(subject: str, layer: str | None) -> str:
    """Where it was checked: "features.1" alone, or even "1", would tell nobody what it is.

    Args:
        subject: what it was checked on.
        layer: its name, if that is a layer.
    """
    return f"layer {subject}" if subject == layer else subject


def verdict_cells(verdict: Verdict) -> dict[str, str]:
    """The cells of a verdict, but for its name and what it was checked on."""
    vacuous = verdict.unmet == verdict.cases
    return {
        "kind": {"identity": "=", "bound": "<="}[verdict.kind],
        "cases": str(verdict.cases),
        "unmet": str(verdict.unmet) if verdict.premise else "-",
        "fail": str(verdict.failures),
        "slack": "-" if vacuous else f"{verdict.slack:.1e}",
        "verdict": "false" if verdict.refuted else NOT_MET if vacuous else "holds",
    }
