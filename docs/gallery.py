"""Write docs/results/index.md, the gallery, and claims.md, every claim, from the records there.

    python docs/gallery.py            # write the pages
    python docs/gallery.py --check    # exit with 1 if one is not up to date

A record is the .json that `normscope run` writes beside a figure. Needs nothing but Python.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections import Counter
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
WHY = "why.json"  # verdict, and why, by the begin of a statement; written by hand
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

What five papers say about normalization and stability, and whether it comes out here.
{counts}

A verdict is that of the largest [scale](../how_to/reproduce.md) at which a figure was run. *Partly*
means that some parts of a statement hold and others do not; *undecided*, that there are too few
seeds, or too coarse a grid, to decide. The numbers and rules are on the page of each figure, all of
them in [Every claim](claims.md).
"""
FIRST = {  # figures with a paper's main statements; the others follow in their order
    "santurkar2018": ("figure4", "figure1", "figure10", "figure3", "figure2"),
    "wei2018": ("figure2", "figure1"),
    "kohler2018": ("ols", "halfspace"),
    "cohen2021": ("gradient_descent",),
}
FIGURES = """## Figures

A picture leads to the figure's page, with its claims and the command that
[reproduces](../how_to/reproduce.md) it. Times are those of the trainings that the command had to
compute, on two CPU cores; figures of one paper share trainings.
"""
CLAIMS = """# Every claim

The claims of all [figures](index.md#figures): those of the papers, and those of normscope itself
("beyond the paper"). The rule behind each verdict is in the experiment's code and on the figure's
page. *Measured* is the statistic of that rule: mean ± standard deviation over seeds, and a ratio
with its 95 % bootstrap interval.

## Claims by verdict
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


def read_records() -> dict[str, list[Record]]:
    """Return the records of each paper, in the order of the page."""
    by_paper: dict[str, list[Record]] = {}
    for file in sorted(RESULTS.glob("*/**/*.json"), key=natural_order):
        record = json.loads(file.read_text(encoding="utf-8"))
        stem = file.relative_to(RESULTS).with_suffix("")
        by_paper.setdefault(stem.parts[0], []).append({**record, "page": stem.as_posix()})
    order = [key for key in PAPERS if key in by_paper]
    return {key: by_paper[key] for key in [*order, *(set(by_paper) - set(order))]}


def gallery_page(by_paper: dict[str, list[Record]]) -> str:
    """Return the gallery: the statements of each paper, then the figures."""
    found = {key: statements(key, records) for key, records in by_paper.items()}
    parts = [HEAD.format(counts=counts_of(found))]
    for key, of_paper in found.items():
        parts += [f"## {PAPERS.get(key, key)}\n", statements_table(of_paper)]
        if key in PAGES:
            parts.append(f"[Discussion of these results]({PAGES[key]})\n")
    parts.append(FIGURES)
    for key, records in by_paper.items():
        parts += [f"### {key}\n", '<div class="gallery" markdown>\n']
        parts += [*(thumbnail(record) for record in records), "</div>\n"]
    return "\n".join(parts)


def claims_page(by_paper: dict[str, list[Record]]) -> str:
    """Return the page with every claim."""
    parts = [CLAIMS, summary(by_paper)]
    for key, records in by_paper.items():
        parts += [f"## {PAPERS.get(key, key)}\n", claims_list(records)]
    return "\n".join(parts)


def counts_of(found: dict[str, dict[str, list[Claim]]]) -> str:
    """Return a sentence with the number of statements by verdict."""
    verdicts = [verdict_on(claims) for of_paper in found.values() for claims in of_paper.values()]
    count = Counter(verdicts)
    shown = ", ".join(f"{count[each]} {each}" for each in VERDICTS)
    return f"Of {len(verdicts)} statements: {shown}."


def statements(paper: str, records: list[Record]) -> dict[str, list[Claim]]:
    """Return the claims of each statement of a paper, of each figure at its largest scale."""
    found: dict[str, list[Claim]] = {}
    for record in sorted(records, key=lambda record: place(paper, record)):
        scales = [other["scale"] for other in records if other["name"] == record["name"]]
        for claim in record["claims"] if record["scale"] == max(scales, key=SCALES.index) else ():
            if claim.get("origin", "paper") == "paper":
                of_figure = {"page": record["page"], "scale": record["scale"]}
                statement = claim.get("statement") or claim["text"]
                found.setdefault(statement, []).append({**claim, **of_figure})
    return found


def statements_table(found: dict[str, list[Claim]]) -> str:
    """Return a table of a paper's statements."""
    rows = [["the paper says", "verdict", "why, or what would decide it"], ["---"] * 3]
    for statement, claims in found.items():
        pages = dict.fromkeys(claim["page"] for claim in claims)
        links = ", ".join(f"[{Path(page).name}]({page}.md)" for page in pages)
        said = f"{cell(statement)} ({links})"
        rows.append([said, judgement(claims), explanation(statement, claims)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + "\n"


def judgement(claims: list[Claim]) -> str:
    """Return a statement's verdict, the share of its reproduced parts, and the scales."""
    verdict = verdict_on(claims)
    scales = ", ".join(sorted({claim["scale"] for claim in claims}, key=SCALES.index))
    held = sum(claim["verdict"] == "reproduced" for claim in claims)
    share = f"{held} of {len(claims)} parts reproduced, " if held < len(claims) > 1 else ""
    return f"**{verdict}** ({share}{scales})"


def verdict_on(claims: list[Claim]) -> str:
    """Return the verdict on the statement that these claims are the parts of."""
    return combined([claim["verdict"] for claim in claims])


def place(paper: str, record: Record) -> int:
    """Return the place of a record's statements: those of the main figures come first."""
    first = FIRST.get(paper, ())
    figure = record["name"].rpartition("/")[2]
    matching = [i for i, each in enumerate(first) if re.fullmatch(rf"{each}(_.*)?", figure)]
    return matching[0] if matching else len(first)


def combined(verdicts: list[str]) -> str:
    """Return the verdict on a statement from those on its parts, as normscope.results does."""
    found = set(verdicts)
    if len(found) == 1:
        return verdicts[0]
    is_mixed = "partly" in found or {"reproduced", "not reproduced"} <= found
    return "partly" if is_mixed else "undecided"


def explanation(statement: str, claims: list[Claim]) -> str:
    """Return why a statement has its verdict; without an entry what it lacks, or was measured."""
    for begin, entry in explanations().items():
        if statement.startswith(begin) and entry["verdict"] == verdict_on(claims):
            return cell(entry["why"])
    lacking = dict.fromkeys(claim["resolve"] for claim in claims if claim.get("resolve"))
    found = cell("; ".join(lacking) or measurement(claims))
    return found[:1].upper() + found[1:]


def measurement(claims: list[Claim]) -> str:
    """Return the numbers of the first claim with the verdict that decides."""
    verdict = max((claim["verdict"] for claim in claims), key=VERDICTS.index)
    shown = next(claim for claim in claims if claim["verdict"] == verdict)
    text: str = shown["measured"].split(" (over all steps")[0]
    return text if len(claims) == 1 else f"{shown['text']}: {text}"


@functools.cache
def explanations() -> dict[str, dict[str, str]]:
    """Return the explanations by the begin of the statement."""
    found: dict[str, dict[str, str]] = json.loads((RESULTS / WHY).read_text(encoding="utf-8"))
    return found


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
    r"""Return a text for a cell of a Markdown table, with readable numbers.

    >>> cell("1.13e+03 to 2.77e+07, a | b")
    '1,130 to 2.77e7, a \\| b'
    """
    text = re.sub(r"\d(?:\.\d+)?e[+-]\d+", lambda found: readable(found[0]), text)
    return " ".join(text.split()).replace("|", "\\|")


def readable(number: str) -> str:
    """Return a number with an exponent in full up to a million, else with a short exponent."""
    mantissa, _, exponent = number.partition("e")
    is_short = 0 < int(exponent) < 6
    return f"{float(number):,.0f}" if is_short else f"{mantissa}e{int(exponent)}"


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
    """Write the pages, or check whether they are up to date."""
    by_paper = read_records()
    pages = {"index.md": gallery_page(by_paper), "claims.md": claims_page(by_paper)}
    targets = {RESULTS / name: text for name, text in pages.items()}
    if "--check" not in sys.argv[1:]:
        for target, text in targets.items():
            target.write_text(text, encoding="utf-8")
        return 0
    old = [
        target.name
        for target, text in targets.items()
        if not target.is_file() or target.read_text(encoding="utf-8") != text
    ]
    if old:
        names = " and ".join(f"docs/results/{name}" for name in old)
        print(f"not up to date: {names}; run: python docs/gallery.py", file=sys.stderr)
    return 1 if old else 0


if __name__ == "__main__":
    sys.exit(main())
