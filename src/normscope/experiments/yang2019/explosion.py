"""Gradient explosion: how fast the squared gradient grows from layer to layer at initialization."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from normscope.data import gaussian_inputs
from normscope.experiments.recipe import Progress, experiment
from normscope.experiments.yang2019.explosion_claims import INPUTS, explosion_claims
from normscope.experiments.yang2019.growth import (
    ACTIVATIONS,
    batch_growth,
    layer_growth,
    residual_growth,
)
from normscope.experiments.yang2019.settings import known_names, whole_number, whole_numbers
from normscope.experiments.yang2019.stack import ARCHITECTURES, Stack, squared_gradients
from normscope.plots.depth import gradient_growth
from normscope.results import Store

__all__ = ["explosion", "growth_per_layer"]

OUTPUTS = 10


@experiment(
    "yang2019/explosion",
    claims=explosion_claims,
    figure=gradient_growth,
    scales={
        "quick": {
            "batch_sizes": (4, 16, 64),
            "widths": (50, 150),
            "depths": (8, 16),
            "depth": 16,
            "width": 150,
        },
        "small": {},
        "paper": {"batch_sizes": (4, 8, 16, 32, 64, 128, 256, 512, 1024), "seeds": 5},
    },
)
def explosion(
    *,
    activations: Sequence[str] = ("relu", "tanh", "linear"),
    batch_sizes: Sequence[int] = (4, 8, 16, 64, 256, 1024),
    widths: Sequence[int] = (100, 300, 1000),
    depths: Sequence[int] = (10, 20, 40),
    batch_size: int = 64,
    width: int = 1000,
    depth: int = 40,
    seeds: int = 3,
    seed: int = 0,
    store: Store,
    progress: Progress,
) -> xr.Dataset:
    """Growth of the squared gradient norm per layer, against batch size, width, depth, activation.

    Fully connected nets at initialization on Gaussian inputs, with batch normalization, with it
    and skip connections, and with layer normalization beside; the gradient is that of a random
    combination of outputs by each block's output.

    Reference: yang2019.

    Args:
        activations: some of relu, tanh, linear.
        batch_sizes: of the sweep over batch sizes, each above 3.
        widths: of the sweep over widths (relu).
        depths: of the sweep over depths (relu), each above 1.
        batch_size: of the other sweeps, above 3.
        width: of the other sweeps.
        depth: of the other sweeps, above 3: a slope needs layers between the first and the last.
        seeds: networks of each kind.
        seed: first seed; the others follow it.
        store: keeps each network's measurement.
        progress: called with a label before each network.

    Returns:
        ``squared_gradient`` (architecture, activation, seed, layer) with ``expected_gradient``
        (architecture, activation, layer), both over that of the last layer; ``growth``
        (activation, batch_size, seed) per layer of plain batch-normalized nets with
        ``expected_growth`` (activation, batch_size); ``growth_by_width`` (width, seed);
        ``gain_by_depth`` (architecture, depth, seed) from the last layer to the first.
    """
    activations = known_names("activations", activations, list(ACTIVATIONS))
    batch_sizes = whole_numbers("batch_sizes", batch_sizes, at_least=4)
    widths = whole_numbers("widths", widths, at_least=2)
    depths = whole_numbers("depths", depths, at_least=2)
    base = {
        "depth": whole_number("depth", depth, at_least=4),
        "width": whole_number("width", width, at_least=2),
        "batch_size": whole_number("batch_size", batch_size, at_least=4),
    }
    own_seeds = range(seed, seed + whole_number("seeds", seeds, at_least=1))
    swept: dict[str, list[Any]] = {
        "architecture": list(ARCHITECTURES),
        "activation": list(activations),
        "batch_size": list(batch_sizes),
        "width": list(widths),
        "depth": list(depths),
    }
    measured = _measured(partial(_profiles, store, progress, base, own_seeds), swept)
    expected = _theory(activations, batch_sizes, batch_size, depth)
    coordinates = {**swept, "seed": list(own_seeds), "layer": list(range(1, depth + 1))}
    return xr.Dataset({**measured, **expected}, coordinates, base)


def _measured(
    profiles: Callable[..., Any], swept: dict[str, list[Any]]
) -> dict[str, tuple[tuple[str, ...], Any]]:
    """The variables that are measured, each over its own sweep."""
    names, activations = swept["architecture"], swept["activation"]
    gains = [profiles(architecture=names, depth=[each])[:, 0, :, 0] for each in swept["depth"]]
    by_kind = profiles(architecture=names, activation=activations)
    by_size = profiles(activation=activations, batch_size=swept["batch_size"])
    by_width = profiles(width=swept["width"])
    return {
        "squared_gradient": (("architecture", "activation", "seed", "layer"), by_kind),
        "growth": (("activation", "batch_size", "seed"), growth_per_layer(by_size)),
        "growth_by_width": (("width", "seed"), growth_per_layer(by_width)),
        "gain_by_depth": (("architecture", "depth", "seed"), np.stack(gains, 1)),
    }


def _profiles(
    store: Store,
    progress: Progress,
    base: dict[str, int],
    seeds: Sequence[int],
    **sweeps: Sequence[Any],
) -> Any:
    """Squared gradients of the networks of a sweep, over those of their last layers."""
    made = []
    for *choice, seed in itertools.product(*sweeps.values(), seeds):
        parameters = {"architecture": "batch", "activation": "relu", **base}
        parameters |= dict(zip(sweeps, choice, strict=True))
        progress(", ".join(f"{key} {value}" for key, value in parameters.items()))
        made.append(_stored(store, parameters, seed))
    return np.stack(made).reshape(*(len(each) for each in sweeps.values()), len(seeds), -1)


def _theory(
    activations: Sequence[str], batch_sizes: Sequence[int], batch_size: int, depth: int
) -> dict[str, tuple[tuple[str, ...], Any]]:
    """What is expected of infinitely wide networks."""
    profiles = [
        [_expected(name, activation, batch_size, depth) for activation in activations]
        for name in ARCHITECTURES
    ]
    growth = [[batch_growth(each, size) for size in batch_sizes] for each in activations]
    return {
        "expected_gradient": (("architecture", "activation", "layer"), np.array(profiles)),
        "expected_growth": (("activation", "batch_size"), np.array(growth)),
    }


def growth_per_layer(profiles: Any) -> Any:
    """The growth per layer of squared gradients (..., layer), from the slope of their logarithm.

    A quarter of the layers at either end is left out: the first have not come to the state that
    all deeper ones share, and the last see the head.

    >>> float(growth_per_layer(2.0 ** -np.arange(16)).round(6))
    2.0
    """
    ends = max(1, profiles.shape[-1] // 4)
    logarithm = np.log(profiles[..., ends:-ends])
    layers = np.arange(logarithm.shape[-1], dtype=np.float64)
    layers -= layers.mean()
    return np.exp(-(logarithm @ layers) / (layers @ layers))


def _stored(store: Store, parameters: dict[str, Any], seed: int) -> Any:
    measured = store.compute(
        "yang2019/explosion network", parameters, seed, lambda: _network(seed=seed, **parameters)
    )
    return measured["squared_gradient"].values


def _network(
    architecture: str, activation: str, depth: int, width: int, batch_size: int, seed: int
) -> xr.Dataset:
    """Squared gradients in one network, over that of the last layer."""
    network = Stack(
        architecture, INPUTS, OUTPUTS, depth=depth, width=width, activation=activation, seed=seed
    )
    found = squared_gradients(network, gaussian_inputs((INPUTS,), batch_size, seed), seed)
    return xr.Dataset({"squared_gradient": ("layer", found / found[-1])})


def _expected(architecture: str, activation: str, batch_size: int, depth: int) -> Any:
    """The same by theory: a block's output sees the factors of all blocks above it."""
    norm, residual = ARCHITECTURES[architecture]
    if residual:
        factors = residual_growth(norm, activation, batch_size, depth)
    else:
        batch = norm == "batch"
        one = batch_growth(activation, batch_size) if batch else layer_growth(activation)
        factors = np.full(depth, one)
    return np.append(np.cumprod(factors[:0:-1])[::-1], 1.0)
