"""Figure 1: largest eigenvalue and critical learning rate over gamma, by theory and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import nn

from normscope.curvature import top_eigenvalue
from normscope.data import gaussian_inputs
from normscope.experiments.recipe import experiment
from normscope.meanfield import (
    Graph,
    convolutional_specification,
    fully_connected_specification,
    predict,
)
from normscope.models import build
from normscope.plots.meanfield import figure_one
from normscope.progress import Progress, ProgressCallback
from normscope.results import Claim, Store

CLOSURES = ("train", "frozen", "printed")
MODES = ("train", "frozen")
VANILLA = ("frozen", "printed")  # without batch statistics, train and frozen are the same
ARCHITECTURES = ("fully_connected", "conv_net")
INPUTS = {"fully_connected": (784,), "conv_net": (3, 32, 32)}
DIMENSIONS = ("architecture", "mode", "measured_gamma", "seed")


def _claims(results: xr.Dataset) -> list[Claim]:
    """How far each closure is from the measured networks, and what gamma does."""
    source = "wei2018, Figure 1"
    rate = results["max_learning_rate_measured"].sel(mode="train")
    falls = bool((rate.diff("measured_gamma") < 0).all())
    seeds = "1 seed" if rate.sizes["seed"] == 1 else f"{rate.sizes['seed']} seeds"
    smallest = float(rate["measured_gamma"][0])
    gain = rate.sel(measured_gamma=smallest) / results["max_learning_rate_measured_without"]
    gains = ", ".join(
        f"{name} {float(each.min()):.3g} to {float(each.max()):.3g}"
        for name, each in gain.groupby("architecture")
    )
    return [
        *(_agreement(results, closure, source) for closure in CLOSURES),
        Claim(
            "the smaller gamma, the larger the critical learning rate",
            source,
            f"{'holds' if falls else 'does not hold'} in every measured network, {seeds}",
            falls,
        ),
        Claim(
            "with a small gamma BatchNorm allows a larger learning rate than no normalization",
            source,
            f"critical rate at gamma {smallest:g} over that without: {gains}",
            bool((gain > 1).all()),
        ),
    ]


def _agreement(results: xr.Dataset, closure: str, source: str) -> Claim:
    """The measured eigenvalue, in the mode that the closure speaks of, over the predicted one."""
    mode = "frozen" if closure == "frozen" else "train"
    measured = results["lambda_max_measured"].sel(mode=mode)
    lines = results["lambda_max"].sel(closure=closure)
    theory = lines.interp(gamma=results["measured_gamma"].values).rename(gamma="measured_gamma")
    ratio = measured / theory
    spans = ", ".join(
        f"{name} {float(each.min()):.3g} to {float(each.max()):.3g}"
        for name, each in ratio.groupby("architecture")
    )
    return Claim(
        f"the {closure} closure predicts the largest eigenvalue ({mode} mode) within 20 %",
        source,
        f"measured / predicted: {spans}",
        bool((abs(ratio - 1) < 0.2).all()),
    )


@experiment(
    "wei2018/figure1",
    claims=_claims,
    figure=figure_one,
    scales={
        "quick": {"width": 100, "channels": (6, 8, 10), "samples": (200, 60), "seeds": 1},
        "small": {},
        "paper": {},
    },
)
def figure1(
    *,
    gammas: Sequence[float] = tuple(np.linspace(0.05, 3.0, 60).tolist()),
    measured_gammas: Sequence[float] = (0.1, 0.5, 1.0, 2.0, 3.0),
    seeds: int = 3,
    width: int = 1000,
    channels: Sequence[int] = (30, 60, 90),
    samples: Sequence[int] = (1000, 256),
    momentum: float = 0.9,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """Largest eigenvalue and critical learning rate over gamma, by every closure and measured.

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
        store: keeps each network's measurement.
        progress: receives an event before each measurement.

    Returns:
        ``lambda_max`` and ``max_learning_rate`` (architecture, closure, gamma); the same with
        ``_without`` for networks without normalization, and with ``_measured`` for measurements.
    """
    sizes = dict(zip(ARCHITECTURES, samples, strict=True))
    graphs = {norm: _graphs(width, channels, norm) for norm in ("batch", "none")}
    theory = [_curves(graphs["batch"][name], gammas, sizes[name]) for name in ARCHITECTURES]
    alone = [_vanilla(graphs["none"][name], sizes[name]) for name in ARCHITECTURES]
    options: dict[str, dict[str, Any]] = {
        "fully_connected": {"width": width},
        "conv_net": {"channels": list(channels)},
    }
    plans: dict[str, dict[str, Any]] = {
        name: {
            "architecture": name,
            "samples": sizes[name],
            "gammas": list(measured_gammas),
            "options": options[name],
        }
        for name in ARCHITECTURES
    }
    found, found_alone = _networks(plans, range(seed, seed + seeds), store, progress)
    arrays = {
        "": (("architecture", "closure", "gamma"), np.stack(theory)),
        "_without": (("architecture", "closure_without"), np.array(alone)),
        "_measured": (DIMENSIONS, found),
        "_measured_without": (("architecture", "seed"), found_alone),
    }
    coordinates: dict[str, list[Any]] = {
        "gamma": list(gammas),
        "measured_gamma": list(measured_gammas),
        "seed": list(range(seed, seed + seeds)),
    }
    return _dataset(arrays, coordinates, momentum).assign_attrs(width=width)


def _networks(
    plans: Mapping[str, dict[str, Any]], seeds: range, store: Store, progress: ProgressCallback
) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues (architecture, mode, gamma, seed), and without norms (architecture, seed)."""
    gammas = len(next(iter(plans.values()))["gammas"])
    found = np.full((len(plans), len(MODES), gammas, len(seeds)), np.nan)
    alone = np.full((len(plans), len(seeds)), np.nan)
    for (a, name), s in _pairs(list(plans), range(len(seeds))):
        progress(Progress(f"{name}, seed {seeds[s]}"))
        compute = partial(_network, **plans[name], seed=seeds[s])
        measured = store.compute("wei2018/figure1 network", plans[name], seeds[s], compute)
        found[a, :, :, s] = measured["lambda_max"]
        alone[a, s] = measured["lambda_max_without"]
    return found, alone


def _network(
    architecture: str, samples: int, gammas: Sequence[float], options: dict[str, Any], seed: int
) -> xr.Dataset:
    """Measured eigenvalues of one network's weights with and without normalization."""
    shape = INPUTS[architecture]
    settings = {"seed": seed, "input_shape": shape, **options}
    inputs = gaussian_inputs(shape, samples, seed)
    found = np.empty((len(MODES), len(gammas)))
    for g, gamma in enumerate(gammas):
        model = build(architecture, gamma=gamma, **settings)
        found[:, g] = [_measured(model, inputs, mode) for mode in MODES]
    alone = _measured(build(architecture, norm="none", **settings), inputs, "train")
    return xr.Dataset({"lambda_max": (("mode", "gamma"), found), "lambda_max_without": alone})


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
    problem = model, "squared_error", batch
    return top_eigenvalue(*problem, "fisher", mode, params=weights, vectors=False).value


def _pairs(names: Sequence[str], seeds: range) -> list[tuple[tuple[int, str], int]]:
    return [(named, seed) for named in enumerate(names) for seed in seeds]
