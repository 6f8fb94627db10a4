"""What to know of a comparison before its numbers are trusted, in sentences."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from normscope.learning_rate.onset import STEPS

if TYPE_CHECKING:
    from normscope.learning_rate.advice import Advice
    from normscope.learning_rate.compared import Compared, Comparison

__all__ = ["mark_of", "notes_of"]

_MARK = "*"  # beside a limit that no runs enclose, or that a training has refuted
_NEAR = 1.05  # of the loss of guessing: up to here a loss is that of guessing


def mark_of(row: Compared) -> str:
    """What stands beside a limit: a mark if a note says why it is not to be trusted, or nothing."""
    return "" if _is_enclosed(row.advice) and not row.is_unstable else _MARK


def _is_enclosed(advice: Advice) -> bool:
    """Whether the limit lies between a rate that held and one that failed in short runs."""
    found = advice.verification
    if found is None:
        return False
    low, high = found.ends
    return low > 0 and math.isfinite(high)


def notes_of(comparison: Comparison) -> list[str]:
    """Which limits no runs enclose, which trainings came to nothing, and of which matrix λ is.

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
        notes.append(f"{_MARK} predicted: no run has verified the limit{whose}.")
    notes += [f"{_MARK} {note}" for row in rows if (note := _limit_note(row))]
    notes += [note for row in rows if (note := _training_note(row, comparison.steps))]
    return notes + [note for note in (_matrix_note(comparison),) if note]


def _matrix_note(comparison: Comparison) -> str:
    """Whose eigenvalue λ is, where the rates do not follow from it."""
    rules = [row.advice.rule for row in comparison.rows]
    name = next((rule.name for rule in rules if not rule.is_exact), None)
    if name is None:
        return ""
    return (
        f"λ is that of the loss alone; the curvature bound follows from the curvature over "
        f"{name}'s scale, the lambda_max of each advice, and not from λ."
    )


def _limit_note(row: Compared) -> str:
    found = row.advice.verification
    if found is None or _is_enclosed(row.advice):
        return ""
    if found.died_first:
        return f"{row.norm}: the net died at every rate tried; the limit is the lowest of them."
    if found.low == 0:
        return f"{row.norm}: no rate tried was stable; the limit is the lowest of them."
    return f"{row.norm}: no rate tried was unstable; the limit is the highest of them."


def _training_note(row: Compared, steps: int) -> str:
    if row.is_unstable:
        return _unstable_note(row)
    if row.diverged:  # later than an instability counts
        return f"{row.norm}: the training at half the limit diverged."
    if not row.is_guessing:
        return ""
    guess = row.guessing_loss or 0.0
    place = "that" if row.final_loss <= _NEAR * guess else "above that"
    return (
        f"{row.norm}: after {steps} steps the loss, {row.final_loss:.3g}, is still {place} of "
        f"guessing, {guess:.3g}."
    )


def _unstable_note(row: Compared) -> str:
    """What a training did that should have been stable; whether it learnt is no question then."""
    done = "diverged" if row.diverged else f"was unstable already ({_rise(row)})"
    # runs in several orders have found a verified limit, their median
    whose = "" if row.advice.verification is None else " for this order of the data"
    return (
        f"{_MARK} {row.norm}: at half the limit the training {done}: the limit is too high{whose}."
    )


def _rise(row: Compared) -> str:
    first, worst = row.losses[0], row.losses[:STEPS].max()
    return f"its loss rose to {worst:.3g}, {worst / first:.2g} times the first"
