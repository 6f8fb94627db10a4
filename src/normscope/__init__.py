"""normscope shows what normalization does to a network.

The public names are imported on first use, so that ``import normscope`` loads nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from normscope.interrupts import uninterrupted

if TYPE_CHECKING:
    from normscope import (
        curvature,
        data,
        decoupled,
        diagnosis,
        experiments,
        integrations,
        landscape,
        layers,
        learning_rate,
        meanfield,
        models,
        plots,
        probes,
        problem,
        report,
        results,
        sweeps,
        theorems,
        training,
    )
    from normscope.diagnosis import doctor
    from normscope.learning_rate import compare, max_learning_rate
    from normscope.probes import Scope
    from normscope.problem import Problem, whole_loss
    from normscope.training import fit, sgd, train

__version__ = "0.1.0"

_HOMES = {
    "Problem": "normscope.problem",
    "Scope": "normscope.probes",
    "compare": "normscope.learning_rate",
    "doctor": "normscope.diagnosis",
    "fit": "normscope.training",
    "max_learning_rate": "normscope.learning_rate",
    "sgd": "normscope.training",
    "train": "normscope.training",
    "whole_loss": "normscope.problem",
}

__all__ = [
    "Problem",
    "Scope",
    "__version__",
    "compare",
    "curvature",
    "data",
    "decoupled",
    "diagnosis",
    "doctor",
    "experiments",
    "fit",
    "integrations",
    "landscape",
    "layers",
    "learning_rate",
    "max_learning_rate",
    "meanfield",
    "models",
    "plots",
    "probes",
    "problem",
    "report",
    "results",
    "sgd",
    "sweeps",
    "theorems",
    "train",
    "training",
    "whole_loss",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name) or (f"normscope.{name}" if name in __all__ else None)
    if home is not None:
        # whole: what an interrupt left half imported could not be imported again
        module = uninterrupted(lambda: importlib.import_module(home))
        return getattr(module, name) if name in _HOMES else module
    raise AttributeError(f"module 'normscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
