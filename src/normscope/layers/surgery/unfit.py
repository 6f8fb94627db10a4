"""Norm kinds that a model cannot be converted to, or does not run with on its data."""

from __future__ import annotations

from collections.abc import Sequence

from normscope.errors import InputError, MisfitError, NormscopeError, UnknownNameError
from normscope.layers.surgery.convert import convert
from normscope.problem.batch import Batch
from normscope.problem.precheck import locate_errors, try_batches
from normscope.problem.problem import Problem


def unfit_norms(problem: Problem, norms: Sequence[str], batch: Batch, seed: int) -> dict[str, str]:
    """Return why a model cannot have some norm kinds, by kind; empty if it can have all.

    Args:
        problem: model and loss; neither is changed. If the model as given fails too, its own
            error is raised.
        norms: norm kinds.
        batch: of its data; one forward pass of each converted model is run on it.
        seed: of dropout and noise.

    Returns:
        The reasons, without a final full stop.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.LayerNorm(4), nn.Flatten(), nn.Linear(12, 1))
    >>> batch = torch.ones(2, 3, 4), torch.ones(2, 1)
    >>> unfit_norms(Problem(model, "squared_error", batch), ["none", "batch"], batch, seed=0)
    {'batch': "layer '0' (BatchNorm1d) expects 4 channels, got an input of shape (2, 3, 4), from \
a batch of shape (2, 3, 4)"}
    """
    reasons: dict[str, str] = {}
    for norm in norms:
        try:
            model = convert(problem.model, to=norm)
        except UnknownNameError:
            raise
        except InputError as error:
            reasons[norm] = str(error).rstrip(".")
            continue
        try:
            try_batches(Problem(model, problem.loss, [batch]), [batch], "train", seed)
        except Exception as error:  # user code may raise anything with another norm layer
            with locate_errors(problem):
                try_batches(problem, [batch], "train", seed)
            reasons[norm] = _reason(error)
    return reasons


def _reason(error: Exception) -> str:
    """Return what failed, without advice about the data, which fits the model as given."""
    if isinstance(error, MisfitError):
        return str(error).removeprefix("the data does not fit the model: ").partition("; ")[0]
    if isinstance(error, NormscopeError):
        return str(error).rstrip(".")
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".")
