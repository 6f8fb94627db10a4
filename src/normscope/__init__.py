"""normscope shows what normalization does to a network.

The public names load on first use, so that ``import normscope`` itself costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normscope import data, layers, models, training
    from normscope.training import fit, train

__version__ = "0.1.0"

_MODULES = ("data", "layers", "models", "training")
_HOMES = {"fit": "normscope.training", "train": "normscope.training"}

__all__ = ["__version__", "data", "fit", "layers", "models", "train", "training"]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"normscope.{name}")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'normscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
