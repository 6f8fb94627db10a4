"""Fold batch norm into the linear and convolution layers around it, for inference."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from normscope.errors import ShapeError, StateError
from normscope.interrupts import interrupt_safe
from normscope.layers.detect import weight_norm_of
from normscope.layers.kinds import averages_over_batch, batch_layers
from normscope.layers.surgery.call_graph import CallGraph, call_graphs
from normscope.layers.surgery.fold_weights import (
    affine_map,
    fold_input,
    fold_output,
    misfit_after,
    misfit_before,
)
from normscope.layers.surgery.fused_modules import modules_after
from normscope.layers.surgery.plain_layers import (
    Layer,
    in_channels,
    is_plain_layer,
    spatial_dimensions,
)
from normscope.layers.surgery.trial import Trial, find_trial, make_trial
from normscope.problem.copies import copy_module, undisturbed
from normscope.problem.error_messages import require_module
from normscope.problem.hooks import has_global_hooks, has_hooks
from normscope.problem.modes import refuse_lazy
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


@dataclass(frozen=True)
class Fold:
    """One norm layer to fold.

    Attributes:
        norm: its qualified name.
        layer: the name of the layer to fold it into.
        into_next: whether that layer comes after the norm layer rather than before.
        after: modules that the norm layer applies after normalizing; they stay.
        dimensions: that the input must have, if the norm layer takes several.
    """

    norm: str
    layer: str
    into_next: bool
    after: list[nn.Module]
    dimensions: int | None


@dataclass(frozen=True)
class Plan:
    """Which layers to fold, in order, and which to keep.

    Attributes:
        folds: the norm layers to fold.
        kept: reason by name for the others.
        graphs: the calls by which they were found.
        compared: whether the outputs are known to stay the same.
    """

    folds: list[Fold]
    kept: dict[str, str]
    graphs: list[CallGraph]
    compared: bool = True

    @property
    def partial(self) -> bool:
        """Whether parts of the model are assumed to be called only as a whole."""
        return any(graph.assumed for graph in self.graphs)


def plan_folding(model: nn.Module) -> Plan:
    """Return what :func:`fold` does to a model."""
    for module in model.modules():
        refuse_lazy(module)
    norms = set(batch_layers(model))
    if not norms:
        return Plan([], {}, [])
    if has_global_hooks(backward=False):
        reason = "hooks of all modules are registered, which may change any output"
        return Plan([], dict.fromkeys(sorted(norms), reason), [])
    graphs = call_graphs(model)
    planner = _Planner(model, graphs)
    for graph in graphs:
        planner.search(graph)
    folded = {fold.norm for fold in planner.folds}
    unseen = "it is not called where the forward pass can be traced in eval mode"
    kept = {name: planner.kept.get(name, unseen) for name in sorted(norms - folded)}
    return Plan(planner.folds, kept, graphs)


class _Planner:
    """Collects folds and reasons over the graphs of one model."""

    def __init__(self, model: nn.Module, graphs: list[CallGraph]) -> None:
        self.folds: list[Fold] = []
        self.kept: dict[str, str] = {}
        self._model = model
        self._names = {id(module): name for name, module in model.named_modules()}
        self._exact = len(graphs) == 1 and graphs[0].whole
        self._calls = Counter(
            id(self._module(graph, node)) for graph in graphs for node in graph.module_calls()
        )
        self._places = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
        self._owners = Counter(
            tensor.data_ptr()
            for module in model.modules()
            for tensor in module.parameters(recurse=False)
        )

    def _module(self, graph: CallGraph, node: fx.Node) -> nn.Module:
        return self._model.get_submodule(graph.name(node))

    def search(self, graph: CallGraph) -> None:
        """Find the folds of one graph, repeatedly: a fold may make a neighbour foldable."""
        calls = graph.module_calls()
        waiting = [node for node in calls if averages_over_batch(self._module(graph, node))]
        progress = True
        while progress:
            progress = False
            for node in list(waiting):
                outcome = self._fold_at(graph, node)
                if isinstance(outcome, str):
                    self.kept[self._names[id(self._module(graph, node))]] = outcome
                    continue
                self.folds.append(outcome)
                waiting.remove(node)
                progress = True
                if not outcome.after:
                    graph.dissolved.add(node)

    def _fold_at(self, graph: CallGraph, node: fx.Node) -> Fold | str:
        """Return the fold of the norm layer that a node calls, or the reason against it."""
        norm: Any = graph.module(node)
        after = modules_after(norm)
        reason = self._problem(graph, node)
        if norm.running_mean is None:
            reason = "it keeps no running statistics"
        elif after is None:
            reason = f"{type(norm).__name__} does more than normalize"
        if reason is not None:
            return reason
        source, reason = self._layer_before(graph, node)
        if source is not None:
            dimensions = _input_dimensions(norm, _layer(graph, source))
            return Fold(graph.name(node), graph.name(source), False, after or [], dimensions)
        if after:
            return reason
        target, other_reason = self._layer_after(graph, node)
        if target is not None:
            flattened = any(map(graph.flattens, graph.between(node, target)))
            dimensions = None if flattened else _input_dimensions(norm, _layer(graph, target))
            return Fold(graph.name(node), graph.name(target), True, [], dimensions)
        return f"{reason}, and {other_reason}"

    def _layer_before(self, graph: CallGraph, node: fx.Node) -> tuple[fx.Node | None, str]:
        norm = graph.module(node)
        while True:
            if len(node.all_input_nodes) != 1:
                return None, "its input cannot be followed"
            (node,) = node.all_input_nodes
            if len(node.users) > 1:
                return None, "its input is also used elsewhere"
            if not graph.is_identity(node):
                break
        reason = self._no_layer(graph, node, "before") or misfit_before(norm, _layer(graph, node))
        return (None, reason) if reason else (node, "")

    def _layer_after(self, graph: CallGraph, start: fx.Node) -> tuple[fx.Node | None, str]:
        node, flattened = start, False
        while node is start or graph.is_identity(node) or graph.flattens(node):
            flattened = flattened or (node is not start and graph.flattens(node))
            if len(node.users) != 1:
                return None, "its output is used in several places"
            (node,) = node.users
        reason = self._no_layer(graph, node, "after")
        if reason is None and not graph.adjacent(start, node):
            # With an identity instead of the norm layer, an in-place change would reach further.
            reason = "something happens between it and the layer after it"
        if reason is None:
            norm = graph.module(start)
            _, shift = affine_map(norm)
            reason = misfit_after(norm, _layer(graph, node), flattened, shift)
        return (None, reason) if reason else (node, "")

    def _no_layer(self, graph: CallGraph, node: fx.Node, side: str) -> str | None:
        module = graph.module(node)
        if module is None or not is_plain_layer(module):
            what = getattr(node.target, "__name__", str(node.target))
            what = type(module).__name__ if module is not None else what
            return f"what comes {side} it ({what}) is not a linear or convolution layer"
        reason = self._problem(graph, node)
        return reason and f"{graph.name(node)!r} {side} it cannot take it in: {reason}"

    def _problem(self, graph: CallGraph, node: fx.Node) -> str | None:
        """Return why the module that a node calls must not be changed; None if it may."""
        module = self._module(graph, node)
        if self._calls[id(module)] > 1:
            return f"it is called {self._calls[id(module)]} times in one forward pass"
        if not self._exact and self._places[id(module)] > 1:
            return "it is in several places of the model"
        if (kind := weight_norm_of(module)) is not None:
            return f"its weights are normalized by {kind}, which must be removed first"
        if has_hooks(module, backward=False):
            return "it has forward hooks"
        if parametrize.is_parametrized(module):
            return "it is parametrized"
        if graph.reads_parameters(node):
            return "its tensors are used outside of its call"
        owners = [self._owners[tensor.data_ptr()] for tensor in module.parameters(recurse=False)]
        return "its weight is tied to another module's" if max(owners, default=1) > 1 else None


def _layer(graph: CallGraph, node: fx.Node) -> Layer:
    return cast(Layer, graph.module(node))


def _input_dimensions(norm: nn.Module, layer: Layer) -> int | None:
    """Return the dimensions of an input of which both layers take the same as the channels."""
    if spatial_dimensions(norm) not in (None, 1):
        return None  # the norm layer itself takes only one number of dimensions
    return 2 if isinstance(layer, nn.Linear) else 2 + (spatial_dimensions(layer) or 0)
