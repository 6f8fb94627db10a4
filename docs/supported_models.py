"""Write the tables of docs/supported_models.md from the outcomes beside it.

    python docs/supported_models.py            # write the tables
    python docs/supported_models.py --check    # exit with 1 if they are not up to date

The outcomes, supported_models.json, are what `make test-zoo` found. Needs nothing but Python.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
OUTCOMES, PAGE = FOLDER / "supported_models.json", FOLDER / "supported_models.md"
GROUPS = ("zoo", "packages")
LONGEST_REASON = 240

Rows = dict[str, dict[str, str]]


class Reasons:
    """The reasons of refusals, numbered in the order of their first cell."""

    def __init__(self) -> None:
        self.cells: dict[str, list[str]] = {}

    def number(self, sentence: str, cell: str) -> int:
        """Return the number of a reason, and note the cell."""
        text = first_sentence(sentence)
        self.cells.setdefault(text, []).append(cell)
        return list(self.cells).index(text) + 1

    def listing(self, columns: int) -> str:
        """Return the list, each reason with its models and features."""
        lines = []
        for number, (text, cells) in enumerate(self.cells.items(), 1):
            models: dict[str, list[str]] = {}
            for cell in cells:
                model, feature = cell.split("|")
                models.setdefault(model, []).append(feature)
            where = "; ".join(
                f"{model} ({', '.join(features)})" if len(features) < columns // 2 else model
                for model, features in models.items()
            )
            lines.append(f"{number}. <a id='reason-{number}'></a>{escape(text)}: {where}.")
        return "\n".join(lines)


def first_sentence(text: str) -> str:
    """Return the first sentence of a refusal, without its remedy."""
    found = re.split(r"; |\. |\.$", text.replace("\n", " "), maxsplit=1)[0]
    return found if len(found) <= LONGEST_REASON else found[:LONGEST_REASON].rstrip() + " ..."


def escape(text: str) -> str:
    """Return a text with the characters that Markdown would read escaped."""
    return re.sub(r"([\\`*_<>\[\]|])", r"\\\1", text)


def table(rows: Rows, features: list[str], reasons: Reasons) -> str:
    """Return one table: a row for each model, a column for each feature."""
    lines = [f"| model | {' | '.join(features)} |", "|---" * (len(features) + 1) + "|"]
    for model, cells in rows.items():
        shown = [cell(cells.get(f, "not run"), f"{model}|{f}", reasons) for f in features]
        lines.append(f"| {escape(model)} | {' | '.join(shown)} |")
    return "\n".join(lines)


def cell(outcome: str, where: str, reasons: Reasons) -> str:
    """Return the text of a cell."""
    kind, _, sentence = outcome.partition(": ")
    if kind == "refuses":
        number = reasons.number(sentence, where)
        return f"refuses [{number}](#reason-{number})"
    return f"**{kind}**" if kind == "fails" else kind


def tables() -> dict[str, str]:
    """Return what belongs between each pair of markers, by its name."""
    outcomes: dict[str, Rows] = json.loads(OUTCOMES.read_text(encoding="utf-8"))
    rows = [row for group in GROUPS for row in outcomes.get(group, {}).values()]
    features = list(dict.fromkeys(feature for row in rows for feature in row))
    reasons = Reasons()
    parts = {group: table(outcomes.get(group, {}), features, reasons) for group in GROUPS}
    counts = [outcome.partition(":")[0] for row in rows for outcome in row.values()]
    numbers = ", ".join(
        f"{counts.count(kind)} {word}"
        for kind, word in (("works", "work"), ("refuses", "refuse"), ("fails", "fail"))
    )
    asked = sum(kind != "n/a" for kind in counts)
    models = sum(len(outcomes.get(group, {})) for group in GROUPS)
    parts["summary"] = (
        f"{models} networks, {len(features)} features: of {asked} cells {numbers}; "
        f"{counts.count('n/a')} do not apply."
    )
    parts["reasons"] = reasons.listing(len(features))
    return parts


def page() -> str:
    """Return the whole page with new tables."""
    text = PAGE.read_text(encoding="utf-8")
    for name, content in tables().items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        before, rest = text.split(begin)
        after = rest.split(end)[1]
        text = f"{before}{begin}\n\n{content}\n\n{end}{after}"
    return text


def main() -> int:
    """Write the page, or check it."""
    if "--check" in sys.argv[1:]:
        if page() == PAGE.read_text(encoding="utf-8"):
            return 0
        print("docs/supported_models.md is not up to date; run: python docs/supported_models.py")
        return 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
