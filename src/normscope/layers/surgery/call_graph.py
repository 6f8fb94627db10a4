"""The graph of calls of a model's forward pass, or of its parts."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import fx, nn

from normscope.layers.kinds import averages_over_batch
from normscope.layers.surgery.plain_layers import is_plain_layer
from normscope.problem.copies import copy_module
from normscope.problem.hooks import defining_module, has_hooks
from normscope.problem.tracing import trace

_IDENTITY_IN_EVAL = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


def is_known_layer(module: nn.Module) -> bool:
    """Return whether the module is a norm layer, or a linear or convolution layer."""
    return is_plain_layer(module) or averages_over_batch(module)


@dataclass
class CallGraph:
    """One traced forward pass.

    Attributes:
        prefix: qualified name of the traced module inside the model, "" for the model itself.
        root: the traced module (a copy).
        graph: its calls.
        reads: ids of the tensors that the forward pass uses outside of module calls.
        whole: whether this is the forward pass of the whole model.
        assumed: whether the module is assumed to be called as a whole, without evidence.
        dissolved: nodes whose modules have become the identity.
    """

    prefix: str
    root: nn.Module
    graph: fx.Graph
    reads: set[int]
    whole: bool = False
    assumed: bool = False
    dissolved: set[fx.Node] = field(default_factory=set)

    def module_calls(self) -> list[fx.Node]:
        """Return the nodes that call a module, in order of execution."""
        return [node for node in self.graph.nodes if node.op == "call_module"]

    def name(self, node: fx.Node) -> str:
        """Return the qualified name, inside the model, of the module that a node calls."""
        return f"{self.prefix}.{node.target}" if self.prefix else str(node.target)

    def module(self, node: fx.Node) -> nn.Module | None:
        """Return the module that a node calls, None if it calls something else."""
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def reads_parameters(self, node: fx.Node) -> bool:
        """Return whether the forward pass uses a tensor of the node's module outside its call."""
        module = self.root.get_submodule(str(node.target))
        return any(id(each) in self.reads for each in (*module.parameters(), *module.buffers()))

    def is_identity(self, node: fx.Node) -> bool:
        """Return whether the node returns its input unchanged in eval mode."""
        module = self.module(node)
        if not isinstance(module, _IDENTITY_IN_EVAL) or has_hooks(module, backward=False):
            return node in self.dissolved
        return defining_module(type(module).forward).startswith("torch.nn.")

    def flattens(self, node: fx.Node) -> bool:
        """Return whether the node flattens all dimensions after the first."""
        module = self.module(node)
        if module is not None:
            return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
        starts = [*node.args[1:], *node.kwargs.values()]
        return node.target in (torch.flatten, "flatten") and starts in ([1], [1, -1])

    def adjacent(self, first: fx.Node, last: fx.Node) -> bool:
        """Return whether only identities and flattenings are executed between two nodes."""
        node = first.next
        while node is not last and (self.is_identity(node) or self.flattens(node)):
            node = node.next
        return node is last

    def between(self, first: fx.Node, last: fx.Node) -> list[fx.Node]:
        """Return the nodes executed between two."""
        nodes = list(self.graph.nodes)
        return nodes[nodes.index(first) + 1 : nodes.index(last)]


def call_graphs(model: nn.Module) -> list[CallGraph]:
    """Return the model's graph, or those of its ``nn.Sequential`` parts if it has none.

    Args:
        model: any model; it is copied, not changed.

    Returns:
        One graph with prefix "" for the whole model; else one for each outermost part that can be
        traced, which is assumed to be called only as a whole.
    """
    root = copy_module(model).eval()
    calls = trace(root, is_known_layer)
    if calls is not None:
        return [CallGraph("", root, *calls, whole=True)]
    return _graphs_of_parts("", root, assumed=False)


def is_sequential(module: nn.Module) -> bool:
    """Return whether a module calls its children in turn; not if torch.jit compiled it."""
    return getattr(type(module), "forward", None) is nn.Sequential.forward


def _graphs_of_parts(prefix: str, module: nn.Module, assumed: bool) -> list[CallGraph]:
    """Return the graphs inside a module that cannot be traced."""
    found = []
    sequential = is_sequential(module)
    if sequential and (calls := trace(module, lambda child: True)) is not None:
        found.append(CallGraph(prefix, module, calls[0], set(), assumed=assumed))
    for name, child in module.named_children():
        name = f"{prefix}.{name}" if prefix else name
        unseen = assumed or not sequential
        callable_whole = sequential or is_sequential(child)
        inside = trace(child, is_known_layer) if callable_whole else None
        if inside is not None:
            found.append(CallGraph(name, child, *inside, assumed=unseen))
        else:
            found += _graphs_of_parts(name, child, unseen)
    return found
