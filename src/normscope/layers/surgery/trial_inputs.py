"""Inputs that a model may take, guessed from the first layers of its forward pass."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn

from normscope.layers.kinds import is_batch_norm, is_lp_norm
from normscope.layers.surgery.call_graph import PLAIN_LAYERS, CallGraph
from normscope.layers.surgery.fold_weights import in_channels, spatial_dimensions

Shapes = list[tuple[int, ...]]
"""One shape for each input."""

_SAMPLES = 3
_COMMON_SIZES = (8, 16, 28, 32, 64, 224)  # of images and sequences
_OTHER_SIZES = tuple(size for size in range(1, 41) if size not in _COMMON_SIZES)
_LARGEST_INPUT = 2**20  # entries


def first_layers(model: nn.Module, graphs: Sequence[CallGraph]) -> list[nn.Module]:
    """Return the first layer that each required input reaches; empty if there is none.

    Args:
        model: any model.
        graphs: of its forward pass.

    Returns:
        One layer for each input. Without a graph of the whole model, its first layer for all.
    """
    if graphs and graphs[0].whole:
        starts = [node for node in graphs[0].graph.nodes if node.op == "placeholder"]
        found = [_first_layer(graphs[0], node) for node in starts]
    else:
        parameters = inspect.signature(model.forward).parameters.values()
        required = [p for p in parameters if p.default is p.empty and p.kind in _POSITIONAL]
        found = [None for _ in required]
    default = next(filter(_has_shape, model.modules()), None)
    return [layer or default for layer in found] if default is not None else []


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _first_layer(graph: CallGraph, start: fx.Node) -> nn.Module | None:
    waiting, seen = [start], {start}
    for node in waiting:  # grows: breadth first
        module = graph.module(node)
        if module is not None and _has_shape(module):
            return module
        waiting += [user for user in node.users if user not in seen]
        seen.update(node.users)
    return None


def _has_shape(module: nn.Module) -> bool:
    others = (nn.LayerNorm, nn.GroupNorm, nn.Embedding, nn.RNNBase)
    is_norm = is_batch_norm(module) or is_lp_norm(module)
    return is_norm or isinstance(module, (*PLAIN_LAYERS, *others))


def candidate_shapes(layers: Sequence[nn.Module]) -> Iterator[Shapes]:
    """Yield shapes of inputs for these first layers, the most usual first.

    >>> next(candidate_shapes([nn.Conv1d(2, 3, 1), nn.Linear(5, 1)]))
    [(3, 2, 8), (3, 5)]
    """
    seen = set()
    sizes = (*_COMMON_SIZES, *_OTHER_SIZES)
    others = [(size, layout) for layout in (1, 2) for size in _COMMON_SIZES]
    for size, layout in [*((size, 0) for size in sizes), *others]:
        layouts = [_layouts(layer, size) for layer in layers]
        shapes = [(_SAMPLES, *each[min(layout, len(each) - 1)]) for each in layouts]
        small = all(torch.Size(shape).numel() <= _LARGEST_INPUT for shape in shapes)
        if small and tuple(shapes) not in seen:
            seen.add(tuple(shapes))
            yield shapes


def _layouts(layer: Any, size: int) -> Shapes:
    """Return shapes of one sample that a layer may take, behind a permutation if need be."""
    if isinstance(layer, nn.Embedding):
        return [(size,)]
    if isinstance(layer, nn.RNNBase):
        return [(size, layer.input_size)]
    if isinstance(layer, nn.Linear):
        return [(layer.in_features,), (size, layer.in_features)]
    if isinstance(layer, nn.LayerNorm):
        return [layer.normalized_shape, (size, *layer.normalized_shape)]
    dimensions = spatial_dimensions(layer)
    if isinstance(layer, PLAIN_LAYERS):
        channels = in_channels(layer)
    else:
        channels = getattr(layer, "num_features", None) or layer.num_channels
        if dimensions in (None, 1):
            return [(channels,), (channels, size), (channels, size, size)]
    positions = (size,) * (dimensions or 0)
    return [(channels, *positions), (*positions, channels), positions]


def as_input(values: Tensor, layer: nn.Module) -> Tensor:
    """Return values that a first layer takes: indices for an embedding, else as they are."""
    if not isinstance(layer, nn.Embedding):
        return values
    return (values.abs() * layer.num_embeddings).long() % layer.num_embeddings
