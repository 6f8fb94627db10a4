"""``normscope list``: what there is to run, probe, build and check, one line each."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from normscope.cli.names import KINDS, completion_of, summaries_in_source
from normscope.cli.options import Json

_WIDTH = 100  # columns of sentences, where there is no terminal

Kind = Annotated[
    str | None,
    typer.Argument(
        metavar="KIND",
        help=f"{', '.join(list(KINDS)[:-1])} or {list(KINDS)[-1]}.",
        show_default="all",
        autocompletion=completion_of(*KINDS),
    ),
]


def list_names(kind: Kind = None, as_json: Json = False) -> None:
    """Everything that has a name here, with one line of what it is.

    Example: normscope list experiments
    """
    from normscope.cli.output import print_json
    from normscope.cli.tables import Row, print_table
    from normscope.registry import unknown_name

    if kind is not None and kind not in KINDS:
        raise unknown_name("kind", kind, KINDS)
    found = {each: _in_order(summaries_in_source(each)) for each in ([kind] if kind else KINDS)}
    if as_json:
        print_json(found)
        return
    for each, summaries in found.items():
        rows: list[Row] = [{"name": name, "what": what} for name, what in summaries.items()]
        print_table(each, rows, piped=_WIDTH)


def _in_order(summaries: dict[str, str]) -> dict[str, str]:
    return {name: summaries[name] for name in sorted(summaries, key=_natural_order)}


def _natural_order(name: str) -> list[tuple[int, str]]:
    """A key by which figure2 comes before figure10.

    >>> sorted(["a/10", "a/2", "a/1b"], key=_natural_order)
    ['a/1b', 'a/2', 'a/10']
    """
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
