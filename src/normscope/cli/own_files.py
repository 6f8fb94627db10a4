"""What can be said of a user's file without running it, which would load torch first."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from normscope.errors import InputError
from normscope.registry import unknown_name

__all__ = ["check_place"]

_IMPORTS = (ast.Import, ast.ImportFrom)
_ANY = ("globals", "vars", "setattr", "exec", "eval")  # may define what is not written down


def check_place(place: str) -> None:
    """Refuse a file that is not there, that is no Python, or that defines no such name.

    Args:
        place: ``path/to/file.py:name``; modules by name are left to their import.

    Raises:
        InputError: if there is no such file, or it cannot be read as Python.
        UnknownNameError: if it has no such name.
    """
    home, _, name = place.rpartition(":")
    if not home.endswith(".py") or not name:
        return
    path = Path(home)
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the import says them
            tree = ast.parse(path.read_bytes())
    except SyntaxError as error:
        raise InputError(
            f"{path} failed with {type(error).__name__}: {error.msg} ({path.name}, line "
            f"{error.lineno})."
        ) from error
    except ValueError:  # null bytes: the import has words for it
        return
    defined = list(_defined(tree.body))
    if name in defined or None in defined or _is_open(tree):
        return
    own = _defined([each for each in tree.body if not isinstance(each, _IMPORTS)])
    known = dict.fromkeys(each for each in own if each and not each.startswith("_"))
    raise unknown_name(f"name in {home}", name, known)


def _defined(body: list[ast.stmt]) -> Iterator[str | None]:
    """Names that statements may give to a module; None where they do not say which."""
    for statement in body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield statement.name
            continue  # what stands inside is its own
        if isinstance(statement, _IMPORTS):
            for alias in statement.names:
                whole = alias.asname or alias.name.partition(".")[0]
                yield None if whole == "*" else whole
        yield from _assigned(statement)


def _assigned(statement: ast.stmt) -> Iterator[str | None]:
    """Names that a statement assigns, and those of the statements inside it."""
    for part in ast.iter_child_nodes(statement):
        if isinstance(part, ast.stmt):
            yield from _defined([part])
        elif isinstance(part, (ast.ExceptHandler, ast.match_case)):
            yield from _defined(part.body)
        else:
            yield from (
                node.id
                for node in ast.walk(part)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            )


def _is_open(tree: ast.Module) -> bool:
    """Whether names may come up that stand nowhere in the file."""
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    outside = any(isinstance(node, ast.Global) for node in ast.walk(tree))
    return outside or "__getattr__" in functions or not names.isdisjoint(_ANY)
