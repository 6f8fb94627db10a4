"""Batch norm taken into the layers around it, for inference."""

from __future__ import annotations

import copy
import warnings
from typing import cast

from torch import nn

from normscope.errors import NormscopeWarning, StateError
from normscope.layers.fold_plan import Fold, Plan, plan_folding
from normscope.layers.fold_weights import Layer, fold_input, fold_output, in_channels
from normscope.layers.inference import affine_map


def fold(model: nn.Module, strict: bool = False) -> nn.Module:
    """A copy of the model in eval mode whose batch norm layers are folded into their neighbours.

    At inference a batch norm or l_p layer is an affine map per channel, which the linear or
    convolution layer (also grouped or transposed) before it can do along with its own; if there is
    none, the one after it can, also behind a flattening: always a linear layer, a convolution if
    it pads no zeros or the shift is zero. The outputs stay the same up to rounding; a folded layer
    becomes an ``nn.Identity``, or keeps the activation fused into it.

    The forward pass is followed by ``torch.fx``, without data, so the model may be any module. What
    comes out is right for calls in eval mode with optional arguments at their defaults, if the
    forward pass does the same each time and takes its inputs to be tensors
    (``isinstance(x, Tensor)`` is true), not other types. Where that fails, the model's
    ``nn.Sequential`` parts are followed instead, each taken to be called as a whole and its tensors
    to be used there only, and a warning says so.

    A layer that cannot be folded without changing the outputs stays: shared or called several
    times, its input also used elsewhere, without running statistics, next to a layer whose weight
    is tied, parametrized, or used elsewhere, or with forward hooks on either. Layer and group norm
    depend on the sample and are never folded. A ``BatchNorm1d`` beside ``nn.Linear`` is taken to
    see vectors (batch, channels), as its channels must be the linear layer's features.

    Reference: ioffe2015, Section 3.1.

    Args:
        model: any model; it stays as it is.
        strict: whether a batch norm layer that stays is an error.

    Returns:
        A new model of the same class.

    Raises:
        StateError: if ``strict`` and a layer stays; if a lazy layer has no shape yet.
        ArgumentTypeError: if the model is no module.

    Warns:
        NormscopeWarning: names every layer that stays, with the reason.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()).eval()
    >>> folded = fold(model)
    >>> folded[1], torch.allclose(folded(torch.ones(2, 3)), model(torch.ones(2, 3)))
    (Identity(), True)
    """
    plan = plan_folding(model)
    if plan.kept and strict:
        raise StateError(_message(plan))
    if plan.kept or (plan.partial and plan.folds):
        warnings.warn(_message(plan), NormscopeWarning, stacklevel=2)
    return _folded(model, plan.folds)


def _message(plan: Plan) -> str:
    listed = "; ".join(
        f"{name!r} ({reason})" if name else f"the model itself ({reason})"
        for name, reason in plan.kept.items()
    )
    kept = f"fold leaves {listed}." if listed else ""
    partial = (
        "torch.fx cannot follow the whole forward pass, so nn.Sequential parts were searched on "
        "their own, each taken to be called as a whole."
    )
    return " ".join(part for part in (kept, partial if plan.partial else "") if part)


def _folded(model: nn.Module, folds: list[Fold]) -> nn.Module:
    # Handing deepcopy the replacements puts them wherever the model refers to the layer.
    replacements = {
        id(model.get_submodule(fold.norm)): copy.deepcopy(fold.replacement) for fold in folds
    }
    result = copy.deepcopy(model, replacements)
    for fold in folds:
        scale, shift = affine_map(model.get_submodule(fold.norm))
        layer = cast(Layer, result.get_submodule(fold.layer))
        if fold.into_next:
            repeats = in_channels(layer) // len(scale)  # positions per channel, after a flattening
            fold_input(layer, scale.repeat_interleave(repeats), shift.repeat_interleave(repeats))
        else:
            fold_output(layer, scale, shift)
    return result.eval()
