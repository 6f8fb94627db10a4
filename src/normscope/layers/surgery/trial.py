"""Trial runs: whether a changed copy of a model still gives the same outputs."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree

from normscope.layers.kinds import averages_over_batch
from normscope.layers.surgery.call_graph import CallGraph
from normscope.layers.surgery.plain_layers import Layer, in_channels, spatial_dimensions
from normscope.problem.batch import copy_batch, follow_model, to_double
from normscope.problem.copies import copy_module
from normscope.problem.error_messages import FitCheck, is_finite
from normscope.problem.isolation import RandomGenerators

Change = Callable[[nn.Module], nn.Module]
"""Returns a changed copy of a model."""

_TRIED_FULLY = 4  # shapes of inputs
_LARGEST_DOUBLE = 2**25  # parameter entries of a model that is compared in double precision
_TOLERANCE = 1e-8  # in double precision, of the largest output
_Shapes = list[tuple[int, ...]]  # one for each input
_SAMPLES = 3
_COMMON_SIZES = (8, 16, 28, 32, 64, 224)  # of images and sequences
_OTHER_SIZES = tuple(size for size in range(1, 41) if size not in _COMMON_SIZES)
_LARGEST_INPUT = 2**20  # entries


@dataclass(frozen=True)
class Trial:
    """Outputs of a model in eval mode, with which those of a changed copy are compared.

    Attributes:
        model: a copy of the model, in double precision if it runs so.
        inputs: what it is called with: positional arguments or a dictionary of named ones.
        expected: the tensors in its output.
        tolerance: largest difference that counts as rounding, relative to the largest output.
    """

    model: nn.Module
    inputs: Any
    expected: list[Tensor]
    tolerance: float

    def difference(self, changed: Change) -> str | None:
        """Return what a change does to the outputs; None if they stay the same up to rounding."""
        try:
            change = self.change_of_outputs(changed)
        except Exception as error:  # the forward pass may need what the change removes
            reason = str(error).partition("\n")[0].rstrip(".")
            return f"without it the forward pass raises {type(error).__name__}: {reason}"
        if change <= self.tolerance:
            return None
        return f"folding it changes the outputs by {change:.2g} of the largest"

    def change_of_outputs(self, changed: Change) -> float:
        """Return the largest difference of an output, relative to the largest output."""
        found = _outputs(changed(self.model), self.inputs)
        if [each.shape for each in found] != [each.shape for each in self.expected]:
            return math.inf
        pairs = zip(found, self.expected, strict=True)
        return max(_relative_difference(*pair) for pair in pairs)


def make_trial(model: nn.Module, inputs: Any) -> Trial | None:
    """Return a trial on given inputs.

    Args:
        model: any model; it is not changed.
        inputs: a tensor, a tuple of positional arguments or a dictionary of named ones.

    Returns:
        The trial; None if the outputs hold no finite numbers to compare.

    Raises:
        MisfitError: if the inputs do not fit the model.
    """
    inputs = inputs if isinstance(inputs, tuple | Mapping) else (inputs,)
    inputs = follow_model(inputs, model)
    trial = None
    if sum(parameter.numel() for parameter in model.parameters()) <= _LARGEST_DOUBLE:
        try:
            trial = _trial(copy_module(model).double(), to_double(inputs), _TOLERANCE)
        except Exception:  # a model may insist on its precision
            trial = None
    if trial is None:
        trial = _trial(copy_module(model), inputs, _rounding(model))
    return trial if trial.expected and all(map(is_finite, trial.expected)) else None


def _trial(model: nn.Module, inputs: Any, tolerance: float) -> Trial:
    model = model.eval()
    called = copy_module(model)  # the first call of a model may change it
    with FitCheck(called, inputs):
        expected = _outputs(called, inputs)
    return Trial(model, inputs, expected, tolerance)


def _rounding(model: nn.Module) -> float:
    """Return a relative difference of outputs that rounding may cause."""
    dtypes = [each.dtype for each in model.parameters() if each.is_floating_point()]
    return 3 * math.sqrt(max((torch.finfo(dtype).eps for dtype in dtypes), default=1e-7))


def _outputs(model: nn.Module, inputs: Any) -> list[Tensor]:
    """Return the tensors in a model's output, the random draws being always the same."""
    copied = copy_batch(inputs)
    with torch.no_grad(), RandomGenerators(model).preserved(seed=0):
        output = model(**copied) if isinstance(copied, Mapping) else model(*copied)
    leaves = [leaf for each in pytree.tree_leaves(output) for leaf in _parts(each)]
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _parts(value: Any) -> list[Any]:
    """Return what an output object holds, such as a dataclass."""
    is_object = not isinstance(value, Tensor) and hasattr(value, "__dict__")
    return pytree.tree_leaves(vars(value)) if is_object else [value]


