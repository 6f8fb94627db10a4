"""What functions and methods that a forward pass calls mean to the theory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from normscope.meanfield.activations import ACTIVATIONS, Rectifier
from normscope.meanfield.pointwise import Addition, Nonlinearity
from normscope.meanfield.pooling import AveragePool, Flatten
from normscope.meanfield.reading_modules import Made, Unsupported, gelu_of, tuples, window_of

__all__ = ["SIZE", "operation_of_call"]

SIZE = "size"  # stands for a value that is only a size

Places = dict[fx.Node, Any]


def operation_of_call(name: str, node: fx.Node, places: Places) -> Made:
    """The operation of a call.

    Args:
        name: of the function or method.
        node: the call.
        places: what the values before it are.

    Returns:
        The operation, None if it does nothing; Unsupported.HERE if there is no closure for it.
    """
    if name in _ACTIVATIONS:
        return Nonlinearity(ACTIVATIONS[_ACTIVATIONS[name]])
    rule = _RULES.get(name)
    if rule is None or (rule not in _TAKE_VALUES and len(node.all_input_nodes) > 1):
        return Unsupported.HERE  # a slope or dimension that is computed has no number yet
    return rule(name, node, places)


def _argument(node: fx.Node, position: int, name: str, default: Any = None) -> Any:
    if len(node.args) > position:
        return node.args[position]
    return node.kwargs.get(name, default)


def _addition(name: str, node: fx.Node, places: Places) -> Made:
    return Addition() if len(node.args) == 2 and not node.kwargs else Unsupported.HERE


def _flatten(name: str, node: fx.Node, places: Places) -> Made:
    start, end = _argument(node, 1, "start_dim", 0), _argument(node, 2, "end_dim", -1)
    return Flatten() if (start, end) == (1, -1) else Unsupported.HERE


def _reshape(name: str, node: fx.Node, places: Places) -> Made:
    """``x.view(len(x), -1)`` and the like flatten."""
    sizes = node.args[1:]
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        sizes = tuple(sizes[0])
    return Flatten() if len(sizes) == 2 and sizes[1] == -1 else Unsupported.HERE


def _mean(name: str, node: fx.Node, places: Places) -> Made:
    """A mean over all positions is global pooling."""
    dims = _argument(node, 1, "dim")
    if dims is None:
        return Unsupported.HERE
    dims = sorted(dim if isinstance(dim, int) else -99 for dim in tuples(dims, 1))
    count = len(dims)
    if dims not in ([*range(2, 2 + count)], [*range(-count, 0)]):
        return Unsupported.HERE
    keep = bool(_argument(node, 2, "keepdim", False))
    return AveragePool(outputs=(1,) * count, drop_ones=not keep)


def _average(name: str, node: fx.Node, places: Places) -> Made:
    dimensions = int(name[-2])
    if _argument(node, 4, "ceil_mode", False) or _argument(node, 6, "divisor_override"):
        return Unsupported.HERE
    kernel, stride = _argument(node, 1, "kernel_size"), _argument(node, 2, "stride")
    window = window_of(kernel, stride, _argument(node, 3, "padding", 0), 1, dimensions)
    return AveragePool(window, count_padding=bool(_argument(node, 5, "count_include_pad", True)))


def _adaptive(name: str, node: fx.Node, places: Places) -> Made:
    sizes = tuples(_argument(node, 1, "output_size"), int(name[-2]))
    return Unsupported.HERE if None in sizes else AveragePool(outputs=sizes)


def _leaky(name: str, node: fx.Node, places: Places) -> Made:
    slope = _argument(node, 1, "negative_slope", 0.01)
    return Nonlinearity(Rectifier(slope, "leaky_relu"))


def _gelu(name: str, node: fx.Node, places: Places) -> Made:
    return gelu_of(_argument(node, 1, "approximate", "none"))


def _nothing(name: str, node: fx.Node, places: Places) -> Made:
    return None


def _dropout(name: str, node: fx.Node, places: Places) -> Made:
    """Followed in eval mode, a call of the function hands its input on if it asks for the mode."""
    return Unsupported.HERE if _argument(node, 2, "training", True) else None


_ACTIVATIONS = {
    "relu": "relu",
    "relu_": "relu",
    "tanh": "tanh",
    "erf": "erf",
    "silu": "silu",
    "sigmoid": "sigmoid",
}
_RULES: dict[str, Callable[[str, fx.Node, Places], Made]] = {
    "add": _addition,
    "iadd": _addition,
    "add_": _addition,
    "flatten": _flatten,
    "view": _reshape,
    "reshape": _reshape,
    "mean": _mean,
    "leaky_relu": _leaky,
    "gelu": _gelu,
    "contiguous": _nothing,
    "dropout": _dropout,
    **{f"avg_pool{n}d": _average for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": _adaptive for n in (1, 2, 3)},
}
_TAKE_VALUES = (_addition, _reshape)  # the other rules have one input, and numbers beside it
