"""A claim of a paper, what was measured, and the verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from normscope.text import Table


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement with its source, the numbers that were measured, and the verdict.

    Args:
        text: the statement.
        source: of the statement, such as "santurkar2018, Figure 4".
        measured: the numbers that decide the verdict, with their spread.
        holds: the verdict; None: cannot be decided from this run.

    Examples:
        >>> Claim("water boils at 100 C", "a kettle", "99.97 C at sea level", True).verdict
        'reproduced'
    """

    text: str
    source: str
    measured: str
    holds: bool | None

    @property
    def verdict(self) -> str:
        """The verdict as a word."""
        return {True: "reproduced", False: "not reproduced", None: "undecided"}[self.holds]

    def to_dict(self) -> dict[str, Any]:
        """The values by name, with the verdict as a word."""
        return {**asdict(self), "verdict": self.verdict}

    def _repr_html_(self) -> str:
        values = {"verdict": self.verdict, "measured": self.measured, "source": self.source}
        return Table({"claim": self.text, **values}).html()


def claims_table(claims: Sequence[Claim]) -> str:
    """Format claims as a Markdown table.

    >>> print(claims_table([Claim("2 < 3", "arithmetic", "1 apart", True)]))
    | claim | source | measured | verdict |
    | --- | --- | --- | --- |
    | 2 < 3 | arithmetic | 1 apart | reproduced |
    """
    rows = [(each.text, each.source, each.measured, each.verdict) for each in claims]
    head = ["| claim | source | measured | verdict |", "| --- | --- | --- | --- |"]
    return "\n".join(head + [f"| {' | '.join(_cell(text) for text in row)} |" for row in rows])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
