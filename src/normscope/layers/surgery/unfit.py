"""Norm kinds that a model cannot be converted to, or does not run with on its data."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from normscope.errors import InputError, MisfitError, NormscopeError, UnknownNameError
from normscope.layers.kinds import norm_layers
from normscope.layers.surgery.convert import convert_layers
from normscope.layers.surgery.sites import norm_sites
from normscope.problem.batch import Batch
from normscope.problem.isolation import isolated
from normscope.problem.modes import is_batch_norm
from normscope.problem.precheck import locate_errors, try_batches
from normscope.problem.problem import Problem


def input_dimensions(
    problem: Problem, batch: Batch, seed: int, mode: str = "train"
) -> dict[str, int]:
    """Return the most dimensions that layers which normalize the last dimension get, by name.

    Args:
        problem: model and loss; neither is changed.
        batch: of its data; one forward pass is run on it.
        seed: of dropout and noise.
        mode: "train", "frozen", "eval" or "as_is".

    Returns:
        2 for vectors, (batch, features), 3 for the tokens of a transformer; of layers that ran.

    >>> import torch
    >>> batch = torch.ones(2, 3, 4), torch.ones(2, 3, 4)
    >>> input_dimensions(Problem(nn.LayerNorm(4), "squared_error", batch), batch, seed=0)
    {'': 3}
    """
    found: dict[str, int] = {}

    def note(name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        sizes = [each.dim() for each in inputs[:1] if isinstance(each, Tensor)]
        found[name] = max([found.get(name, 0), *sizes])

    try:
        sites = norm_sites(problem.model)
    except InputError:  # which a conversion reports
        return {}
    with isolated(problem.model), locate_errors(problem):  # which removes the hooks
        for site in sites:
            if site.feature_axis == -1:
                site.module.register_forward_pre_hook(partial(note, site.name))
        try_batches(problem, [batch], mode, seed)
    return found


def convert_in_mode(
    model: nn.Module, to: str, mode: str, vectors: Collection[str] = ()
) -> nn.Module:
    """Convert a model for a measurement; see `convert`.

    In mode "as_is", batch norm layers that get no running statistics from an old layer are put in
    train mode: in eval mode they would not normalize.

    Args:
        model: any model; it is not changed.
        to: the norm kind.
        mode: "train", "frozen", "eval" or "as_is".
        vectors: names of norm layers whose inputs are known to be vectors, (batch, features).

    Returns:
        The new model.

    >>> net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).eval()
    >>> [module.training for module in convert_in_mode(net, "batch", "as_is")]
    [False, True, False]
    """
    converted, given = convert_layers(model, to, vectors), dict(model.named_modules())
    for name, layer in norm_layers(converted).items() if mode == "as_is" else ():
        old = given.get(name) or given.get(name.rpartition(".")[0])  # one with an activation
        keeps_statistics = old is not None and is_batch_norm(old) and is_batch_norm(layer)
        layer.training |= not keeps_statistics
    return converted


def unfit_norms(
    problem: Problem,
    norms: Sequence[str],
    batch: Batch,
    seed: int,
    mode: str = "train",
    vectors: Collection[str] = (),
) -> dict[str, str]:
    """Return why a model cannot have some norm kinds, by kind; empty if it can have all.

    Args:
        problem: model and loss; neither is changed. If the model as given fails too, its own
            error is raised.
        norms: norm kinds.
        batch: of its data; one forward pass of each converted model is run on it.
        seed: of dropout and noise.
        mode: "train", "frozen", "eval" or "as_is".
        vectors: as for `convert_in_mode`.

    Returns:
        The reasons, without a final full stop.

    >>> import torch
    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 3), nn.Flatten(), nn.Linear(9, 1))
    >>> batch = torch.ones(2, 3, 4), torch.ones(2, 1)
    >>> unfit_norms(Problem(model, "squared_error", batch), ["none", "instance"], batch, seed=0)
    {'instance': 'instance normalization averages over the positions of a channel, but a vector \
has one value per channel; choose layer, rms, group or batch'}
    """
    reasons: dict[str, str] = {}
    for norm in norms:
        try:
            model = convert_in_mode(problem.model, norm, mode, vectors)
        except UnknownNameError:
            raise
        except InputError as error:
            reasons[norm] = str(error).rstrip(".")
            continue
        try:
            try_batches(Problem(model, problem.loss, [batch]), [batch], mode, seed)
        except Exception as error:  # user code may raise anything with another norm layer
            with locate_errors(problem):
                try_batches(problem, [batch], mode, seed)
            reasons[norm] = _reason(error)
    return reasons


def _reason(error: Exception) -> str:
    """Return what failed, without advice about the data, which fits the model as given."""
    if isinstance(error, MisfitError):
        return str(error).removeprefix("the data does not fit the model: ").partition("; ")[0]
    if isinstance(error, NormscopeError):
        return str(error).rstrip(".")
    return f"{type(error).__name__}: {error}".partition("\n")[0].rstrip(".")
