"""Axes in which nothing can be drawn: why, in words."""

from __future__ import annotations

import textwrap

from matplotlib.axes import Axes

__all__ = ["say_unanswered"]


def say_unanswered(axes: Axes, reason: object) -> None:
    """Write into empty axes that the theory has no answer.

    Args:
        axes: where nothing is drawn.
        reason: of each setting in a list, or one text; its first sentence is shown.
    """
    text = str(reason[0] if isinstance(reason, list) and reason else reason or "")
    first = text.partition(". ")[0].rstrip(".")
    words = f"The theory has no answer: {first}." if first else "The theory has no answer."
    told = textwrap.fill(words, 48)
    axes.text(0.5, 0.5, told, ha="center", va="center", transform=axes.transAxes)
    axes.set_yticks([])
