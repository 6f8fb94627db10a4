"""Versions of what a result ran on, told without loading it."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

from normscope import __version__

__all__ = ["present_versions"]


def present_versions() -> dict[str, str]:
    """The versions that are installed here, by name."""
    found = {"normscope": __version__}
    for name in ("torch", "numpy"):
        try:
            found[name] = version(name).partition("+")[0]
        except PackageNotFoundError:
            continue
    return {**found, "python": platform.python_version()}
