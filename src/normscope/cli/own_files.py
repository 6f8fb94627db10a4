"""What can be said of a user's file without running it, which would load torch first."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

from normscope.errors import InputError
from normscope.registry import unknown_name

__all__ = ["check_place"]

_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_IMPORTS = (ast.Import, ast.ImportFrom)
# what may define names that are not written down
_OPEN = {"globals", "locals", "vars", "setattr", "exec", "eval", "modules", "__getattr__", "*"}


def check_place(place: str) -> None:
    """Refuse a file that is not there, that is no Python, or in which a name is nowhere defined.

    It is a quick look: whatever it cannot tell is left to the import.

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
        if error.lineno is None:  # null bytes
            return
        raise InputError(
            f"{path} failed with {type(error).__name__}: {error.msg} ({path.name}, line "
            f"{error.lineno})."
        ) from error
    except (ValueError, RecursionError, MemoryError):  # null bytes; parts in parts in parts
        return
    bound = set(_bound(tree))
    if name in bound or not _OPEN.isdisjoint(bound) or any(map(_is_open, ast.walk(tree))):
        return
    own = [each for each in tree.body if not isinstance(each, _IMPORTS)]
    raise unknown_name(f"name in {home}", name, dict.fromkeys(_offered(own)))


def _bound(tree: ast.AST) -> Iterator[str]:
    """Names that are given to something anywhere in it, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr  # of a module, it may be
        elif isinstance(node, _DEFINITIONS):
            yield node.name
        elif isinstance(node, _IMPORTS):
            yield from (each.asname or each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, (ast.MatchAs, ast.MatchStar)) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest


def _is_open(node: ast.AST) -> bool:
    """Whether names may come up that stand nowhere in the file."""
    if isinstance(node, ast.Name):
        return node.id in _OPEN
    if not isinstance(node, ast.Attribute):
        return False
    of_sys = isinstance(node.value, ast.Name) and node.value.id == "sys"
    return node.attr == "__dict__" or (node.attr == "modules" and of_sys)  # a net has modules too


def _offered(body: list[ast.stmt]) -> Iterator[str]:
    """Names to choose from: what stands at the left margin, without what is private."""
    for statement in body:
        if isinstance(statement, _DEFINITIONS):
            found = [statement.name]
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            found = list(_bound(statement))
        else:
            continue
        yield from (each for each in found if not each.startswith("_"))
