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
VERDICTS = ("reproduced", "not reproduced", "undecided")
PAPERS = {
    "santurkar2018": "Santurkar et al. 2018: how batch normalization helps optimization",
    "wei2018": "Wei et al. 2018: mean-field theory of batch normalization",
    "kohler2018": "Kohler et al. 2018: length and direction decoupled",
    "yang2019": "Yang et al. 2019: gradients explode with depth",
}
HEAD = """# Gallery

Every figure of the papers that was run. A picture leads to the figure's page, with the paper's
claims, their verdicts, settings and the command that [reproduces](../how_to/reproduce.md) it.
"""
TAIL = """## Claims by verdict

*Reproduced* and *not reproduced* follow from rules in the experiment's code; *undecided* claims
need a larger run. Times are those of the trainings that a command had to compute, on two CPU
cores. Figures of one paper share trainings: "no new training" means that another figure's command
had computed all of them.
"""
PAGES = {
    "santurkar2018": "santurkar2018/README.md",
    "wei2018": "wei2018/index.md",
    "kohler2018": "kohler2018/index.md",
    "yang2019": "yang2019/index.md",
}

Record = dict[str, Any]


def page() -> str:
    """Return the whole page."""
    by_paper: dict[str, list[Record]] = {}
    for file in sorted(RESULTS.glob("*/*.json"), key=natural_order):
        record = json.loads(file.read_text(encoding="utf-8"))
        by_paper.setdefault(file.parent.name, []).append(record)
    papers = sorted(
        by_paper, key=lambda key: (list(PAPERS).index(key) if key in PAPERS else 99, key)
    )
    parts = [HEAD]
    for key in papers:
        parts.append(f"## {PAPERS.get(key, key)}\n")
        if key in PAGES:
            parts.append(f"[Discussion of these results]({PAGES[key]})\n")
        parts.append('<div class="gallery" markdown>\n')
        parts += [thumbnail(record) for record in by_paper[key]]
        parts.append("</div>\n")
    parts += [TAIL, summary({key: by_paper[key] for key in papers})]
    return "\n".join(parts)


def natural_order(file: Path) -> tuple[str, list[tuple[int, str]]]:
    """Return a sort key: by folder, then figure 2 before figure 10."""
    words = re.findall(r"\d+|\D+", file.stem)
    return file.parent.name, [(int(w), "") if w.isdigit() else (-1, w) for w in words]


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
    name, count = record["name"], counted([record])
    verdicts = ", ".join(f"{count[verdict]} {verdict}" for verdict in VERDICTS if count[verdict])
    lines = [
        "<div markdown>\n",
        f"[![Figure of {name}]({name}.svg)]({name}.md)\n",
        f"**[{name}]({name}.md)**\n",
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
