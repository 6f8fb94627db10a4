"""``normscope list``: what there is to run, probe, build and check, one line each."""

from __future__ import annotations

import importlib
import re
from typing import Annotated, Any

import typer

from normscope.cli.names import HOMES, completion_of
from normscope.cli.options import Json

Kind = Annotated[
    str | None,
    typer.Argument(
        metavar="KIND",
        help=f"{', '.join(list(HOMES)[:-1])} or {list(HOMES)[-1]}.",
        show_default="all",
        autocompletion=completion_of(*HOMES),
    ),
]


def list_names(kind: Kind = None, as_json: Json = False) -> None:
    """Everything that has a name here, with one line of what it is.

    Example: normscope list experiments
    """
    from normscope.cli.output import print_json
    from normscope.registry import unknown_name

    if kind is not None and kind not in HOMES:
        raise unknown_name("kind", kind, HOMES)
    found = {each: _summaries(each) for each in ([kind] if kind else HOMES)}
    if as_json:
        print_json(found)
        return
    for number, (each, summaries) in enumerate(found.items()):
        print(f"{chr(10) if number else ''}{each}")
        widest = max(map(len, summaries), default=0)
        for name, summary in summaries.items():
            print(f"  {name:{widest}}  {summary}")


def _summaries(kind: str) -> dict[str, str]:
    home, registry = HOMES[kind]
    items: Any = getattr(importlib.import_module(home), registry)
    return {name: items.summary(name) for name in sorted(items, key=_natural_order)}


def _natural_order(name: str) -> list[tuple[int, str]]:
    """A key by which figure2 comes before figure10.

    >>> sorted(["a/10", "a/2", "a/1b"], key=_natural_order)
    ['a/1b', 'a/2', 'a/10']
    """
    parts = re.findall(r"\d+|\D+", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]
