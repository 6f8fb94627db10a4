"""``normscope list``: all registered names with one line each."""

from __future__ import annotations

from typing import Annotated

from normscope.cli import options as opt
from normscope.cli.app import command
from normscope.cli.names import KINDS
from normscope.cli.render import print_json, print_table
from normscope.progress import Progress
from normscope.progress_bar import show_progress
from normscope.registry import check_choice
from normscope.text import join_words, natural_order

KindName = Annotated[
    str | None,
    opt.argument("KIND", f"{join_words(list(KINDS), 'or')}.", choices=tuple(KINDS), default="all"),
]


@command("list", "List models, norms, data, probes and other names.")
def list_names(kind: KindName = None, as_json: opt.Json = False) -> None:
    """List the registered names, each with one line on what it is.

    Example: normscope list experiments
    """
    if kind is not None:
        check_choice("kind", kind, KINDS)
    with show_progress("list") as show:
        show(Progress("loading"))  # torch among others, which takes seconds
        found = {each: _summaries(each) for each in ([kind] if kind else KINDS)}
    if as_json:
        print_json(found)
        return
    for each, summaries in found.items():
        rows = [{"name": name, "what": what} for name, what in summaries.items()]
        print_table(each, rows)


def _summaries(kind: str) -> dict[str, str]:
    registry = KINDS[kind].registry()
    return {name: registry.summary(name) for name in sorted(registry, key=natural_order)}
