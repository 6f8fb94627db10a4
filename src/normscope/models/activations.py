"""Pointwise activations by name."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from normscope.registry import unknown_name

__all__ = ["ACTIVATIONS", "activation_layers"]

# "linear": no layer at all, so that nothing stands between a normalization and the next product.
ACTIVATIONS: dict[str, Callable[[], nn.Module] | None] = {
    "gelu": nn.GELU,
    "linear": None,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


def activation_layers(name: str) -> list[nn.Module]:
    """A new layer of this activation in a list, which is empty for ``linear``.

    Args:
        name: gelu, linear, relu, sigmoid or tanh.

    Returns:
        None or one layer, to be added to a chain.

    Raises:
        UnknownNameError: if there is no such activation.

    >>> activation_layers("relu"), activation_layers("linear")
    ([ReLU()], [])
    """
    if name not in ACTIVATIONS:
        raise unknown_name("activation", name, ACTIVATIONS)
    layer = ACTIVATIONS[name]
    return [] if layer is None else [layer()]
