"""Write the gallery of thumbnails, docs/results/index.md, from the records beside it.

    python docs/gallery.py            # write the page
    python docs/gallery.py --check    # exit with 1 if it is not up to date

A record is the .json that `normscope run` writes beside a figure. Needs nothing but Python.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
VERDICTS = ("reproduced", "partly", "not reproduced", "undecided")
SCALES = ("quick", "small", "medium", "paper")
BEYOND = "beyond the paper"
PAPERS = {
    "santurkar2018": "Santurkar et al. 2018: how batch normalization helps optimization",
    "wei2018": "Wei et al. 2018: mean-field theory of batch normalization",
    "kohler2018": "Kohler et al. 2018: length and direction decoupled",
    "yang2019": "Yang et al. 2019: gradients explode with depth",
    "cohen2021": "Cohen et al. 2021: training at the edge of stability",
}
HEAD = """# Gallery

What each paper says, whether it comes out here, and why. The verdict on a statement is that of the
largest scale it was run at, combined from its parts: *partly* means that some parts hold and others
do not, *undecided* that seeds, grid or scale cannot decide it. The [figures](#figures) and
[every claim](#every-claim), with those of normscope itself, follow.
"""
FIGURES = """## Figures

A picture leads to the figure's page, with the claims, the rules that decide them, settings and the
command that [reproduces](../how_to/reproduce.md) it.
"""
COUNTS = """## Claims by verdict

Verdicts follow from rules in the experiments' code. Times are those of the trainings that a command
had to compute, on two CPU cores. Figures of one paper share trainings: "no new training" means that
another figure's command had computed all of them.
"""
PAGES = {
    "santurkar2018": "santurkar2018/README.md",
    "wei2018": "wei2018/index.md",
    "kohler2018": "kohler2018/index.md",
    "yang2019": "yang2019/index.md",
    "cohen2021": "cohen2021/index.md",
}

Record = dict[str, Any]
Claim = dict[str, Any]


def page() -> str:
    """Return the whole page."""
    by_paper: dict[str, list[Record]] = {}
    for file in sorted(RESULTS.glob("*/**/*.json"), key=natural_order):
        record = json.loads(file.read_text(encoding="utf-8"))
        stem = file.relative_to(RESULTS).with_suffix("")
        by_paper.setdefault(stem.parts[0], []).append({**record, "page": stem.as_posix()})
    order = [key for key in PAPERS if key in by_paper]
    by_paper = {key: by_paper[key] for key in [*order, *(set(by_paper) - set(order))]}
    parts = [HEAD]
    for key, records in by_paper.items():
        parts += [f"## {PAPERS.get(key, key)}\n", statements_table(records)]
        if key in PAGES:
            parts.append(f"[Discussion of these results]({PAGES[key]})\n")
    parts.append(FIGURES)
    for key, records in by_paper.items():
        parts += [f"### {key}\n", '<div class="gallery" markdown>\n']
        parts += [*(thumbnail(record) for record in records), "</div>\n"]
    parts += [COUNTS, summary(by_paper), "## Every claim\n"]
    for key, records in by_paper.items():
        parts += [f"### {key}, every claim\n", claims_list(records)]
    return "\n".join(parts)


def statements_table(records: list[Record]) -> str:
    """Return a table with the verdict on each statement of a paper, at the largest scale run."""
    found: dict[str, dict[str, list[Claim]]] = {}
    for record in records:
        for claim in record["claims"]:
            if claim.get("origin", "paper") == "paper":
                by_scale = found.setdefault(claim.get("statement") or claim["text"], {})
                by_scale.setdefault(record["scale"], []).append({**claim, "page": record["page"]})
    rows = [["the paper says", "verdict", "scale", "why"], ["---"] * 4]
    for statement, by_scale in found.items():
        scale = max(by_scale, key=SCALES.index)
        claims = by_scale[scale]
        pages = dict.fromkeys(claim["page"] for claim in claims)
        links = ", ".join(f"[{Path(page).name}]({page}.md)" for page in pages)
        verdict = combined([claim["verdict"] for claim in claims])
        rows.append([f"{cell(statement)} ({links})", f"**{verdict}**", scale, reason(claims)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def combined(verdicts: list[str]) -> str:
    """Return the verdict on a statement from those on its parts, as normscope.results does."""
    found = set(verdicts)
    if len(found) == 1:
        return verdicts[0]
    is_mixed = "partly" in found or {"reproduced", "not reproduced"} <= found
    return "partly" if is_mixed else "undecided"


def reason(claims: list[Claim]) -> str:
    """Return in one line why a statement has its verdict: the part that decides, with numbers."""
    count = Counter(claim["verdict"] for claim in claims)
    worst = max(claims, key=lambda claim: VERDICTS.index(claim["verdict"]))
    against = [claim for claim in claims if claim["verdict"] == "not reproduced"]
    shown = against[0] if against else worst
    numbers = shown["measured"].split(" (over all steps")[0]
    if shown.get("resolve"):
        numbers = f"{numbers}; undecided: {shown['resolve']}"
    if len(claims) == 1:
        return cell(numbers)
    parts = ", ".join(f"{count[each]} {each}" for each in VERDICTS if count[each])
    return cell(f"{len(claims)} parts: {parts}. {shown['text']}: {numbers}")


def claims_list(records: list[Record]) -> str:
    """Return all claims of a paper: its own, then those beyond the paper."""
    head = [["figure", "claim", "measured", "verdict"], ["---"] * 4]
    tables = {
        origin: [
            [
                f"[{Path(record['page']).name}]({record['page']}.md), {record['scale']}",
                cell(claim["text"]),
                cell(claim["measured"]),
                claim["verdict"],
            ]
            for record in records
            for claim in record["claims"]
            if (claim.get("origin") == BEYOND) == (origin == BEYOND)
        ]
        for origin in ("paper", BEYOND)
    }
    parts = []
    for origin, rows in tables.items():
        if rows:
            parts += ["Beyond the paper:\n"] if origin == BEYOND else []
            parts.append("\n".join(f"| {' | '.join(row)} |" for row in head + rows) + "\n")
    return "\n".join(parts)


def cell(text: str) -> str:
    """Return a text for a cell of a Markdown table."""
    return " ".join(text.split()).replace("|", "\\|")


def natural_order(file: Path) -> tuple[str, list[tuple[int, str]], str]:
    """Return a sort key: by paper, then figure 2 before figure 10, then the folder."""
    words = re.findall(r"\d+|\D+", file.stem)
    named = [(int(w), "") if w.isdigit() else (-1, w) for w in words]
    folder = file.relative_to(RESULTS).parent
    return folder.parts[0], named, folder.as_posix()


def summary(by_paper: dict[str, list[Record]]) -> str:
    """Return a table with one row per paper: figures, claims, and claims by verdict."""
    rows = [["paper", "figures", "claims", *VERDICTS], ["---"] * (3 + len(VERDICTS))]
    for key, records in by_paper.items():
        count = counted(records)
        row = [f"[{key}](#{anchor(PAPERS.get(key, key))})", len(records), count.total()]
        rows.append([*map(str, row), *(str(count[verdict]) for verdict in VERDICTS)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def counted(records: list[Record]) -> Counter[str]:
    """Count the claims by verdict."""
    return Counter(claim["verdict"] for record in records for claim in record["claims"])


def thumbnail(record: Record) -> str:
    """Return a figure's picture with a link to its page, its verdicts, scale and time."""
    name, path, count = record["name"], record["page"], counted([record])
    verdicts = ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS if count[verdict])
    lines = [
        "<div markdown>\n",
        f"[![Figure of {name}]({path}.svg)]({path}.md)\n",
        f"**[{name}]({path}.md)**\n",
        f"{verdicts or 'no claim'}\n",
        f"{record['scale']} scale, {duration(record['seconds'])}\n",
        "</div>\n",
    ]
    return "\n".join(lines)


def duration(seconds: float) -> str:
    """Format a duration in hours, minutes or seconds; below a second nothing was trained."""
    if seconds < 1:
        return "no new training"
    for unit, length in (("h", 3600), ("min", 60)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def anchor(title: str) -> str:
    """Return the anchor that mkdocs gives to a title."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


def main() -> int:
    """Write the page, or check whether it is up to date."""
    target, text = RESULTS / "index.md", page()
    if "--check" not in sys.argv[1:]:
        target.write_text(text, encoding="utf-8")
        return 0
    if target.is_file() and target.read_text(encoding="utf-8") == text:
        return 0
    print("docs/results/index.md is not up to date; run: python docs/gallery.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
