"""Initial weights, drawn in one fixed order from their own generator.

Only Linear and convolution layers are drawn, in the order of ``network.modules()``; normalization
layers set their own parameters. Equal seeds therefore give equal weights for any normalization.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from normscope.errors import InputError
from normscope.registry import Registry

INITIALIZATIONS: Registry[Callable[..., None]] = Registry("initialization")


@INITIALIZATIONS.register
def glorot(network: nn.Module, generator: torch.Generator) -> None:
    r"""Uniform weights that keep the variance of signals and gradients, and zero biases.

    .. math:: W \sim U\left[-\sqrt{6 / (n_{in} + n_{out})}, \sqrt{6 / (n_{in} + n_{out})}\right]

    For a convolution the fans include the filter's positions.

    Reference: glorot2010, Eq. (16). Notation: n_in, n_out = fan in, fan out.

    Args:
        network: its Linear and convolution layers are initialized.
        generator: source of the random numbers.
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
        network: its Linear and convolution layers are initialized.
        generator: source of the random numbers.
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
