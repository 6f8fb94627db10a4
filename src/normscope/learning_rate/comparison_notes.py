"""What to know of a comparison before its numbers are trusted, in sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from normscope.learning_rate.advice import Advice
    from normscope.learning_rate.compared import Compared, Comparison

__all__ = ["MARK", "is_enclosed", "notes_of"]

MARK = "*"  # beside a limit that no runs enclose
_NEAR = 1.05  # of the loss of guessing: up to here a loss is that of guessing


def is_enclosed(advice: Advice) -> bool:
    """Whether the limit lies between a rate that held and one that failed in short runs."""
    found = advice.verification
    return found is not None and found.low > 0 and math.isfinite(found.high)


def notes_of(comparison: Comparison) -> list[str]:
    """Which limits no runs enclose, and which trainings came to nothing.

    Args:
        comparison: the rows.

    Returns:
        Full sentences; those on limits begin with the mark that stands beside them.
    """
    rows = comparison.rows
    unverified = [row.norm for row in rows if row.advice.verification is None]
    notes = []
    if unverified:
        whose = "" if len(unverified) == len(rows) else f" of {', '.join(unverified)}"
        notes.append(f"{MARK} predicted: no run has verified the limit{whose}.")
    notes += [f"{MARK} {note}" for row in rows if (note := _limit_note(row))]
    return notes + [note for row in rows if (note := _training_note(row, comparison.steps))]


def _limit_note(row: Compared) -> str:
    found = row.advice.verification
    if found is None or is_enclosed(row.advice):
        return ""
    if found.low == 0:
        return f"{row.norm}: no rate tried was stable; the limit is the lowest of them."
    return f"{row.norm}: no rate tried was unstable; the limit is the highest of them."


def _training_note(row: Compared, steps: int) -> str:
    if row.diverged:
        return f"{row.norm}: the training at half the limit diverged."
    if not row.is_guessing:
        return ""
    guess = row.guessing_loss or 0.0
    place = "that" if row.final_loss <= _NEAR * guess else "above that"
    return (
        f"{row.norm}: after {steps} steps the loss, {row.final_loss:.3g}, is still {place} of "
        f"guessing, {guess:.3g}."
    )
