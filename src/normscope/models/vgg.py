"""VGG networks for small images."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import pairwise

from torch import nn

from normscope.models.catalogue import NormFactory, architecture
from normscope.models.parts import (
    check_sizes,
    convolution,
    image_shape,
    linear,
    scale_channels,
)

# Channels of the 3x3 convolutions of each stage; 2x2 max-pooling ends a stage
# (simonyan2014, Table 1, columns A and D).
CONFIGURATION_A = ((64,), (128,), (256, 256), (512, 512), (512, 512))
CONFIGURATION_D = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


@architecture(initialization="glorot")
def vgg(
    norm: NormFactory,
    *,
    input_shape: Sequence[int] = (3, 32, 32),
    outputs: int = 10,
    width: float = 1.0,
) -> nn.Module:
    """VGG-like network for CIFAR-10: 8 convolutions, 3 linear layers (configuration A).

    An ``nn.Sequential`` of ``features``, ``flatten``, ``classifier`` (two hidden layers of 512
    units) and ``head``. santurkar2018 trains a "VGG-like network" without giving its layers. This
    is configuration A with linear layers sized for 32 x 32 images: the shallowest published one,
    and the one its authors could train from random weights, so that it can be trained with and
    without normalization. Normalization follows every convolution and no linear layer. Smaller
    images work: pooling keeps a last odd row.

    Reference: santurkar2018, Appendix A.1; simonyan2014, Table 1, column A.

    Args:
        norm: makes the normalization layers.
        input_shape: (channels, height, width).
        outputs: size of the last layer.
        width: multiplier of all hidden sizes; 0.25 is the quarter-width net.

    >>> vgg(norm="none", width=0.25).head
    Linear(in_features=128, out_features=10, bias=True)
    """
    hidden = scale_channels(512, width)
    return _network(norm, "vgg", CONFIGURATION_A, (hidden, hidden), input_shape, outputs, width)


@architecture(initialization="glorot")
def vgg16(
    norm: NormFactory,
    *,
    input_shape: Sequence[int] = (3, 32, 32),
    outputs: int = 10,
    width: float = 1.0,
) -> nn.Module:
    """VGG16 for CIFAR-10: 13 convolutions (configuration D) and one linear layer.

    An ``nn.Sequential`` of ``features``, ``flatten`` and ``head``: the usual form for 32 x 32
    images, without the two hidden linear layers of 4096 units, since one position remains.
    Normalization follows every convolution.

    Reference: simonyan2014, Table 1, column D; wei2018, Section 6.5.

    Args:
        norm: makes the normalization layers.
        input_shape: (channels, height, width).
        outputs: size of the last layer.
        width: multiplier of all hidden sizes.

    >>> vgg16(norm="none", width=0.25).head
    Linear(in_features=128, out_features=10, bias=True)
    """
    return _network(norm, "vgg16", CONFIGURATION_D, (), input_shape, outputs, width)


def _network(
    norm: NormFactory,
    name: str,
    stages: Sequence[Sequence[int]],
    hidden: Sequence[int],
    input_shape: Sequence[int],
    outputs: int,
    width: float,
) -> nn.Module:
    check_sizes(outputs=outputs)
    channels, *sides = image_shape(name, input_shape)
    parts = OrderedDict[str, nn.Module](
        features=_features(norm, stages, channels, width), flatten=nn.Flatten()
    )
    halvings = 2 ** len(stages)
    positions = math.prod(math.ceil(side / halvings) for side in sides)
    inputs = scale_channels(stages[-1][-1], width) * positions
    if hidden:
        sizes = pairwise((inputs, *hidden))
        layers = (layer for size in sizes for layer in (linear(*size), nn.ReLU()))
        parts["classifier"] = nn.Sequential(*layers)
        inputs = hidden[-1]
    parts["head"] = linear(inputs, outputs)
    return nn.Sequential(parts)


def _features(
    norm: NormFactory, stages: Sequence[Sequence[int]], inputs: int, width: float
) -> nn.Sequential:
    layers: list[nn.Module] = []
    for stage in stages:
        for channels in stage:
            maps = scale_channels(channels, width)
            layers += [convolution(inputs, maps, 3, padding=1), norm(maps, 2), nn.ReLU()]
            inputs = maps
        # ceil_mode changes nothing at sizes that halve evenly, and lets a 1x1 map pass
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return nn.Sequential(*layers)
