"""Registered names read from the source, so that a shell's Tab key does not wait for torch.

Every item is registered by a decorator where it is defined; the names are found there without
importing anything. A test compares them with the registries.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["HOMES", "SOURCES", "completion_of", "names_in_source"]

# Where each registry lives; named here so that nothing heavy loads before it is asked for.
HOMES = {
    "experiments": ("normscope.experiments", "EXPERIMENTS"),
    "probes": ("normscope.probes", "PROBES"),
    "models": ("normscope.models", "MODELS"),
    "norms": ("normscope.layers", "NORMS"),
    "theorems": ("normscope.theorems", "THEOREMS"),
    "data": ("normscope.data", "DATASETS"),
    "losses": ("normscope.losses", "LOSSES"),
    "engines": ("normscope.sweeps", "ENGINES"),
}
# The files of each kind, and the decorator that registers.
SOURCES = {
    "experiments": ("experiments/**/*.py", "experiment"),
    "probes": ("probes/*.py", "PROBES.register"),
    "models": ("models/*.py", "architecture"),
    "norms": ("layers/*.py", "NORMS.register"),
    "theorems": ("theorems/*.py", "statement"),
    "data": ("data/*.py", "DATASETS.register"),
    "losses": ("losses.py", "LOSSES.register"),
    "engines": ("sweeps/*.py", "ENGINES.register"),
}


def names_in_source(kind: str) -> list[str]:
    """The names of one kind, as the source registers them.

    Args:
        kind: a key of `SOURCES`.

    Returns:
        The names, sorted.

    >>> names_in_source("losses")
    ['cross_entropy', 'squared_error']
    """
    pattern, decorator = SOURCES[kind]
    found: list[str] = []
    for file in (Path(__file__).parents[1]).glob(pattern):
        text = file.read_text(encoding="utf-8")
        if f"@{decorator}" in text:  # most files register nothing: not worth parsing
            found += _registered(ast.parse(text), decorator)
    return sorted(found)


def _registered(tree: ast.Module, decorator: str) -> Iterator[str]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for each in node.decorator_list:
                call = each.func if isinstance(each, ast.Call) else each
                if ast.unparse(call) == decorator:
                    yield _given_name(each) or node.name


def _given_name(decorator: ast.expr) -> str | None:
    """The name that a decorator gives: its first argument or ``name=``."""
    if not isinstance(decorator, ast.Call):
        return None
    named = [each.value for each in decorator.keywords if each.arg == "name"]
    for each in (*decorator.args[:1], *named):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            return each.value
    return None


def completion_of(*choices: str, kind: str | None = None) -> Callable[[str], list[str]]:
    """A function for Typer that completes what a shell has of a word.

    Args:
        *choices: words that fit.
        kind: of registered names that fit too.

    Returns:
        The function.

    >>> completion_of("train", "frozen", "all")("f")
    ['frozen']
    """

    def complete(incomplete: str) -> list[str]:
        words = [*choices, *(names_in_source(kind) if kind else ())]
        return [word for word in words if word.startswith(incomplete)]

    return complete
