"""Numbers and lists in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from normscope.results import Claim

__all__ = ["claims_sentence", "counted", "listed", "printable", "said_seconds", "states_sentence"]


def counted(number: int, what: str) -> str:
    """A number of things.

    >>> counted(1, "record"), counted(3, "seed")
    ('1 record', '3 seeds')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def listed(parts: Sequence[str]) -> str:
    """Parts of a sentence.

    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1]))) if parts else "none"


def printable(text: str) -> str:
    r"""The text without what no encoding can hold: half a character, a wrong byte of a file name.

    >>> printable("caf\u00e9 \ud800")
    'café ?'
    """
    return text.encode(errors="replace").decode()


def said_seconds(seconds: float) -> str:
    """A time as a reader takes it: whole seconds, or two digits of a short time.

    >>> [said_seconds(each) for each in (0.03306, 1.492, 25.96, 5200.4)]
    ['0.033', '1.5', '26', '5200']
    """
    return f"{seconds:.2g}" if not 10 <= seconds < 1e7 else f"{seconds:.0f}"


def claims_sentence(claims: Sequence[Claim]) -> str:
    """How many of the claims were reproduced.

    >>> claims_sentence([Claim("2 < 3", "arithmetic", "1 apart", True)])
    'Of 1 claim, 1 is reproduced.'
    """
    verdicts = [claim.verdict for claim in claims]
    parts = [
        f"{verdicts.count(verdict)} {'is' if verdicts.count(verdict) == 1 else 'are'} {verdict}"
        for verdict in ("reproduced", "not reproduced", "undecided")
        if verdict in verdicts
    ]
    return f"Of {counted(len(claims), 'claim')}, {listed(parts)}."


def states_sentence(counts: Mapping[str, int]) -> str:
    """How many records are in each state.

    >>> states_sentence({"finished": 3, "diverged": 1, "failed": 0})
    '4 records: 3 finished and 1 diverged'
    """
    parts = [f"{number} {state}" for state, number in counts.items() if number]
    return f"{counted(sum(counts.values()), 'record')}: {listed(parts)}"
