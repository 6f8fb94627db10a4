"""Fails the build of the documentation if the reference leaves out a public name.

mkdocs calls `on_post_build`; the tests use the rest. Public is what stands in the ``__all__`` of a
package of normscope, or of one of its single modules beside them.
"""

from __future__ import annotations

import ast
import zlib
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
NOT_PUBLIC = {"normscope.cli", "normscope.layers.compiled"}


def public_names() -> dict[str, dict[str, str]]:
    """The names in every public ``__all__``, by package or module, each with its full path.

    The path is that of the definition: a function may have the name of the module that it is in.
    """
    home = SOURCE / "normscope"
    found = {}
    for file in sorted([*home.glob("*/__init__.py"), *home.glob("*.py")]):
        parts = file.relative_to(SOURCE).with_suffix("").parts
        module = ".".join(part for part in parts if part != "__init__")
        tree = ast.parse(file.read_text(encoding="utf-8"))
        if module not in NOT_PUBLIC and (names := declared(tree)):
            origin = imported(tree)
            found[module] = {name: f"{origin.get(name, module)}.{name}" for name in names}
    return found


def declared(tree: ast.Module) -> list[str]:
    """What the ``__all__`` of a file lists; nothing if it has none."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    return []


def imported(tree: ast.Module) -> dict[str, str]:
    """The module that each imported name comes from."""
    return {
        alias.asname or alias.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def documented(inventory: bytes) -> set[str]:
    """The names of an ``objects.inv``, the index that mkdocstrings writes, without modules."""
    head, _, _, _, body = inventory.split(b"\n", 4)
    assert head.startswith(b"# Sphinx inventory version 2")
    lines = (line.split(" ") for line in zlib.decompress(body).decode().splitlines())
    return {name for name, role, *_ in lines if role != "py:module"}


def left_out(names: set[str]) -> list[str]:
    """Public names that are not among these; those of normscope itself have other homes."""
    return [
        f"{module}.{name}"
        for module, all_of_it in public_names().items()
        if module != "normscope"
        for name, path in all_of_it.items()
        if path not in names
    ]


def on_post_build(config: Any) -> None:
    """Called by mkdocs when the pages are written."""
    from mkdocs.exceptions import PluginError

    missing = left_out(documented((Path(config["site_dir"]) / "objects.inv").read_bytes()))
    if missing:
        raise PluginError(f"the reference leaves out {', '.join(missing)}; give each a docstring.")
