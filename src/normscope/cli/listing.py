"""``normscope list``: registered names, by kind or with one line each."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Annotated

from normscope.cli import options as opt
from normscope.cli.app import command
from normscope.cli.names import KINDS
from normscope.cli.render import print_json, print_note, print_table
from normscope.progress import Progress
from normscope.progress_bar import show_progress
from normscope.registry import check_choice
from normscope.text import join_words, natural_order

_FEW = 3  # names of a kind in the summary

KindName = Annotated[
    str | None,
    opt.argument("KIND", f"{join_words(list(KINDS), 'or')}.", choices=tuple(KINDS), default="all"),
]


@command("list", "List models, norms, data, probes and other names.")
def list_names(kind: KindName = None, as_json: opt.Json = False) -> None:
    """List the registered names of a kind with one line each; without a kind, the kinds.

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
    if kind is not None:
        print_table(kind, [{"name": name, "what": what} for name, what in found[kind].items()])
        return
    rows = [{"kind": k, "names": len(names), "such as": _few(names)} for k, names in found.items()]
    print_table("registered names", rows)
    print_note("normscope list KIND describes each, such as: normscope list experiments")


def _few(names: Iterable[str]) -> str:
    """Return the first names that fit a short line.

    >>> _few(["batch", "layer"]), _few(["adam", "gradient_descent", "mini_batches", "sgd"])
    ('batch, layer', 'adam, gradient_descent, mini_batches, ...')
    """
    first = list(islice(names, _FEW + 1))
    return ", ".join([*first[:_FEW], *(["..."] if len(first) > _FEW else [])])


def _summaries(kind: str) -> dict[str, str]:
    registry = KINDS[kind].registry()
    return {name: registry.summary(name) for name in sorted(registry, key=natural_order)}