def _relative_difference(found: Tensor, expected: Tensor) -> float:
    if expected.numel() == 0:
        return 0.0
    wide = torch.complex128 if expected.is_complex() else torch.float64
    difference = (found.to(wide) - expected.to(wide)).abs().max()
    error = difference / expected.to(wide).abs().max().clamp_min(torch.finfo(wide).tiny)
    return float(error.nan_to_num(torch.inf))


def find_trial(model: nn.Module, graphs: Sequence[CallGraph]) -> Trial | None:
    """Return a trial on random inputs that fit the first layers of the model.

    Args:
        model: any model; it is not changed.
        graphs: of its forward pass.

    Returns:
        The trial; None if no inputs were found that it takes.
    """
    layers = _first_layers(model, graphs)
    for shapes in _fitting_shapes(model, layers) if layers else ():
        for draw in (torch.randn, torch.rand):  # negative inputs may give NaN
            generator = torch.Generator().manual_seed(0)
            drawn = [draw(shape, generator=generator) for shape in shapes]
            with suppress(Exception):  # a model may raise anything
                trial = make_trial(model, tuple(map(_as_input, drawn, layers)))
                if trial is not None:
                    return trial
    return None


def _fitting_shapes(model: nn.Module, layers: Sequence[nn.Module]) -> Iterator[_Shapes]:
    """Yield shapes that the model takes; all but the first few are tried on the meta device."""
    candidates = list(_candidate_shapes(layers))
    probe = copy_module(model).eval()
    for number, shapes in enumerate(candidates):
        with suppress(Exception):  # a model may raise anything
            if number == _TRIED_FULLY:
                probe = probe.to("meta")  # which computes nothing, but takes seconds to load
            inputs = tuple(map(_as_input, (torch.zeros(shape) for shape in shapes), layers))
            _outputs(probe, follow_model(inputs, probe))
            yield shapes


def _first_layers(model: nn.Module, graphs: Sequence[CallGraph]) -> list[nn.Module]:
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
    others = nn.LayerNorm | nn.GroupNorm | nn.Embedding | nn.RNNBase
    return averages_over_batch(module) or isinstance(module, Layer | others)


def _candidate_shapes(layers: Sequence[nn.Module]) -> Iterator[_Shapes]:
    """Yield shapes of inputs for these first layers, the most usual first.

    >>> next(_candidate_shapes([nn.Conv1d(2, 3, 1), nn.Linear(5, 1)]))
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


def _layouts(layer: Any, size: int) -> _Shapes:
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
    if isinstance(layer, Layer):
        channels = in_channels(layer)
    else:
        channels = getattr(layer, "num_features", None) or layer.num_channels
        if dimensions in (None, 1):
            return [(channels,), (channels, size), (channels, size, size)]
    positions = (size,) * (dimensions or 0)
    return [(channels, *positions), (*positions, channels), positions]


def _as_input(values: Tensor, layer: nn.Module) -> Tensor:
    """Return values that a first layer takes: indices for an embedding, else as they are."""
    if not isinstance(layer, nn.Embedding):
        return values
    return (values.abs() * layer.num_embeddings).long() % layer.num_embeddings


def trace_differs(root: nn.Module, graph: fx.Graph, inputs: Any) -> bool:
    """Return whether traced calls give other outputs than the forward pass they were traced from.

    They do if it branches on how a traced tensor differs from a real one, such as its type.

    Args:
        root: the module that was traced.
        graph: its calls.
        inputs: a tensor.

    Returns:
        False also if the forward pass does not take the inputs, or gives no finite outputs.
    """
    with suppress(Exception):  # a model may raise anything
        placed = follow_model((inputs,), root)
        trial = Trial(root, placed, _outputs(root, placed), _rounding(root))
        change = trial.change_of_outputs(lambda model: fx.GraphModule(model, graph))
        return change > trial.tolerance and all(map(is_finite, trial.expected))
    return False
