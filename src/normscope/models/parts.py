"""What architectures are made from: layers without drawn weights, activations, checks of sizes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from numbers import Real

from torch import nn

from normscope.errors import ArgumentTypeError, InputError, ShapeError
from normscope.registry import unknown_name

# "linear": no layer at all, so that nothing is between a normalization and the next product.
ACTIVATIONS: dict[str, Callable[[], nn.Module] | None] = {
    "gelu": nn.GELU,
    "linear": None,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
}


def linear(in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
    """A Linear layer with uninitialized weights.

    The usual constructor would draw them from torch's global generator.

    Args:
        in_features: size of the input.
        out_features: size of the output.
        bias: whether there is a bias.
    """
    layer = nn.Linear(in_features, out_features, bias=bias, device="meta")
    return layer.to_empty(device="cpu")


def convolution(
    in_channels: int,
    out_channels: int,
    kernel_size: int,
    *,
    stride: int = 1,
    padding: int = 0,
    bias: bool = True,
) -> nn.Conv2d:
    """A two-dimensional convolution with uninitialized weights; see :func:`linear`.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: height and width of the filter.
        stride: step between two positions.
        padding: zeros added on each side.
        bias: whether there is a bias.
    """
    layer = nn.Conv2d(
        in_channels, out_channels, kernel_size, stride, padding, bias=bias, device="meta"
    )
    return layer.to_empty(device="cpu")


def activation_layers(name: str) -> list[nn.Module]:
    """Return a new layer of this activation in a list, which is empty for ``linear``.

    Args:
        name: gelu, linear, relu, sigmoid or tanh.

    Raises:
        UnknownNameError: if there is no such activation.

    >>> activation_layers("relu"), activation_layers("linear")
    ([ReLU()], [])
    """
    if name not in ACTIVATIONS:
        raise unknown_name("activation", name, ACTIVATIONS)
    layer = ACTIVATIONS[name]
    return [] if layer is None else [layer()]


def check_sizes(**sizes: int) -> None:
    """Raise unless every size is an integer of at least one.

    Args:
        **sizes: each under the name of the user's argument.

    Raises:
        ArgumentTypeError: if one is not an integer.
        InputError: if one is below one.

    >>> check_sizes(depth=4, width=1000)
    """
    for name, size in sizes.items():
        try:
            number = operator.index(size)
        except TypeError as error:
            raise ArgumentTypeError(f"{name} must be an integer, got {size!r}.") from error
        if number < 1:
            raise InputError(f"{name} must be at least 1, got {size!r}.")


def vector_size(input_shape: Sequence[int]) -> int:
    """Number of input features after flattening.

    Args:
        input_shape: without the batch.

    Raises:
        ShapeError: if there is no dimension, or an empty one.

    >>> vector_size((1, 28, 28))
    784
    """
    return math.prod(_check_shape(input_shape))


def image_shape(model: str, input_shape: Sequence[int]) -> tuple[int, int, int]:
    """Return the input shape as (channels, height, width).

    Args:
        model: its name, for the message.
        input_shape: without the batch.

    Raises:
        ShapeError: if there are not three sizes of at least one.

    >>> image_shape("vgg", (3, 32, 32))
    (3, 32, 32)
    """
    sizes = _check_shape(input_shape)
    if len(sizes) != 3:
        raise ShapeError(
            f"{model} takes images: expected input_shape=(channels, height, width), "
            f"got {input_shape!r}; use fully_connected or deep_linear for vectors."
        )
    channels, height, width = sizes
    return channels, height, width


def scale_channels(channels: int, width: float) -> int:
    """Channels times a width multiplier, rounded, at least one.

    Args:
        channels: of the network at width 1.
        width: the multiplier.

    Raises:
        InputError: if the multiplier is not a number above zero.

    >>> scale_channels(64, 0.25)
    16
    """
    if not isinstance(width, Real) or not 0 < width < float("inf"):
        raise InputError(f"width is a multiplier: expected a number above 0, got {width!r}.")
    return max(1, round(channels * width))


def _check_shape(input_shape: Sequence[int]) -> tuple[int, ...]:
    try:
        sizes = tuple(operator.index(size) for size in input_shape)
    except TypeError as error:
        raise ArgumentTypeError(
            f"input_shape must be a tuple of integers, got {input_shape!r}."
        ) from error
    if not sizes or min(sizes) < 1:
        raise ShapeError(
            f"input_shape needs at least one size, each at least 1, got {input_shape!r}."
        )
    return sizes
