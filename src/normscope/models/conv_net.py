"""The convolutional network of the mean-field paper."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from normscope.errors import InputError, ShapeError
from normscope.models.catalogue import NormFactory, architecture
from normscope.models.parts import (
    activation_layers,
    check_sizes,
    convolution,
    image_shape,
    linear,
)


@architecture(initialization="meanfield")
def conv_net(
    norm: NormFactory,
    *,
    input_shape: Sequence[int] = (3, 32, 32),
    outputs: int = 10,
    channels: Sequence[int] = (30, 60, 90),
    kernel: int = 3,
    stride: int = 2,
    padding: int = 0,
    activation: str = "relu",
) -> nn.Module:
    """Convolutional network: strided convolutions, then one linear layer on all positions.

    An ``nn.Sequential`` of ``features`` (three modules for each convolution), ``flatten`` and
    ``head``. The paper mentions no padding; the default is none.

    Reference: wei2018, Section 4.

    Args:
        norm: makes the normalization layers.
        input_shape: (channels, height, width).
        outputs: size of the last layer.
        channels: of each convolution.
        kernel: height and width of the filters.
        stride: step between two positions of a filter.
        padding: zeros added on each side of the images; ``padding=1`` serves small images.
        activation: gelu, linear, relu, sigmoid or tanh.

    >>> conv_net(norm="none").head  # 32 -> 15 -> 7 -> 3, so 90 * 3 * 3
    Linear(in_features=810, out_features=10, bias=True)
    """
    check_sizes(outputs=outputs, kernel=kernel, stride=stride)
    if padding < 0:
        raise InputError(f"padding must be at least 0, got {padding!r}.")
    inputs, height, width = image_shape("conv_net", input_shape)
    features: list[nn.Module] = []
    for maps in channels:
        check_sizes(channels=maps)
        features += [
            convolution(inputs, maps, kernel, stride=stride, padding=padding),
            norm(maps, 2),
            *activation_layers(activation),
        ]
        inputs = maps
        height, width = ((side + 2 * padding - kernel) // stride + 1 for side in (height, width))
        if min(height, width) < 1:
            raise _too_small(input_shape, kernel, padding)
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            features=nn.Sequential(*features),
            flatten=nn.Flatten(),
            head=linear(inputs * height * width, outputs),
        )
    )


def _too_small(input_shape: Sequence[int], kernel: int, padding: int) -> ShapeError:
    enough = (kernel - 1) // 2
    remedy = f"padding={enough}" if enough > padding else "fewer channels, or a smaller kernel"
    return ShapeError(
        f"conv_net has more convolutions than an image of {tuple(input_shape)[1:]} leaves room "
        f"for with a {kernel}x{kernel} kernel and padding={padding}; use larger images or {remedy}."
    )
