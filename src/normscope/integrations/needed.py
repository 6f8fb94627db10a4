"""Optional packages, or the one sentence that says how to get them."""

from __future__ import annotations

import importlib
from typing import Any

from normscope.errors import StateError

__all__ = ["needed"]


def needed(module: str, extra: str, user: str) -> Any:
    """A module of an optional package.

    Args:
        module: what to import.
        extra: the extra of normscope that installs it.
        user: who needs it.

    Returns:
        The module.

    Raises:
        StateError: if the package is not installed.

    >>> needed("math", "mathematics", "this example").pi > 3
    True
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise StateError(
            f"{user} needs the package {module.split('.')[0]}; install it by "
            f"pip install 'normscope[{extra}]'."
        ) from error
