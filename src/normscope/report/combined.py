"""What was read of several files, as one page."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from normscope.report.document import Report, Section
from normscope.report.findings import findings_of, summary_of

__all__ = ["Content"]

_TITLE = "normscope report"


@dataclass
class Content:
    """What was read.

    Args:
        pages: of numbers that have one of their own kind.
        sections: all else.
        unread: in words, what of a folder could not be read and why.
    """

    pages: list[Report] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)

    def report(self, last: list[str]) -> Report:
        """One page of all: a page of its own kind keeps its first screen.

        Args:
            last: findings behind all others.
        """
        if not self.pages:
            alone = self.sections[0].title if len(self.sections) == 1 else _TITLE
            findings = [*findings_of(self.sections), *last]
            return Report(alone, findings, self.sections, summary_of(self.sections))
        first, *others = self.pages
        sections = [each for page in others for each in page.sections] + self.sections
        findings = [sentence for page in self.pages for sentence in page.findings]
        findings += findings_of(self.sections) if self.sections else []
        return replace(first, findings=[*findings, *last], sections=[*first.sections, *sections])
