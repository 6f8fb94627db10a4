"""Figure 1: largest eigenvalue and critical learning rate over gamma, by theory and measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import nn

from normscope.curvature import top_eigenvalue
from normscope.data import gaussian_inputs
from normscope.files import replacing
from normscope.meanfield import (
    Graph,
    convolutional_specification,
    fully_connected_specification,
    predict,
)
from normscope.models import build

__all__ = ["figure1", "write"]

Progress = Callable[[str], None]

CLOSURES = ("train", "frozen", "printed")
MODES = ("train", "frozen")
VANILLA = ("frozen", "printed")  # without batch statistics, train and frozen are the same
ARCHITECTURES = ("fully_connected", "conv_net")
INPUTS = {"fully_connected": (784,), "conv_net": (3, 32, 32)}
DIMENSIONS = ("architecture", "mode", "measured_gamma", "seed")


def figure1(
    gammas: Sequence[float] = tuple(np.linspace(0.05, 3.0, 60)),
    measured_gammas: Sequence[float] = (0.1, 0.5, 1.0, 2.0, 3.0),
    seeds: int = 3,
    width: int = 1000,
    channels: Sequence[int] = (30, 60, 90),
    samples: Sequence[int] = (1000, 256),
    momentum: float = 0.9,
    seed: int = 0,
    progress: Progress = lambda label: None,
) -> xr.Dataset:
    """The four panels' curves, and the same networks measured at initialization.

    Only the weights of linear layers and convolutions count, as in the paper.

    Reference: wei2018, Figure 1 and Section 4.

    Args:
        gammas: where the theory is evaluated.
        measured_gammas: where networks are measured.
        seeds: networks measured at each of them.
        width: of the fully connected network's hidden layers.
        channels: of the convolutional network's layers.
        samples: in the batch, for the fully connected and the convolutional network.
        momentum: of the critical learning rate.
        seed: first seed; the others follow it.
        progress: called with a label before each measurement.

    Returns:
        ``lambda_max`` and ``max_learning_rate`` (architecture, closure, gamma); the same with
        ``_without`` for networks without normalization, and with ``_measured`` for measurements.
    """
    sizes = dict(zip(ARCHITECTURES, samples, strict=True))
    graphs = {norm: _graphs(width, channels, norm) for norm in ("batch", "none")}
    theory = [_curves(graphs["batch"][name], gammas, sizes[name]) for name in ARCHITECTURES]
    alone = [_vanilla(graphs["none"][name], sizes[name]) for name in ARCHITECTURES]
    own_seeds = range(seed, seed + seeds)
    options: dict[str, dict[str, Any]] = {
        "fully_connected": {"width": width},
        "conv_net": {"channels": tuple(channels)},
    }
    found = np.full((2, len(MODES), len(measured_gammas), seeds), np.nan)
    found_alone = np.full((2, seeds), np.nan)
    for (a, name), (s, own_seed) in _pairs(ARCHITECTURES, own_seeds):
        progress(f"{name}, seed {own_seed}")
        settings = {"seed": own_seed, "input_shape": INPUTS[name], **options[name]}
        inputs = gaussian_inputs(INPUTS[name], sizes[name], own_seed)
        for g, gamma in enumerate(measured_gammas):
            model = build(name, gamma=gamma, **settings)
            found[a, :, g, s] = [_measured(model, inputs, mode) for mode in MODES]
        found_alone[a, s] = _measured(build(name, norm="none", **settings), inputs, "train")
    arrays = {
        "": (("architecture", "closure", "gamma"), np.stack(theory)),
        "_without": (("architecture", "closure_without"), np.array(alone)),
        "_measured": (DIMENSIONS, found),
        "_measured_without": (("architecture", "seed"), found_alone),
    }
    coordinates: dict[str, list[Any]] = {
        "gamma": list(gammas),
        "measured_gamma": list(measured_gammas),
        "seed": list(own_seeds),
    }
    return _dataset(arrays, coordinates, momentum).assign_attrs(width=width)


def _dataset(
    arrays: dict[str, Any], coordinates: dict[str, list[Any]], momentum: float
) -> xr.Dataset:
    """Eigenvalues with the critical learning rates that follow from them."""
    rate = 2 * (1 + momentum)
    variables = {f"lambda_max{end}": value for end, value in arrays.items()}
    variables |= {f"max_learning_rate{end}": (dims, rate / v) for end, (dims, v) in arrays.items()}
    names = {
        "architecture": list(ARCHITECTURES),
        "closure": list(CLOSURES),
        "closure_without": list(VANILLA),
        "mode": list(MODES),
    }
    return xr.Dataset(variables, {**names, **coordinates}, {"momentum": momentum})


def write(results: xr.Dataset, folder: Path) -> tuple[Path, Path]:
    """Write the data set and the figure.

    Args:
        results: as :func:`figure1` returns it.
        folder: made if it is not there.

    Returns:
        The paths of both.
    """
    from normscope.plots.meanfield import figure_one

    folder.mkdir(parents=True, exist_ok=True)
    numbers, picture = folder / "wei2018_figure1.nc", folder / "wei2018_figure1.svg"
    with replacing(numbers) as unfinished:
        results.to_netcdf(unfinished)
    with replacing(picture) as unfinished:
        figure_one(results).savefig(unfinished)
    return numbers, picture


def _graphs(width: int, channels: Sequence[int], norm: str) -> dict[str, Graph]:
    widths = (784, width, width, width, 10)
    return {
        "fully_connected": fully_connected_specification(widths, norm=norm),
        "conv_net": convolutional_specification(channels=channels, norm=norm),
    }


def _curves(graph: Graph, gammas: Sequence[float], batch_size: int) -> Any:
    sweep = np.asarray(gammas)
    found = (predict(graph, closure=c, gamma=sweep, batch_size=batch_size) for c in CLOSURES)
    return np.stack([np.asarray(each.lambda_max, dtype=float) for each in found])


def _vanilla(graph: Graph, batch_size: int) -> list[Any]:
    return [predict(graph, closure=c, batch_size=batch_size).lambda_max for c in VANILLA]


def _measured(model: nn.Module, inputs: torch.Tensor, mode: str) -> float:
    kinds = (nn.Linear, nn.Conv2d)
    weights = [layer.weight for layer in model.modules() if isinstance(layer, kinds)]
    batch = (inputs, torch.zeros(len(inputs), 10))  # the Fisher matrix does not depend on targets
    return top_eigenvalue(model, "squared_error", batch, "fisher", mode, params=weights).value


def _pairs(names: Sequence[str], seeds: range) -> list[tuple[tuple[int, str], tuple[int, int]]]:
    return [(a, s) for a in enumerate(names) for s in enumerate(seeds)]
