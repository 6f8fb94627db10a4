"""Which norm layers can be folded into which layers, by the graph of the forward pass."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

from torch import fx, nn
from torch.nn.utils import parametrize

from normscope.layers.detect import weight_norm_of
from normscope.layers.kinds import is_batch_norm, is_lp_norm, refuse_lazy
from normscope.layers.surgery.call_graph import CallGraph, call_graphs, is_plain_layer
from normscope.layers.surgery.fold_weights import (
    Layer,
    misfit_after,
    misfit_before,
    spatial_dimensions,
)
from normscope.layers.surgery.inference import affine_map, modules_after
from normscope.problem.hooks import has_global_hooks, has_hooks


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
    norms = {name for name, module in model.named_modules() if _is_affine_norm(module)}
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
