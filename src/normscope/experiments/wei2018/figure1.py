"""Figure 1: largest eigenvalue and critical learning rate over gamma, by theory and measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import nn

from normscope.curvature import top_eigenvalue
from normscope.data import gaussian_inputs
from normscope.experiments.recipe import experiment, side_by_side
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
from normscope.results.claim import DECISION, ENOUGH_SEEDS, decide_below
from normscope.text import plural

CLOSURES = ("train", "frozen", "printed")
MODES = ("train", "frozen")
VANILLA = ("frozen", "printed")  # without batch statistics, train and frozen are the same
ARCHITECTURES = ("fully_connected", "conv_net")
INPUTS = {"fully_connected": (784,), "conv_net": (3, 32, 32)}


def _claims(results: xr.Dataset) -> list[Claim]:
    """Judge the closures by the measured networks, and the effect of gamma."""
    source = "wei2018, Figure 1"
    rate = results["max_learning_rate_measured"].sel(mode="train")
    before = rate.shift(measured_gamma=1, fill_value=np.inf)
    steps = (rate / before).fillna(np.inf).max(("architecture", "measured_gamma"))
    falls, seeds = bool((steps < 1).all()), plural(rate.sizes["seed"], "seed")
    smallest = float(rate["measured_gamma"][0])
    gain = rate.sel(measured_gamma=smallest) / results["max_learning_rate_measured_without"]
    least = gain.min("architecture")
    return [
        *(
            replace(_agreement(results, closure, source), origin="beyond the paper")
            for closure in CLOSURES
        ),
        Claim(
            "the smaller gamma, the larger the critical learning rate",
            source,
            f"{'holds' if falls else 'does not hold'} in every measured network, {seeds}",
            decide_below(steps.values, 1.0),
            statement="The smaller gamma, the smaller the largest eigenvalue, and the larger the "
            "critical learning rate (Section 4, Figure 1).",
            rule="measured critical rate at a gamma over that at the next smaller one, the largest "
            f"of all gammas and both architectures, below 1; {DECISION}",
            resolve="" if rate.sizes["seed"] >= ENOUGH_SEEDS else f"{ENOUGH_SEEDS} seeds",
            numbers={"largest ratio": steps.values.tolist()},
        ),
        Claim(
            "with a small gamma BatchNorm allows a larger learning rate than no normalization",
            source,
            f"critical rate at gamma {smallest:g} over that without: {_spans(gain)}",
            decide_below(-np.log(least.values)),
            statement="For sufficiently small gamma BatchNorm enables optimization with much "
            "higher learning rates than vanilla networks (Figure 1).",
            rule="measured critical rate at the smallest gamma over that without normalization, "
            f"the smaller of both architectures, above 1; {DECISION}",
            resolve="" if rate.sizes["seed"] >= ENOUGH_SEEDS else f"{ENOUGH_SEEDS} seeds",
            numbers={"least ratio": least.values.tolist()},
        ),
    ]


def _agreement(results: xr.Dataset, closure: str, source: str) -> Claim:
    """Compare the measured eigenvalue, in the closure's mode, with the predicted one."""
    mode = "frozen" if closure == "frozen" else "train"
    measured = results["lambda_max_measured"].sel(mode=mode)
    lines = results["lambda_max"].sel(closure=closure)
    theory = lines.interp(gamma=results["measured_gamma"].values).rename(gamma="measured_gamma")
    ratio = measured / theory
    return Claim(
        f"the {closure} closure predicts the largest eigenvalue ({mode} mode) within 20 %",
        source,
        f"measured / predicted: {_spans(ratio)}",
        bool((abs(ratio - 1) < 0.2).all()),
    )


def _spans(values: xr.DataArray) -> str:
    return ", ".join(
        f"{name} {float(each.min()):.3g} to {float(each.max()):.3g}"
        for name, each in values.groupby("architecture")
    )


@experiment(
    "wei2018/figure1",
    claims=_claims,
    figure=figure_one,
    scales={
        "quick": {"width": 100, "channels": (6, 8, 10), "samples": (200, 60), "seeds": 1},
        "small": {},
        "medium": {},
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
    options: list[dict[str, Any]] = [{"width": width}, {"channels": list(channels)}]
    found = {}
    for name, size, own in zip(ARCHITECTURES, samples, options, strict=True):
        plan: dict[str, Any] = {"architecture": name, "samples": size, "options": own}
        plan["gammas"] = list(measured_gammas)
        networks = {}
        for each in range(seed, seed + seeds):
            progress(Progress(f"{name}, seed {each}"))
            compute = partial(_network, **plan, seed=each)
            networks[each] = store.compute("wei2018/figure1 network", plan, each, compute)
        names = {"lambda_max": "lambda_max_measured", "gamma": "measured_gamma"}
        names["lambda_max_without"] = "lambda_max_measured_without"
        measured = side_by_side("seed", networks).rename(names).transpose(..., "seed")
        found[name] = _theory(name, width, channels, gammas, size).merge(measured)
    eigenvalues = side_by_side("architecture", found).assign_coords(
        mode=list(MODES), measured_gamma=list(measured_gammas)
    )
    rates = 2 * (1 + momentum) / eigenvalues
    named = {name: str(name).replace("lambda_max", "max_learning_rate") for name in rates}
    results = eigenvalues.merge(rates.rename(named))
    return results.assign_attrs(momentum=momentum, width=width)


def _theory(
    name: str, width: int, channels: Sequence[int], gammas: Sequence[float], batch_size: int
) -> xr.Dataset:
    """Return eigenvalues by every closure, with normalization over gamma and without."""
    graphs = {norm: _graph(name, width, channels, norm) for norm in ("batch", "none")}
    sweep: dict[str, Any] = {"gamma": np.asarray(gammas), "batch_size": batch_size}
    curves = [predict(graphs["batch"], closure=c, **sweep).lambda_max for c in CLOSURES]
    alone = [predict(graphs["none"], closure=c, batch_size=batch_size).lambda_max for c in VANILLA]
    return xr.Dataset(
        {
            "lambda_max": (("closure", "gamma"), np.array(curves, dtype=float)),
            "lambda_max_without": ("closure_without", np.array(alone)),
        },
        {"closure": list(CLOSURES), "gamma": list(gammas), "closure_without": list(VANILLA)},
    )


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


def _graph(name: str, width: int, channels: Sequence[int], norm: str) -> Graph:
    if name == "conv_net":
        return convolutional_specification(channels=channels, norm=norm)
    return fully_connected_specification((784, width, width, width, 10), norm=norm)


def _measured(model: nn.Module, inputs: torch.Tensor, mode: str) -> float:
    kinds = (nn.Linear, nn.Conv2d)
    weights = [layer.weight for layer in model.modules() if isinstance(layer, kinds)]
    batch = (inputs, torch.zeros(len(inputs), 10))  # the Fisher matrix does not depend on targets
    problem = model, "squared_error", batch
    return top_eigenvalue(*problem, "fisher", mode, params=weights, vectors=False).value
