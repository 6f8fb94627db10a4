"""A check of a user's file without running it, which would load torch first."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from normscope.errors import InputError
from normscope.registry import unknown_name

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
# may define names that are not in the source
_OPEN = {"globals", "locals", "vars", "setattr", "exec", "eval", "modules", "__getattr__", "*"}


def check_import_path(path: str) -> None:
    """Raise an error if a file is missing, is not Python, or does not define a name.

    Whatever cannot be decided from the source is left to the import.

    Args:
        path: ``path/to/file.py:name``; modules by name are left to their import.

    Raises:
        InputError: if there is no such file, or it cannot be parsed.
        UnknownNameError: if it does not define the name.
    """
    home, _, name = path.rpartition(":")
    if not home.endswith(".py") or not name:
        return
    file = Path(home)
    if not file.is_file():
        raise InputError(f"there is no file {file}.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the import shows them
            tree = ast.parse(file.read_bytes())
    except SyntaxError as error:
        if error.lineno is None:  # null bytes
            return
        raise InputError(
            f"{file} failed with {type(error).__name__}: {error.msg} ({file.name}, line "
            f"{error.lineno})."
        ) from error
    except (ValueError, RecursionError, MemoryError):  # null bytes; deep nesting
        return
    bound = set(_bound_names(tree))
    if name in bound or not _OPEN.isdisjoint(bound) or any(map(_is_open, ast.walk(tree))):
        return
    raise unknown_name("name", name, dict.fromkeys(_public_names(tree.body)), f"in {home}")


def _bound_names(tree: ast.AST) -> Iterator[str]:
    """Yield names that are bound anywhere in the file, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr  # perhaps of a module
        elif isinstance(node, _DEFINITIONS):
            yield node.name
        elif isinstance(node, _IMPORTS):
            yield from (each.asname or each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest


def _is_open(node: ast.AST) -> bool:
    """Return whether a node may define names that are not in the source."""
    if isinstance(node, ast.Name):
        return node.id in _OPEN
    if not isinstance(node, ast.Attribute):
        return False
    of_sys = isinstance(node.value, ast.Name) and node.value.id == "sys"
    return node.attr == "__dict__" or (node.attr == "modules" and of_sys)  # a model has modules too


def _public_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the public names that are defined at the top level."""
    for statement in body:
        if isinstance(statement, _DEFINITIONS):
            found = [statement.name]
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            found = list(_bound_names(statement))
        else:
            continue
        yield from (each for each in found if not each.startswith("_"))
