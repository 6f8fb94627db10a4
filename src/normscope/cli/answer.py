"""How ``lr`` and ``compare`` print a result."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from normscope.cli.output import print_json
from normscope.cli.tables import print_note, print_text, shown_width

__all__ = ["Answer", "print_answer"]


class Answer(Protocol):
    """A result that prints as a table and as plain values."""

    def to_dict(self) -> dict[str, object]:
        """Its values by name."""

    def text(self, width: int) -> str:
        """Its table and its words, so wide at most."""


def print_answer(
    answer: Answer, source: dict[str, object], figure: Path | None, as_json: bool, note: str
) -> None:
    """Print a result, and where its figure is: as JSON beside what it was asked of, or as text.

    Args:
        answer: the result.
        source: what it was asked of, by name.
        figure: where its figure was written, if it was.
        as_json: strict JSON instead of text.
        note: what the numbers are, under the text.
    """
    if as_json:
        path = None if figure is None else str(figure)
        print_json({**source, **answer.to_dict(), "figure": path})
        return
    print_text(answer.text(shown_width()))
    print_note(f"\n{note}")
    if figure is not None:
        print(f"Figure: {figure}")
