"""Calls in a forward pass that depend on where a tensor has its channels and positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from torch import Tensor, fx

from normscope.meanfield.arrangements import ConstantTokens, Scale, Shift, moments_over_channels
from normscope.meanfield.combinations import Addition, Concatenation, Product
from normscope.meanfield.graph import INPUT
from normscope.meanfield.reading.builder import TENSOR, Builder, Parts, Units
from normscope.meanfield.reading.layout import Layout, aligned, averaged
from normscope.meanfield.reading.rules import argument, call_name

RELABELLING = frozenset(
    (
        *("view", "reshape", "flatten", "unflatten", "permute", "transpose", "swapaxes", "t"),
        *("swapdims", "movedim", "moveaxis", "squeeze", "unsqueeze", "contiguous", "getitem"),
        *("chunk", "split", "unbind", "tensor_split", "select", "narrow", "roll", "flip"),
        *("expand", "expand_as", "getattr", "pixel_unshuffle", "pixel_shuffle", "channel_shuffle"),
    )
)
"""Functions and methods that move elements and leave their values alone."""
_ATTRIBUTES = ("T", "mT")


def relabel(builder: Builder, node: fx.Node) -> Units | Parts | None:
    """Return the value of a call that only moves elements; None if it does something else."""
    name, source = call_name(node), argument(node, 0, "input")
    if name == "getattr" and node.args[1] not in _ATTRIBUTES:
        return None
    value = builder.value(source)
    if isinstance(value, Parts) and name == "getitem":
        at = node.args[1]
        return value.items[at] if isinstance(at, int) and at < len(value.items) else None
    if not isinstance(value, Units) or value.layout is None:
        return None
    moved = _run_on(builder, node, source, value.layout.index)
    return None if moved is None else _of(builder, node, value, moved)


def _run_on(builder: Builder, node: fx.Node, source: fx.Node, index: Tensor) -> Any:
    """Call the function of a node on indices in place of a tensor."""
    args, options = builder.evaluator.arguments(node, {source: index})
    try:
        if node.op == "call_method":
            return getattr(args[0], str(node.target))(*args[1:], **options)
        return node.target(*args, **options)  # type: ignore[operator]  # a function
    except Exception:  # of other sizes than the forward pass has, or for values only
        return None


def _of(builder: Builder, node: fx.Node, value: Units, moved: Any) -> Units | Parts | None:
    assert value.layout is not None
    sizes = (value.layout.channels, value.layout.positions)
    if isinstance(moved, (tuple, list)):
        return Parts(tuple(Units(value.node, Layout(each, *sizes)) for each in moved))
    if not isinstance(moved, Tensor):
        return None
    layout = Layout(moved, *sizes)
    return flattened(builder, builder.name(node), Units(value.node, layout))


def flattened(builder: Builder, name: str, units: Units) -> Units:
    """Return one vector for each sample if the tensor has become that."""
    if units.layout is None or not units.layout.is_flat:
        return units
    found = builder.arrange(name, units, (1,))
    return units if found is None else found[0]


def mean(builder: Builder, node: fx.Node) -> Units | None:
    """Return the mean over positions."""
    units = builder.units(argument(node, 0, "input"))
    dims = builder.evaluator.value(argument(node, 1, "dim"))
    shape = builder.evaluator.shape(node)
    if units is None or units.layout is None or dims is None or shape is None:
        return None
    dims = (dims,) if isinstance(dims, int) else dims
    plain = isinstance(dims, (tuple, list)) and all(isinstance(each, int) for each in dims)
    found = averaged(units.layout, dims) if plain else None
    if found is None:
        return None
    operation, layout = found
    layout = Layout(layout.index.reshape(shape), layout.channels, layout.positions)
    return Units(builder.add(builder.name(node), operation, (units.node,)), layout)


def add(builder: Builder, node: fx.Node) -> Units | None:
    """Return a sum of two branches, or of a branch and a parameter."""
    if len(node.args) != 2 or node.kwargs:
        return None
    if (units := _of_constant(builder, node, Shift)) is not None:
        return units
    return _of_branches(builder, node, Addition())


def multiply(builder: Builder, node: fx.Node) -> Units | None:
    """Return a product of two branches, or of a branch and a parameter or number."""
    if len(node.args) != 2 or node.kwargs:
        return None
    numbers = [found for each in node.args if (found := builder.number(each)) is not None]
    if numbers:
        return _scaled(builder, node, numbers[0])
    if (units := _of_constant(builder, node, Scale)) is not None:
        return units
    return _of_branches(builder, node, Product())


def divide(builder: Builder, node: fx.Node) -> Units | None:
    """Return a quotient by a number."""
    divisor = builder.number(node.args[1]) if len(node.args) == 2 else None
    if node.kwargs or not divisor:
        return None
    return _scaled(builder, node, 1 / divisor)


def _scaled(builder: Builder, node: fx.Node, number: float) -> Units | None:
    units = next((u for each in node.args if (u := builder.units(each)) is not None), None)
    if units is None or not math.isfinite(number):
        return None
    values = np.array([[number]])
    operation = Scale(*moments_over_channels(values))
    return Units(builder.add(builder.name(node), operation, (units.node,)), units.layout)


def _of_constant(builder: Builder, node: fx.Node, kind: type[Shift] | type[Scale]) -> Units | None:
    """Return a branch shifted or scaled by a parameter or buffer of the model."""
    constants = [each for each in node.args if builder.value(each) is TENSOR]
    found = [u for each in node.args if (u := builder.units(each)) is not None]
    if len(constants) != 1 or len(found) != 1 or found[0].layout is None:
        return None
    units = builder.compact(builder.name(node), found[0])
    tensor = constant(builder, constants[0])
    if tensor is None or units.node == INPUT or units.layout is None:
        return None
    values = units.layout.values(tensor)
    if values is None or not np.isfinite(values).all():
        return None
    operation = kind(*moments_over_channels(values))
    return Units(builder.add(builder.name(node), operation, (units.node,)), units.layout)


def constant(builder: Builder, node: Any) -> Tensor | None:
    """Return a parameter or buffer of the user's model, or what is computed from some alone.

    Tensors that the forward pass makes itself may be others the next time.
    """
    if not isinstance(node, fx.Node) or builder.value(node) is not TENSOR:
        return None
    open_ = [node]
    while open_:
        at = open_.pop()
        if at.op == "get_attr" and builder.attribute(at) is None:
            return None
        if at.op != "get_attr" and not at.all_input_nodes:
            return None  # such as torch.randn
        open_ += [each for each in at.all_input_nodes if builder.value(each) is TENSOR]
    value = builder.evaluator.value(node)
    return value if isinstance(value, Tensor) and not value.is_meta else None


def _of_branches(builder: Builder, node: fx.Node, operation: Addition | Product) -> Units | None:
    """Return two branches combined element by element."""
    found = [builder.units(each) for each in node.args]
    first, second = found
    if first is None or second is None or first.layout is None or second.layout is None:
        return None
    name = builder.name(node)
    first, second = builder.compact(name, first), builder.compact(name, second)
    for one, other in ((first, second), (second, first)):
        match = aligned(one.layout, other.layout) if one.layout and other.layout else None
        if match is not None:
            operations, layout = match
            moved = builder.rearranged(name, other, operations, layout)
            pair = (one.node, moved.node) if one is first else (moved.node, one.node)
            return Units(builder.add(name, operation, pair), layout)
    return None


def concatenate(builder: Builder, node: fx.Node) -> Units | None:
    """Return channels side by side, or constant tokens before others."""
    tensors = argument(node, 0, "tensors")
    dim = builder.evaluator.value(argument(node, 1, "dim", 0))
    if not isinstance(tensors, (tuple, list)) or not isinstance(dim, int):
        return None
    found = [builder.units(each) for each in tensors]
    if found[0] is None and len(found) == 2:
        return _with_tokens(builder, node, tensors, dim)
    parts, rows = [], []
    for units in found:
        if units is None or units.layout is None:
            return None
        arranged = builder.arrange(builder.name(node), units, (dim,), merge=False)
        if arranged is None or units.node == INPUT:
            return None
        parts.append(arranged[0])
        rows.append(arranged[1])
    layouts = [each.layout for each in parts]
    if len({each.positions for each in rows}) > 1:
        return None
    total = sum(each.channels for each in layouts if each is not None)
    at = builder.add(builder.name(node), Concatenation(), [each.node for each in parts])
    return Units(at, rows[0].layout_of(total))


def _with_tokens(builder: Builder, node: fx.Node, tensors: Sequence[Any], dim: int) -> Units | None:
    """Return a constant, such as a class token, before the positions of a map."""
    tensor, units = constant(builder, tensors[0]), builder.units(tensors[1])
    if tensor is None or units is None or units.layout is None or units.node == INPUT:
        return None
    total = units.layout.index.dim()
    channels = [d for d in range(1, total) if d != dim % total]
    found = builder.arrange(builder.name(node), units, channels, merge=False)
    if found is None or not dim % total or tensor.dim() != total:
        return None
    moved = tensor.detach().movedim(dim % total, -1).double().cpu()
    if not bool((moved == moved[:1]).all()) or not bool(moved.isfinite().all()):
        return None
    values = moved[0].reshape(-1, moved.shape[-1]).numpy()
    operation = ConstantTokens(values.mean(0), values.T @ values / len(values))
    at = builder.add(builder.name(node), operation, (found[0].node,))
    shape = builder.evaluator.shape(node)
    if shape is None or len(channels) != 1:
        return None
    return Units(at, Layout.fresh(shape, channels[0]))


HANDLERS: dict[str, Callable[[Builder, fx.Node], Units | None]] = {
    "mean": mean,
    **dict.fromkeys(("add", "iadd", "add_", "__radd__"), add),
    **dict.fromkeys(("mul", "imul", "mul_", "multiply", "__rmul__"), multiply),
    **dict.fromkeys(("div", "truediv", "itruediv", "div_"), divide),
    **dict.fromkeys(("cat", "concat", "concatenate"), concatenate),
}
"""Calls whose meaning depends on the layout of their inputs, by name."""
