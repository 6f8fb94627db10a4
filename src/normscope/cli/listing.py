"""``normscope list``: what there is to run, probe, build and check, one line each."""

from __future__ import annotations

import importlib
from typing import Annotated, Any

import typer

from normscope.cli.options import Json

Kind = Annotated[
    str | None,
    typer.Argument(
        metavar="KIND",
        help="experiments, probes, models, theorems, data or losses.",
        show_default="all",
    ),
]

# Where each registry lives; named here so that nothing heavy loads before it is asked for.
_HOMES = {
    "experiments": ("normscope.experiments", "EXPERIMENTS"),
    "probes": ("normscope.probes", "PROBES"),
    "models": ("normscope.models", "MODELS"),
    "theorems": ("normscope.theorems", "THEOREMS"),
    "data": ("normscope.data", "DATASETS"),
    "losses": ("normscope.losses", "LOSSES"),
}


def list_names(kind: Kind = None, as_json: Json = False) -> None:
    """Everything that has a name here, with one line of what it is.

    Example: normscope list experiments
    """
    from normscope.cli.output import print_json
    from normscope.registry import unknown_name

    if kind is not None and kind not in _HOMES:
        raise unknown_name("kind", kind, _HOMES)
    found = {each: _summaries(each) for each in ([kind] if kind else _HOMES)}
    if as_json:
        print_json(found)
        return
    for number, (each, summaries) in enumerate(found.items()):
        print(f"{chr(10) if number else ''}{each}")
        widest = max(map(len, summaries), default=0)
        for name, summary in summaries.items():
            print(f"  {name:{widest}}  {summary}")


def _summaries(kind: str) -> dict[str, str]:
    home, registry = _HOMES[kind]
    items: Any = getattr(importlib.import_module(home), registry)
    return {name: items.summary(name) for name in items}
