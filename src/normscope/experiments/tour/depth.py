"""How the gradient grows from the last layer to the first in a deep net before training."""

from __future__ import annotations

import math

import numpy as np
import xarray as xr

from normscope.experiments.tour.net import LOSS, Net
from normscope.experiments.yang2019.explosion import growth_per_layer
from normscope.experiments.yang2019.growth import batch_growth
from normscope.experiments.yang2019.stack import Stack, squared_gradients
from normscope.learning_rate.network_properties import gradient_growth
from normscope.probes import Scope

__all__ = ["depth", "expected_growth", "skips"]


def depth(net: Net, norm: str, seed: int, layers: int) -> xr.Dataset:
    """Gradients of a net of the same width with more layers.

    Reference: yang2019.

    Args:
        net: the network.
        norm: its normalization.
        seed: of weights and noise.
        layers: linear layers.

    Returns:
        ``gradient_norm`` (depth_layer) by each linear layer's own parameters, and ``growth``, the
        factor by which the squared gradient grows per layer, backwards.
    """
    problem, batch = net.problem(norm, seed, layers), net.batch()
    with Scope(problem.model, LOSS, probes="gradient_norms", seed=seed) as scope:
        scope.step(*batch)
    sizes = scope.results["gradient_norm"].isel(step=0).values
    growth = gradient_growth(problem, batch, seed)
    return xr.Dataset(
        {
            "gradient_norm": ("depth_layer", sizes),
            "growth": math.nan if growth is None else growth,
        },
        coords={"depth_layer": np.arange(1, len(sizes) + 1)},
    )


def skips(net: Net, seed: int, layers: int) -> xr.Dataset:
    """The same growth with BatchNorm in residual blocks.

    Args:
        net: the network.
        seed: of weights and of the random output.
        layers: blocks.

    Returns:
        ``growth_with_skips``.
    """
    x, _ = net.batch()
    inputs = math.prod(x.shape[1:])
    outputs = len(net.samples.classes)
    blocks = Stack("batch, skip", inputs, outputs, depth=layers, width=net.width, seed=seed)
    found = squared_gradients(blocks, x, seed)
    return xr.Dataset({"growth_with_skips": float(growth_per_layer(found))})


def expected_growth(net: Net) -> float:
    """The growth that theory expects of a wide net with BatchNorm at this batch size."""
    return batch_growth("relu", net.batch_size)
