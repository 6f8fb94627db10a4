"""Checks of the sizes that the architectures share."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from numbers import Real

from normscope.errors import ArgumentTypeError, InputError, ShapeError

__all__ = ["image_shape", "positive", "scaled", "vector_size"]


def positive(**sizes: int) -> None:
    """Refuse sizes that are not whole numbers of at least one.

    Args:
        **sizes: each under the name of the user's argument.

    Raises:
        ArgumentTypeError: if one is not an integer.
        InputError: if one is below one.

    >>> positive(depth=4, width=1000)
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

    Returns:
        The product of the sizes.

    Raises:
        ShapeError: if there is no dimension, or an empty one.

    >>> vector_size((1, 28, 28))
    784
    """
    size = 1
    for length in _sizes(input_shape):
        size *= length
    return size


def image_shape(model: str, input_shape: Sequence[int]) -> tuple[int, int, int]:
    """The input shape as (channels, height, width).

    Args:
        model: its name, for the message.
        input_shape: without the batch.

    Returns:
        The three sizes.

    Raises:
        ShapeError: if there are not three sizes of at least one.

    >>> image_shape("vgg", (3, 32, 32))
    (3, 32, 32)
    """
    sizes = _sizes(input_shape)
    if len(sizes) != 3:
        raise ShapeError(
            f"{model} takes images: expected input_shape=(channels, height, width), "
            f"got {input_shape!r}; use fully_connected or deep_linear for vectors."
        )
    channels, height, width = sizes
    return channels, height, width


def scaled(channels: int, width: float) -> int:
    """Channels of a network made wider or narrower, at least one.

    Args:
        channels: of the network at width 1.
        width: the multiplier.

    Returns:
        The rounded product.

    Raises:
        InputError: if the multiplier is not a number above zero.

    >>> scaled(64, 0.25)
    16
    """
    if not isinstance(width, Real) or not 0 < width < float("inf"):
        raise InputError(f"width is a multiplier: expected a number above 0, got {width!r}.")
    return max(1, round(channels * width))


def _sizes(input_shape: Sequence[int]) -> tuple[int, ...]:
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
