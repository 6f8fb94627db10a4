"""Which batch norm layers can be folded into which layer, and why the others cannot."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, cast

from torch import fx, nn
from torch.nn.utils import parametrize

from normscope.layers.call_graph import CallGraph, call_graphs, has_hooks
from normscope.layers.detect import is_batch_norm, is_lp_norm, refuse_lazy
from normscope.layers.fold_fit import misfit_after, misfit_before
from normscope.layers.fold_weights import Layer
from normscope.layers.inference import affine_map, modules_after
from normscope.layers.tracing import is_plain_layer
from normscope.problem.diagnose import require_module


@dataclass(frozen=True)
class Fold:
    """One norm layer to be folded.

    Attributes:
        norm: its qualified name.
        layer: the name of the layer that takes it in.
        into_next: whether that layer comes after the norm layer rather than before.
        replacement: what stands in the norm layer's place afterwards.
    """

    norm: str
    layer: str
    into_next: bool
    replacement: nn.Module


@dataclass(frozen=True)
class Plan:
    """What can be folded, in the order in which it must be done, and what is kept.

    Attributes:
        folds: the norm layers to be folded.
        kept: reason by name for the others.
        partial: whether parts of the model were taken to be called as a whole, unseen.
    """

    folds: list[Fold]
    kept: dict[str, str]
    partial: bool


def plan_folding(model: nn.Module) -> Plan:
    """What :func:`normscope.layers.fold` will do to a model.

    Args:
        model: any model; it stays as it is.

    Returns:
        The plan.

    Raises:
        StateError: if a lazy layer has no shape yet.
        ArgumentTypeError: if the model is no module.
    """
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
    unseen = "it is not called where torch.fx can follow the forward pass in eval mode"
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
        """Find the folds of one graph; again after each success, which may free a neighbour."""
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
        """The fold of the norm layer called at a node, or the reason against it."""
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
            if not graph.passes(node):
                break
        reason = self._no_layer(graph, node, "before") or misfit_before(norm, _layer(graph, node))
        return (None, reason) if reason else (node, "")

    def _layer_after(self, graph: CallGraph, start: fx.Node) -> tuple[fx.Node | None, str]:
        node, flattened = start, False
        while node is start or graph.passes(node) or graph.flattens(node):
            flattened = flattened or (node is not start and graph.flattens(node))
            if len(node.users) != 1:
                return None, "its output is used in several places"
            (node,) = node.users
        reason = self._no_layer(graph, node, "after")
        if reason is None and not graph.adjacent(start, node):
            # The identity in the norm layer's place would let a change in place through.
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
            return f"what comes {side} it ({what}) is no linear or convolution layer"
        reason = self._problem(graph, node)
        return reason and f"{graph.name(node)!r} {side} it cannot take it in: {reason}"

    def _problem(self, graph: CallGraph, node: fx.Node) -> str | None:
        """Why the module called at a node must stay what it is."""
        module = self._module(graph, node)
        if self._calls[id(module)] > 1:
            return f"it is called {self._calls[id(module)]} times in one forward pass"
        if not self._exact and self._places[id(module)] > 1:
            return "it stands at several places of the model"
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
