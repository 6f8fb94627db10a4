"""Initial weights, drawn in one fixed order from a generator of their own.

Only Linear and convolution layers are drawn, in the order of ``network.modules()``; normalization
layers set their own parameters. So equal seeds give equal weights whatever the normalization is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeAlias

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from normscope.errors import InputError
from normscope.registry import Registry

__all__ = ["INITIALIZATIONS", "convolution", "glorot", "linear", "meanfield"]

Initialization: TypeAlias = Callable[..., None]

INITIALIZATIONS: Registry[Initialization] = Registry("initialization")


def linear(in_features: int, out_features: int, bias: bool = True) -> nn.Linear:
    """A Linear layer whose weights are not drawn yet.

    The usual constructor would draw them from torch's global generator, which must stay untouched.

    Args:
        in_features: size of the input.
        out_features: size of the output.
        bias: whether there is a bias.

    Returns:
        The layer, with memory of unknown content.
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
    """A two-dimensional convolution whose weights are not drawn yet; see :func:`linear`.

    Args:
        in_channels: channels of the input.
        out_channels: channels of the output.
        kernel_size: height and width of the filter.
        stride: step between two positions.
        padding: zeros added on each side.
        bias: whether there is a bias.

    Returns:
        The layer, with memory of unknown content.
    """
    layer = nn.Conv2d(
        in_channels,
        out_channels,
        kernel_size,
        stride=stride,
        padding=padding,
        bias=bias,
        device="meta",
    )
    return layer.to_empty(device="cpu")


@INITIALIZATIONS.register
def glorot(network: nn.Module, generator: torch.Generator) -> None:
    r"""Uniform weights that keep the variance of signals and gradients, and zero biases.

    .. math:: W \sim U\left[-\sqrt{6 / (n_{in} + n_{out})}, \sqrt{6 / (n_{in} + n_{out})}\right]

    For a convolution the fans count its filter's positions too.

    Reference: glorot2010, Eq. (16). Notation: n_in, n_out = fan in, fan out.

    Args:
        network: whose Linear and convolution layers are set.
        generator: the source of the numbers.
    """
    for layer in _weighted_layers(network):
        nn.init.xavier_uniform_(layer.weight, generator=generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


@INITIALIZATIONS.register
def meanfield(
    network: nn.Module,
    generator: torch.Generator,
    *,
    sigma_w2: float = 2.0,
    sigma_b2: float = 0.5,
) -> None:
    r"""Normal weights and biases with the variances of the mean-field theory.

    .. math:: W \sim N(0, \sigma_w^2 / N), \qquad b \sim N(0, \sigma_b^2)

    Reference: wei2018, Section 3.1 and, for the default values, Section 4.
    Notation: N = inputs of a unit: features, or channels times positions of the filter.

    Args:
        network: whose Linear and convolution layers are set.
        generator: the source of the numbers.
        sigma_w2: variance of a weight times the number of inputs.
        sigma_b2: variance of a bias.

    Raises:
        InputError: if a variance is negative or not finite.
    """
    for name, variance in (("sigma_w2", sigma_w2), ("sigma_b2", sigma_b2)):
        if not (math.isfinite(variance) and variance >= 0):
            raise InputError(f"{name} is a variance: expected a number >= 0, got {variance!r}.")
    for layer in _weighted_layers(network):
        inputs = layer.weight[0].numel()
        nn.init.normal_(layer.weight, std=math.sqrt(sigma_w2 / inputs), generator=generator)
        if layer.bias is not None:
            nn.init.normal_(layer.bias, std=math.sqrt(sigma_b2), generator=generator)


def _weighted_layers(network: nn.Module) -> Iterator[nn.Linear | _ConvNd]:
    for layer in network.modules():
        if isinstance(layer, nn.Linear | _ConvNd):
            yield layer
