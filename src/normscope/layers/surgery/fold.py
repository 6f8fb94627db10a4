"""Fold batch norm into the linear and convolution layers around it, for inference."""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

from torch import fx, nn
from torch.nn.utils import parametrize

from normscope.errors import NormscopeWarning, StateError
from normscope.layers.kinds import is_batch_norm, is_lp_norm, refuse_lazy
from normscope.layers.surgery.fold_weights import (
    Layer,
    fold_input,
    fold_output,
    in_channels,
    misfit_after,
    misfit_before,
)
from normscope.layers.surgery.inference import affine_map, modules_after
from normscope.layers.surgery.trace import (
    CallGraph,
    call_graphs,
    has_hooks,
    is_plain_layer,
)
from normscope.problem.diagnose import require_module


def fold(model: nn.Module, strict: bool = False) -> nn.Module:
    """Return a copy in eval mode whose batch norm layers are folded into their neighbours.

    At inference a batch norm or l_p layer is an affine map per channel. It is folded into the
    linear or convolution layer (also grouped or transposed) before it. If there is none, it is
    folded into the one after it, also behind a flattening: always into a linear layer, into a
    convolution if it does not pad with zeros or the shift is zero. The outputs stay the same up to
    rounding; a folded layer becomes an ``nn.Identity``, or keeps the activation fused into it.

    The forward pass is traced without data, so the model may be any module. The result is correct
    for calls in eval mode with optional arguments at their defaults, if the inputs are tensors and
    the forward pass is the same each time. Where tracing fails, the ``nn.Sequential`` parts of the
    model are traced instead, and a warning says so: each is assumed to be called only as a whole,
    and its tensors to be used only there.

    A layer that cannot be folded without changing the outputs is kept: one that is shared or called
    several times, whose input is also used elsewhere, that has no running statistics, or whose
    neighbour has a weight that is tied, parametrized or used elsewhere; or either has forward
    hooks. Layer and group norm depend on the sample and are never folded. A ``BatchNorm1d`` next to
    ``nn.Linear`` is assumed to get vectors (batch, channels).

    Reference: ioffe2015, Section 3.1.

    Args:
        model: any model; it is not changed.
        strict: whether to raise if a batch norm layer is kept.

    Returns:
        A new model of the same class.

    Raises:
        StateError: if ``strict`` and a layer is kept; if a lazy layer has no shape yet.
        ArgumentTypeError: if the model is not a module.

    Warns:
        NormscopeWarning: names every layer that is kept, with the reason.

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
        "The whole forward pass cannot be traced, so nn.Sequential parts were traced instead, each "
        "assumed to be called as a whole."
    )
    return " ".join(part for part in (kept, partial if plan.partial else "") if part)


def _folded(model: nn.Module, folds: list[Fold]) -> nn.Module:
    # deepcopy puts the replacements wherever the model refers to the layers.
    replacements = {
        id(model.get_submodule(fold.norm)): copy.deepcopy(fold.replacement) for fold in folds
    }
    result = copy.deepcopy(model, replacements)
    for fold in folds:
        scale, shift = affine_map(model.get_submodule(fold.norm))
        layer = cast(Layer, result.get_submodule(fold.layer))
        if fold.into_next:
            repeats = in_channels(layer) // len(scale)  # positions per channel, if flattened
            fold_input(layer, scale.repeat_interleave(repeats), shift.repeat_interleave(repeats))
        else:
            fold_output(layer, scale, shift)
    return result.eval()


@dataclass(frozen=True)
class Fold:
    """One norm layer to fold.

    Attributes:
        norm: its qualified name.
        layer: the name of the layer to fold it into.
        into_next: whether that layer comes after the norm layer rather than before.
        replacement: what replaces the norm layer.
    """

    norm: str
    layer: str
    into_next: bool
    replacement: nn.Module


@dataclass(frozen=True)
class Plan:
    """Which layers to fold, in order, and which to keep.

    Attributes:
        folds: the norm layers to fold.
        kept: reason by name for the others.
        partial: whether parts of the model are assumed to be called only as a whole.
    """

    folds: list[Fold]
    kept: dict[str, str]
    partial: bool


def plan_folding(model: nn.Module) -> Plan:
    """Return what :func:`fold` does to a model."""
    require_module(model, "fold")
    for module in model.modules():
        refuse_lazy(module)
    norms = {name for name, module in model.named_modules() if _is_affine_norm(module)}
    if not norms:
        return Plan([], {}, partial=False)
    graphs = call_graphs(model)
    planner = _Planner(model, graphs)
    for graph in graphs:
        planner.search(graph)
    folded = {fold.norm for fold in planner.folds}
    unseen = "it is not called where the forward pass can be traced in eval mode"
    kept = {name: planner.kept.get(name, unseen) for name in sorted(norms - folded)}
    return Plan(planner.folds, kept, partial=any(graph.assumed for graph in graphs))


def _is_affine_norm(module: nn.Module | None) -> bool:
    return module is not None and (is_batch_norm(module) or is_lp_norm(module))


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
        waiting = [node for node in graph.module_calls() if _is_affine_norm(graph.module(node))]
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
                if isinstance(outcome.replacement, nn.Identity):
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
            rest = nn.Sequential(*after) if after else nn.Identity()
            return Fold(graph.name(node), graph.name(source), False, rest)
        if after:
            return reason
        target, other_reason = self._layer_after(graph, node)
        if target is not None:
            return Fold(graph.name(node), graph.name(target), True, nn.Identity())
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
        if has_hooks(module):
            return "it has forward hooks"
        if parametrize.is_parametrized(module):
            return "it is parametrized"
        if graph.reads_parameters(node):
            return "its tensors are used outside of its call"
        owners = [self._owners[tensor.data_ptr()] for tensor in module.parameters(recurse=False)]
        return "its weight is tied to another module's" if max(owners, default=1) > 1 else None


def _layer(graph: CallGraph, node: fx.Node) -> Layer:
    return cast(Layer, graph.module(node))
