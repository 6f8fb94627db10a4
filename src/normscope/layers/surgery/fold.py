"""Fold batch norm into the linear and convolution layers around it, for inference."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

from normscope.errors import ShapeError, StateError
from normscope.interrupts import interrupt_safe
from normscope.layers.surgery.fold_plan import Fold, Plan, plan_folding
from normscope.layers.surgery.fold_weights import Layer, fold_input, fold_output, in_channels
from normscope.layers.surgery.inference import affine_map
from normscope.layers.surgery.trial import Trial, find_trial, make_trial
from normscope.problem.copies import copy_module, undisturbed
from normscope.problem.diagnose import require_module
from normscope.problem.sharded import gather_shards
from normscope.problem.wrappers import refuse_sharded
from normscope.warn import warn


@interrupt_safe
@gather_shards
def fold(model: nn.Module, strict: bool = False, inputs: Any = None) -> nn.Module:
    """Return a copy in eval mode whose batch norm layers are folded into their neighbours.

    At inference a batch norm or l_p layer is an affine map per channel. It is folded into the
    linear or convolution layer (also grouped or transposed) before it. If there is none, it is
    folded into the one after it, also behind a flattening: always into a linear layer, into a
    convolution if it does not pad with zeros or the shift is zero. The outputs stay the same up to
    rounding; a folded layer becomes an ``nn.Identity``, or keeps the activation fused into it.

    The forward pass is traced without data, so the model may be any module. Where tracing fails,
    the ``nn.Sequential`` parts of the model are traced instead, and a warning says so: each is
    assumed to be called only as a whole, and its tensors to be used only there.

    Then the outputs of the folded model are compared with the original's, on ``inputs`` or on
    random ones that fit the first layers, and a layer whose folding changes them is kept. If no
    such inputs are found, a warning says so. The result is correct for calls in eval mode with
    optional arguments at their defaults, if the forward pass does the same each time.

    A layer that cannot be folded without changing the outputs is kept: one that is shared or called
    several times, whose input is also used elsewhere, that has no running statistics, or whose
    neighbour has a weight that is tied, parametrized or used elsewhere; or either has forward
    hooks. Layer and group norm depend on the sample and are never folded. A ``BatchNorm1d`` next to
    ``nn.Linear`` is folded for vectors (batch, channels), one next to a 1d convolution for (batch,
    channels, positions); the folded model raises if it gets another number of dimensions there.

    Reference: ioffe2015, Section 3.1.

    Args:
        model: any model; it is not changed.
        strict: whether to raise if a batch norm layer is kept, or if the outputs could not be
            compared.
        inputs: what the model is called with: a tensor, a tuple of positional arguments or a
            dictionary of named ones.

    Returns:
        A new model of the same class.

    Raises:
        StateError: if ``strict`` and a layer is kept or the outputs could not be compared; if a
            lazy layer has no shape yet; if the model cannot be copied.
        MisfitError: if the inputs do not fit the model.
        ArgumentTypeError: if the model is not a module.

    Warns:
        NormscopeWarning: names every layer that is kept, with the reason; says if the outputs
            could not be compared.

    >>> import torch
    >>> model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()).double().eval()
    >>> folded, x = fold(model), torch.ones(2, 3, dtype=torch.double)
    >>> folded[1], torch.allclose(folded(x), model(x))
    (Identity(), True)
    """
    require_module(model, "fold")
    refuse_sharded(model)
    with undisturbed(model):
        plan = plan_folding(model)
        if plan.folds:
            plan = _compared(model, plan, inputs)
    message = _message(plan)
    if strict and (plan.kept or not plan.compared):
        raise StateError(message)
    if message:
        warn(message)
    return _folded(model, plan.folds)


def _compared(model: nn.Module, plan: Plan, inputs: Any) -> Plan:
    """Return the plan without the folds that change the model's outputs."""
    trial = find_trial(model, plan.graphs) if inputs is None else make_trial(model, inputs)
    if trial is None:
        return replace(plan, compared=False)
    folds, kept = _confirmed(trial, plan.folds)
    return replace(plan, folds=folds, kept=dict(sorted((plan.kept | kept).items())))


def _confirmed(trial: Trial, folds: list[Fold]) -> tuple[list[Fold], dict[str, str]]:
    """Return the folds that keep the outputs, and reasons against the others by name."""
    if trial.difference(partial(_folded, folds=folds)) is None:
        return folds, {}
    confirmed: list[Fold] = []
    kept: dict[str, str] = {}
    for each in folds:
        reason = trial.difference(partial(_folded, folds=[*confirmed, each]))
        if reason is None:
            confirmed.append(each)
        else:
            kept[each.norm] = reason
    return confirmed, kept


def _message(plan: Plan) -> str:
    """Return what a user should know about the plan; "" if everything is folded."""
    listed = "; ".join(
        f"{name!r} ({reason})" if name else f"the model itself ({reason})"
        for name, reason in plan.kept.items()
    )
    parts = [f"fold leaves {listed}."] if listed else []
    if plan.partial and (plan.folds or plan.kept):
        parts.append(
            "The whole forward pass cannot be traced, so nn.Sequential parts were traced instead, "
            "each assumed to be called as a whole."
        )
    if not plan.compared:
        parts.append(
            "The outputs were not compared with the original's, since no inputs were found that "
            "the model takes and gives finite outputs for; give inputs=."
        )
    return " ".join(parts)


def _folded(model: nn.Module, folds: list[Fold]) -> nn.Module:
    # deepcopy puts the replacements wherever the model refers to the layers.
    replacements = {id(model.get_submodule(fold.norm)): _replacement(fold) for fold in folds}
    result = copy_module(model, replacements)
    for fold in folds:
        scale, shift = affine_map(model.get_submodule(fold.norm))
        layer = cast(Layer, result.get_submodule(fold.layer))
        if fold.into_next:
            repeats = in_channels(layer) // len(scale)  # positions per channel, if flattened
            fold_input(layer, scale.repeat_interleave(repeats), shift.repeat_interleave(repeats))
        else:
            fold_output(layer, scale, shift)
    return result.eval()


def _replacement(fold: Fold) -> nn.Module:
    """Return what replaces a folded norm layer, with a check of its input if it takes several."""
    module = nn.Sequential(*copy.deepcopy(fold.after)) if fold.after else nn.Identity()
    if fold.dimensions in _CHECKS:
        module.register_forward_pre_hook(_CHECKS[fold.dimensions])
    return module


# Functions of the file, with types, so that a folded model can be pickled and scripted; torch.fx
# calls them with inputs that are not tensors.
def check_vectors(module: nn.Module, inputs: tuple[Tensor]) -> None:
    """Raise `ShapeError` if the input of a layer folded for vectors is something else."""
    if isinstance(inputs[0], Tensor) and inputs[0].dim() != 2:
        raise ShapeError(
            "a batch norm layer was folded here for vectors (batch, channels), got an input of "
            f"{inputs[0].dim()} dimensions; fold the model with inputs= of the shape that it gets."
        )


def check_sequences(module: nn.Module, inputs: tuple[Tensor]) -> None:
    """Raise `ShapeError` if the input of a layer folded for sequences is something else."""
    if isinstance(inputs[0], Tensor) and inputs[0].dim() != 3:
        raise ShapeError(
            "a batch norm layer was folded here for sequences (batch, channels, positions), got an "
            f"input of {inputs[0].dim()} dimensions; give the samples a batch dimension."
        )


_CHECKS = {2: check_vectors, 3: check_sequences}
