"""A claim of a paper: what was measured, the verdict, and the rule over seeds that decides it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from normscope.errors import InputError
from normscope.text import Table

VERDICTS = ("reproduced", "partly", "not reproduced", "undecided")
"""All verdicts, from the best to the open one."""
ORIGINS = ("paper", "beyond the paper")
"""Whose claim it is: the paper's, or an extension or correction of normscope."""
ENOUGH_SEEDS = 3
"""Seeds below which nothing is decided."""
LEVEL = 0.95
"""Of the bootstrap interval."""
DECISION = (
    f"decided if the {LEVEL:.0%} bootstrap interval over at least {ENOUGH_SEEDS} seeds excludes "
    "the threshold, and the mean is further from it than a standard deviation over seeds"
)
"""The decision rule of `decide_below` in words."""
_ALL_RESAMPLES = 5  # up to so many values, every resample counts; no random number decides
_DRAWN = 10_000


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement with its source, the numbers that were measured, and the verdict.

    Args:
        text: the statement as it is judged.
        source: of the statement, such as "santurkar2018, Figure 4".
        measured: the numbers that decide the verdict, with their spread.
        holds: the verdict; None: cannot be decided from this run, or holds in part.
        statement: what the paper says, closely paraphrased; claims that share it are its parts.
        rule: what decides: statistic, steps, seeds and margin, fixed before the run.
        origin: "paper", or "beyond the paper" for extensions, corrections and checks of normscope.
        resolve: what would decide an undecided claim.
        partly: whether it holds in part; ``holds`` is None then.
        numbers: what the rule judges, by name: one number for each seed, or for each row; a later
            run can be compared with them seed by seed.

    Raises:
        InputError: if there is no such origin, or a claim that holds in part has a verdict.

    Examples:
        >>> Claim("water boils at 100 C", "a kettle", "99.97 C at sea level", True).verdict
        'reproduced'
    """

    text: str
    source: str
    measured: str
    holds: bool | None
    statement: str = ""
    rule: str = ""
    origin: str = "paper"
    resolve: str = ""
    partly: bool = False
    numbers: Mapping[str, Sequence[float]] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.origin not in ORIGINS:
            raise InputError(f"the origin of a claim is one of {ORIGINS}, got {self.origin!r}.")
        if self.partly and self.holds is not None:
            raise InputError("a claim that holds in part has holds=None.")

    @property
    def verdict(self) -> str:
        """The verdict as a word of `VERDICTS`."""
        if self.partly:
            return "partly"
        return {True: "reproduced", False: "not reproduced", None: "undecided"}[self.holds]

    def to_dict(self) -> dict[str, Any]:
        """The values by name, with the verdict as a word and numbers of six digits.

        >>> Claim("a", "b", "c", None, numbers={"loss": [0.25, math.inf]}).to_dict()["numbers"]
        {'loss': [0.25, 'inf']}
        """
        numbers = {name: [_plain(each) for each in row] for name, row in self.numbers.items()}
        return {**asdict(self), "numbers": numbers, "verdict": self.verdict}

    def _repr_html_(self) -> str:
        values = {"verdict": self.verdict, "measured": self.measured, "source": self.source}
        more = {"rule": self.rule, "undecided until": self.resolve}
        shown = {name: text for name, text in more.items() if text}
        return Table({"claim": self.text, **values, **shown}).html()


def _plain(number: float) -> float | str:
    """Round to six digits; JSON has no infinity."""
    return float(f"{number:.6g}") if math.isfinite(number) else str(float(number))


def mark_beyond(claims: Sequence[Claim], words: Sequence[str]) -> list[Claim]:
    """Return claims, beyond the paper where their source has one of some words.

    Args:
        claims: to mark.
        words: such as "errata".

    >>> [each.origin for each in mark_beyond([Claim("2 < 3", "errata", "1", True)], ["errata"])]
    ['beyond the paper']
    """
    return [
        replace(each, origin=ORIGINS[1]) if any(word in each.source for word in words) else each
        for each in claims
    ]


def combine_verdicts(verdicts: Sequence[str]) -> str:
    """Return the verdict on a statement from those on its parts.

    All alike: that one. Reproduced in some parts and not in others: partly. Otherwise parts that
    are undecided leave it undecided.

    Args:
        verdicts: of the parts, at least one.

    >>> combine_verdicts(["reproduced", "not reproduced"]), combine_verdicts(["undecided"] * 2)
    ('partly', 'undecided')
    >>> combine_verdicts(["reproduced", "undecided"])
    'undecided'
    """
    found = set(verdicts)
    if len(found) == 1:
        return verdicts[0]
    is_mixed = "partly" in found or {"reproduced", "not reproduced"} <= found
    return "partly" if is_mixed else "undecided"


def claims_table(claims: Sequence[Claim]) -> str:
    """Format claims as Markdown tables: the paper's, then those beyond the paper.

    What all rules share, `DECISION`, is below the tables; a statement is in the first row of its
    parts.

    >>> print(claims_table([Claim("2 < 3", "arithmetic", "1 apart", True)]))
    | claim | source | measured | verdict |
    | --- | --- | --- | --- |
    | 2 < 3 | arithmetic | 1 apart | reproduced |
    """
    own, others = ([each for each in claims if each.origin == name] for name in ORIGINS)
    parts = [_table(own)] if own else []
    parts += [f"Beyond the paper:\n\n{_table(others)}"] if others else []
    if any(DECISION in each.rule for each in claims):
        parts.append(f"A comparison over seeds is {DECISION}.")
    return "\n\n".join(parts)


def _table(claims: Sequence[Claim]) -> str:
    """Format claims as one table; statement and rule are columns if a claim has them."""
    columns = {
        "the paper says": _without_repeats([each.statement for each in claims]),
        "claim": [each.text for each in claims],
        "source": [each.source for each in claims],
        "rule": _without_repeats(
            [each.rule.replace(f"; {DECISION}", "") for each in claims], "as above"
        ),
        "measured": [each.measured for each in claims],
        "verdict": [_with_remedy(each) for each in claims],
    }
    used = {name: texts for name, texts in columns.items() if any(texts)}
    head = [f"| {' | '.join(used)} |", f"| {' | '.join(['---'] * len(used))} |"]
    rows = zip(*used.values(), strict=True)
    return "\n".join(head + [f"| {' | '.join(_cell(text) for text in row)} |" for row in rows])


def _without_repeats(texts: Sequence[str], repeat: str = "") -> list[str]:
    """Return texts, with another in place of those that equal the one before.

    >>> _without_repeats(["a", "a", "b"], "as above")
    ['a', 'as above', 'b']
    """
    pairs = zip(texts, ["", *texts], strict=False)
    return [repeat if text and text == before else text for text, before in pairs]


def _with_remedy(claim: Claim) -> str:
    return f"{claim.verdict}: {claim.resolve}" if claim.resolve else claim.verdict


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def bootstrap_interval(values: np.ndarray, level: float = LEVEL) -> tuple[float, float]:
    """Return the percentile bootstrap interval of the mean.

    Up to five values, all resamples are taken; of more, 10,000 with a fixed seed.

    Args:
        values: of the seeds, finite, at least one.
        level: share of the resampled means inside.

    Returns:
        The lower and the upper end.

    >>> bootstrap_interval(np.array([1.0, 2.0, 3.0]))
    (1.0, 3.0)
    """
    count = len(values)
    if count <= _ALL_RESAMPLES:
        index = np.array(list(product(range(count), repeat=count)))
    else:
        index = np.random.default_rng(0).integers(count, size=(_DRAWN, count))
    # by order statistics, so that rounding cannot move an end past a threshold it equals
    means = np.sort(values[np.sort(index, axis=1)].mean(axis=1))
    outside = int((1 - level) / 2 * len(means))
    return float(means[outside]), float(means[-1 - outside])


def decide_all(decisions: Sequence[bool | None]) -> bool | None:
    """Return True if all parts of a statement hold, False if one does not, else None.

    >>> decide_all([True, True]), decide_all([True, None]), decide_all([None, False])
    (True, None, False)
    """
    if any(each is False for each in decisions):
        return False
    return True if decisions and all(decisions) else None


def decide_below(values: np.ndarray, threshold: float = 0.0) -> bool | None:
    """Return whether a number is below a threshold, by its spread over seeds.

    Args:
        values: of the seeds; infinite ones count as very large.
        threshold: the number they are compared with.

    Returns:
        True or False if the bootstrap interval of the mean excludes the threshold and the mean is
        further from it than a standard deviation over seeds; None otherwise, with fewer than
        three seeds or with one that is NaN.

    >>> decide_below(np.array([-1.0, -1.1, -0.9])), decide_below(np.array([1.0, 1.1]))
    (True, None)
    >>> decide_below(np.array([-1.0, -1.1, 0.5])), decide_below(np.array([2.0, 2.0, np.inf]))
    (None, False)
    """
    if len(values) < ENOUGH_SEEDS or np.isnan(values).any():
        return None
    shifted = values - threshold
    finite = shifted[np.isfinite(shifted)]
    if not np.isfinite(shifted).all():
        # an infinite value is like the largest finite one: it has a sign, and no spread
        bound = max(1.0, float(np.abs(finite).max(initial=0.0)))
        shifted = np.clip(shifted, -bound, bound)
    low, high = bootstrap_interval(shifted)
    mean, spread = float(shifted.mean()), float(shifted.std(ddof=1))
    if high < 0 and -mean > spread:
        return True
    return False if low > 0 and mean > spread else None
