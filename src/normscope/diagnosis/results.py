"""`Finding` and `Diagnosis`: problems of a model, with evidence, as text, JSON, HTML or SARIF."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normscope.text import WIDTH, Rendered, Table, format_duration, join_words, plural, wrap

if TYPE_CHECKING:
    import pandas as pd

SEVERITIES = ("error", "warning", "note")
"""From training fails, over training suffers, to worth knowing."""

_SHOWN_MODULES = 3  # further ones are counted


@dataclass(frozen=True, repr=False)
class Finding(Rendered):
    """One problem of a model.

    Attributes:
        severity: one of `SEVERITIES`.
        modules: qualified names of the modules concerned, the most affected first; "" is the model
            itself, "loss", "optimizer" and "the data" are what they say.
        what: the problem, in a sentence.
        evidence: what was measured, in a sentence.
        value: the number measured.
        fix: code that removes the problem.
        effect: what was measured after the fix on a copy, in a sentence.
        fixed_value: the number after the fix; None if it was not measured.
        name: of the check that found it.
    """

    severity: str
    modules: tuple[str, ...]
    what: str
    evidence: str
    value: float
    fix: str
    effect: str
    fixed_value: float | None = None
    name: str = ""

    @property
    def module(self) -> str:
        """The module most affected."""
        return self.modules[0]

    @property
    def location(self) -> str:
        """The modules in words; of many, the first ones and the number of the others."""
        shown = [each or "the model" for each in self.modules[:_SHOWN_MODULES]]
        more = len(self.modules) - len(shown)
        return join_words([*shown, f"{more} more"] if more > 0 else shown)

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name."""
        named = {"name": self.name, "severity": self.severity, "module": self.module}
        return named | super().to_dict() | {"modules": list(self.modules)}

    def text(self, width: int = WIDTH) -> str:
        """Return the finding as lines of at most ``width`` columns; code is not wrapped."""
        head = wrap(f"{self.severity}: {self.name} at {self.location}", width)
        lines = [_indented(each, width) for each in (self.what, f"Measured: {self.evidence}")]
        code = "\n".join(["  Fix:", *(f"      {line}" for line in self.fix.splitlines())])
        return "\n".join([head, *lines, code, _indented(f"Effect: {self.effect}", width)])


def listed(names: tuple[str, ...]) -> str:
    """Return names as a list in code, on several lines if it is long.

    >>> print(listed(("stem.0", "stem.1")))
    ['stem.0', 'stem.1']
    """
    short = repr(list(names))
    if len(short) < WIDTH - 20:
        return short
    return "[\n" + "".join(f"    {name!r},\n" for name in names) + "]"


def _indented(text: str, width: int) -> str:
    return "\n".join(f"  {line}" for line in wrap(text, width - 2).splitlines())


@dataclass(frozen=True, repr=False)
class Diagnosis(Rendered):
    """The findings about a model, the most severe first.

    Attributes:
        findings: each with its evidence.
        checks: names of the checks that were made.
        skipped: reasons by name of the checks that could not be made.
        passes: forward or forward-backward passes that were run.
        seconds: duration.
    """

    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    passes: int = 0
    seconds: float = 0.0

    def __iter__(self) -> Iterator[Finding]:
        return iter(self.findings)

    def __len__(self) -> int:
        return len(self.findings)

    def __bool__(self) -> bool:
        """Whether there is an answer: always True, also without a finding."""
        return True

    def __getitem__(self, name: str) -> tuple[Finding, ...]:
        """Return the findings of a check."""
        return tuple(each for each in self.findings if each.name == name)

    @property
    def is_healthy(self) -> bool:
        """Whether no finding is above a note."""
        return all(each.severity == "note" for each in self.findings)

    @property
    def summary(self) -> str:
        """The number of findings by severity, and the cost, in a line."""
        counts = {each: sum(f.severity == each for f in self.findings) for each in SEVERITIES}
        found = join_words([plural(count, each) for each, count in counts.items() if count])
        cost = f"{plural(self.passes, 'pass', 'passes')}, {format_duration(self.seconds)}"
        total = plural(len(self.checks), "check")
        return f"{found if self.findings else 'no finding'} ({total}, {cost})"

    def to_dict(self) -> dict[str, Any]:
        """Return the values by name, findings as dictionaries."""
        return super().to_dict() | {"is_healthy": self.is_healthy, "skipped": dict(self.skipped)}

    def to_dataframe(self) -> pd.DataFrame:
        """Return a row for each finding."""
        import pandas as pd

        names = [each for each in Finding.__dataclass_fields__ if each != "name"]
        rows = [each.to_dict() for each in self.findings]
        return pd.DataFrame(rows, columns=["name", "module", *names])

    def to_sarif(self) -> dict[str, Any]:
        """Return the findings in the Static Analysis Results Interchange Format 2.1.0."""
        from normscope.diagnosis.sarif import sarif_log

        return sarif_log(self)

    def report(self, path: str | os.PathLike[str], title: str = "") -> Path:
        """Write the diagnosis as one HTML file and return its path.

        Args:
            path: of the file; an existing one is replaced.
            title: of the page.
        """
        from normscope.diagnosis.page import write_diagnosis

        return write_diagnosis(self, path, title)

    def text(self, width: int = WIDTH) -> str:
        """Return the diagnosis as lines of at most ``width`` columns."""
        parts = [wrap(f"Diagnosis: {self.summary}", width)]
        parts += [each.text(width) for each in self.findings]
        parts += [wrap(each, width) for each in self.reasons]
        return "\n\n".join(parts)

    @property
    def reasons(self) -> list[str]:
        """A sentence for each reason why checks were not made."""
        names: dict[str, list[str]] = {}
        for name, why in self.skipped.items():
            names.setdefault(why, []).append(name)
        return [f"Not checked, {why.rstrip('.')}: {join_words(of)}." for why, of in names.items()]

    def rows(self) -> list[dict[str, str]]:
        """Return what a table shows of each finding."""
        return [
            {
                "severity": each.severity,
                "finding": each.name,
                "module": each.location,
                "what": each.what,
                "measured": each.evidence,
                "fix": each.fix,
                "effect": each.effect,
            }
            for each in self.findings
        ]

    def _table(self) -> Table:
        return Table(self.rows(), f"Diagnosis: {self.summary}", self.reasons)
