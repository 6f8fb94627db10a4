"""Which kinds of normalization a model can have and still take its data: one pass of each tells."""

from __future__ import annotations

from collections.abc import Sequence

from normscope.errors import InputError, MisfitError, NormscopeError, UnknownNameError
from normscope.layers import convert
from normscope.problem.batch import Batch
from normscope.problem.precheck import locate_errors, try_batches
from normscope.problem.problem import Problem

__all__ = ["unfit_norms"]

_OF_DATA = "the data does not fit the model: "


def unfit_norms(problem: Problem, norms: Sequence[str], batch: Batch, seed: int) -> dict[str, str]:
    """The kinds that the model cannot be converted to, or fails with on a batch that it takes.

    Args:
        problem: model and loss; nothing of it is changed. If the model as given fails too, its own
            error is raised: no norm is to blame then.
        norms: kinds of normalization.
        batch: of its data.
        seed: of dropout and noise.

    Returns:
        Why, in words without an end, by kind; empty if all fit.

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
        except Exception as error:  # whatever the user's code raises with another norm layer
            with locate_errors(problem):
                try_batches(problem, [batch], "train", seed)
            reasons[norm] = _words(error)
    return reasons


def _words(error: Exception) -> str:
    """What failed, without advice about the data, which fits the model as it was."""
    if isinstance(error, MisfitError):
        return str(error).removeprefix(_OF_DATA).partition("; ")[0]
    if isinstance(error, NormscopeError):
        return str(error).rstrip(".")
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".")
