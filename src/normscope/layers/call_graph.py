"""Who calls what: a model's forward pass in eval mode as a graph of module calls."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field

import torch
from torch import Tensor, fx, nn

from normscope.layers.tracing import Tracer, traced

_PASS_IN_EVAL = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)


@dataclass
class CallGraph:
    """One traced forward pass.

    Attributes:
        prefix: qualified name of the traced module inside the model, "" for the model itself.
        root: the traced module (a copy).
        graph: its calls.
        reads: ids of the tensors that the forward pass uses itself, outside of module calls.
        whole: whether this is the whole model's forward pass.
        assumed: whether the module is taken to be called as a whole, without having seen it.
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
        """The nodes that call a module, in order of execution."""
        return [node for node in self.graph.nodes if node.op == "call_module"]

    def name(self, node: fx.Node) -> str:
        """Qualified name, inside the model, of the module that a node calls."""
        return f"{self.prefix}.{node.target}" if self.prefix else str(node.target)

    def module(self, node: fx.Node) -> nn.Module | None:
        """The module that a node calls, None if it calls something else."""
        return self.root.get_submodule(str(node.target)) if node.op == "call_module" else None

    def reads_parameters(self, node: fx.Node) -> bool:
        """Whether the forward pass uses a tensor of the node's module outside of its call."""
        module = self.root.get_submodule(str(node.target))
        return any(id(tensor) in self.reads for tensor in _tensors(module))

    def passes(self, node: fx.Node) -> bool:
        """Whether the node hands on its input unchanged in eval mode."""
        module = self.module(node)
        if not isinstance(module, _PASS_IN_EVAL) or has_hooks(module):
            return node in self.dissolved
        return type(module).forward.__module__.startswith("torch.nn.")

    def adjacent(self, first: fx.Node, last: fx.Node) -> bool:
        """Whether nothing happens between two nodes but what hands the first one's output on."""
        node = first.next
        while node is not last and (self.passes(node) or self.flattens(node)):
            node = node.next
        return node is last

    def flattens(self, node: fx.Node) -> bool:
        """Whether the node flattens all dimensions after the first."""
        module = self.module(node)
        if module is not None:
            return type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)
        starts = [*node.args[1:], *node.kwargs.values()]
        return node.target in (torch.flatten, "flatten") and starts in ([1], [1, -1])


def has_hooks(module: nn.Module) -> bool:
    """Whether forward hooks may change what the module takes or gives."""
    return bool(module._forward_hooks or module._forward_pre_hooks)


def call_graphs(model: nn.Module) -> list[CallGraph]:
    """The whole model's graph or, if it cannot be traced, those of its ``nn.Sequential`` parts.

    Args:
        model: any model; it is copied, and left alone.

    Returns:
        One graph with prefix "" for the whole model; else one for each outermost part that can be
        traced (a part is taken to be called only as a whole).
    """
    root = copy.deepcopy(model).eval()
    calls = traced(root)
    if calls is not None:
        return [CallGraph("", root, *calls, whole=True)]
    return _graphs_of_parts("", root, assumed=False)


def _graphs_of_parts(prefix: str, module: nn.Module, assumed: bool) -> list[CallGraph]:
    """Graphs inside a module that cannot be traced."""
    found = []
    sequential = type(module).forward is nn.Sequential.forward
    if sequential:  # its own calls can always be followed, with the parts it calls unopened
        calls = Tracer(open_modules=False).trace(module)
        found.append(CallGraph(prefix, module, calls, set(), assumed=assumed))
    for name, child in module.named_children():
        name = f"{prefix}.{name}" if prefix else name
        unseen = assumed or not sequential
        callable_whole = sequential or type(child).forward is nn.Sequential.forward
        inside = traced(child) if callable_whole else None
        if inside is not None:
            found.append(CallGraph(name, child, *inside, assumed=unseen))
        else:
            found += _graphs_of_parts(name, child, unseen)
    return found


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]
