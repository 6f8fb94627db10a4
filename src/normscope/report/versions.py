"""Versions of what results ran on, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from normscope.results.versions import present_versions

__all__ = ["present_versions", "said_versions"]

_UNKNOWN = "not recorded"
_PACKAGES = ("torch", "numpy", "python")


def said_versions(kept: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """The versions of each package that a store kept, besides normscope's own.

    >>> said_versions([{"torch": "2.1", "python": "3.11.2"}, {"torch": "2.2", "python": "3.11.2"}])
    {'torch': '2.1, 2.2', 'numpy': 'not recorded', 'python': '3.11.2'}

    Args:
        kept: the sets that its records ran on; an empty one for those of which none is known.
    """
    found = list(kept)
    if not any(found):
        return {", ".join(_PACKAGES): f"{_UNKNOWN} by the normscope that wrote the store"}
    return {name: ", ".join(_different(found, name)) for name in _PACKAGES}


def _different(kept: Iterable[Mapping[str, str]], name: str) -> list[str]:
    """The versions of a package, each once, what is unknown last."""
    values = dict.fromkeys(each.get(name, _UNKNOWN) for each in kept)
    return sorted(values, key=lambda value: value == _UNKNOWN)
