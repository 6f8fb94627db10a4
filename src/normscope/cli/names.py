"""Registered names read from the source, so that nobody waits for torch to be told a name.

Every item is registered by a decorator where it is defined; its name and its first line are found
there without importing anything. A test compares them with the registries.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from normscope.registry import unknown_name

__all__ = ["KINDS", "Kind", "check_name", "completion_of", "names_in_source", "summaries_in_source"]


@dataclass(frozen=True)
class Kind:
    """Where the items of one kind are.

    Args:
        noun: one of them, as the registry's errors have it.
        home: the module of the registry.
        registry: its name there.
        files: those that register items, as a pattern below the package.
        decorator: that registers.
    """

    noun: str
    home: str
    registry: str
    files: str
    decorator: str


KINDS = {
    "experiments": Kind(
        "experiment", "normscope.experiments", "EXPERIMENTS", "experiments/**/*.py", "experiment"
    ),
    "probes": Kind("probe", "normscope.probes", "PROBES", "probes/*.py", "PROBES.register"),
    "models": Kind("model", "normscope.models", "MODELS", "models/*.py", "architecture"),
    "norms": Kind("normalization", "normscope.layers", "NORMS", "layers/*.py", "norm_kind"),
    "theorems": Kind("theorem", "normscope.theorems", "THEOREMS", "theorems/*.py", "statement"),
    "data": Kind("dataset", "normscope.data", "DATASETS", "data/*.py", "DATASETS.register"),
    "losses": Kind(
        "loss", "normscope.problem.loss", "LOSSES", "problem/loss.py", "LOSSES.register"
    ),
    "engines": Kind("engine", "normscope.sweeps", "ENGINES", "sweeps/*.py", "ENGINES.register"),
}
"""The kinds of names by what ``normscope list`` calls them."""


def summaries_in_source(kind: str) -> dict[str, str]:
    """What each item of one kind is, in the first line of its docstring, as the source has it.

    Args:
        kind: a key of `KINDS`.

    Returns:
        The lines by name, sorted.

    >>> summaries_in_source("losses")["cross_entropy"]
    'Mean over the samples of minus the log-probability of the target class.'
    """
    asked = KINDS[kind]
    found: dict[str, str] = {}
    for file in (Path(__file__).parents[1]).glob(asked.files):
        text = file.read_text(encoding="utf-8")
        if f"@{asked.decorator}" in text:  # most files register nothing: not worth parsing
            found |= _registered(ast.parse(text), asked.decorator)
    return dict(sorted(found.items()))


def names_in_source(kind: str) -> list[str]:
    """The names of one kind, as the source registers them.

    Args:
        kind: a key of `KINDS`.

    Returns:
        The names, sorted.

    >>> names_in_source("losses")
    ['cross_entropy', 'squared_error']
    """
    return list(summaries_in_source(kind))


def check_name(kind: str, name: str, *others: str, noun: str = "", hint: str = "") -> None:
    """Refuse an unknown name at once, before torch is loaded.

    Args:
        kind: a key of `KINDS`.
        name: what was given.
        *others: words that stand there too.
        noun: what the name is of; by default the kind's.
        hint: what else could be given, for the end of the error.

    Raises:
        UnknownNameError: if no such name is registered.
    """
    asked = KINDS[kind]
    # a registry that is here may know further names
    here = getattr(sys.modules.get(asked.home), asked.registry, None)
    known = [*others, *(names_in_source(kind) if here is None else here)]
    if name not in known:
        error = unknown_name(noun or asked.noun, name, known)
        raise type(error)(f"{str(error).removesuffix('.')}; {hint}.") if hint else error


def _registered(tree: ast.Module, decorator: str) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            for each in node.decorator_list:
                call = each.func if isinstance(each, ast.Call) else each
                if ast.unparse(call) == decorator:
                    summary = (ast.get_docstring(node) or "").partition("\n")[0]
                    yield _given_name(each) or node.name, summary


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
