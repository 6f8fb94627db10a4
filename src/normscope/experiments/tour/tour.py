"""The tour: one net under several normalizations, seen by everything that normscope measures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from normscope.experiments.recipe import Progress, experiment
from normscope.experiments.tour.assembly import Assembly, Tell, side_by_side
from normscope.experiments.tour.claims import tour_claims
from normscope.experiments.tour.curvature import THRESHOLD, curvature
from normscope.experiments.tour.depth import depth, expected_growth, skips
from normscope.experiments.tour.diagram import diagram
from normscope.experiments.tour.landscape import landscape
from normscope.experiments.tour.limits import limits, training
from normscope.experiments.tour.net import Net
from normscope.experiments.tour.pace import Pace, all_shares
from normscope.experiments.tour.statements import statements
from normscope.plots.overview import overview
from normscope.results import Store

__all__ = ["NORMS", "tour"]

NORMS = ("none", "batch", "noisy", "l1", "layer")
QUICK: dict[str, Any] = {
    "norms": ("none", "batch", "layer"),
    "width": 24,
    "layers": 3,
    "batch_size": 64,
    "steps": 12,
    "watched_steps": 6,
    "every": 2,
    "deep_layers": 6,
    "spectrum_probes": 2,
    "spectrum_products": 8,
    "gammas": (0.3, 1.0),
    "learning_rates": (0.1, 3.0),
    "epochs": 1.0,
    "seeds": 1,
}


@experiment(
    "tour",
    claims=tour_claims,
    figure=overview,
    scales={"quick": QUICK, "small": {}, "paper": {"width": 1000, "seeds": 5, "epochs": 5.0}},
)
def tour(
    *,
    data: str = "digits",
    norms: Sequence[str] = NORMS,
    width: int = 200,
    layers: int = 4,
    batch_size: int = 128,
    momentum: float = 0.9,
    steps: int = 100,
    watched_steps: int = 60,
    every: int = 5,
    deep_layers: int = 16,
    spectrum_probes: int = 4,
    spectrum_products: int = 40,
    gammas: Sequence[float] = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
    learning_rates: Sequence[float] = tuple(np.geomspace(0.003, 30, 13).round(5).tolist()),
    epochs: float = 2.0,
    seeds: int = 3,
    seed: int = 0,
    store: Store,
    progress: Progress,
) -> xr.Dataset:
    """One net under several normalizations: limits, landscape, curvature, depth, theorems, phases.

    A fully connected ReLU net under the cross-entropy. Each normalization's own learning-rate limit
    comes first; all are then trained at half of it, at half the largest of the limits, and, watched
    by the scope, at half the smallest.

    Reference: santurkar2018; wei2018; yang2019.

    Args:
        data: a registered data set with classes.
        norms: normalizations to compare.
        width: units of a hidden layer.
        layers: linear layers of the net.
        batch_size: samples per step.
        momentum: of SGD.
        steps: of the trainings at half the own and half the largest limit.
        watched_steps: of the training under the scope.
        every: steps of it from one measurement to the next.
        deep_layers: linear layers of the net whose gradients are followed through depth.
        spectrum_probes: random directions of the Hessian's spectrum.
        spectrum_products: products with the Hessian for each of them.
        gammas: of the phase diagram: initial scales of BatchNorm.
        learning_rates: of the phase diagram.
        epochs: of each of its trainings.
        seeds: repetitions, each with its own weights and order of the data.
        seed: first seed; the others follow it.
        store: keeps each part.
        progress: called with a label before each part.

    Returns:
        All parts, over norm and seed: rates, training curves (training_step) at half the own limit
        and, with ``shared_``, at half the largest, landscape (step, distance, layer), spectrum of
        the first seed (point), gradients by depth (depth_layer), verdicts on the first seed's net
        (verdict), phase diagram (gamma, learning_rate, diagram_seed; closure).
    """
    net = Net(data, width, layers, batch_size, momentum)
    pace = Pace(progress, all_shares(len(norms), seeds))
    parts = Assembly(net, list(norms), range(seed, seed + seeds), store, pace)
    rates = parts.each("learning rate", lambda norm, own, tell: limits(net, norm, own, tell))
    half = _by_cell(rates["recommended"])
    common, largest = (float(getattr(rates["recommended"], end)()) for end in ("min", "max"))
    found = [
        rates,
        _trained(parts, half, steps),
        _shared(_trained(parts, dict.fromkeys(half, largest), steps)).assign(shared_rate=largest),
        _watched(parts, common, watched_steps, every),
        _curved(parts, spectrum_probes, spectrum_products),
        _depth(parts, deep_layers),
        _statements(parts, half.get(("batch", seed), common), min(steps, 50)),
        _phases(parts, gammas, learning_rates, epochs),
    ]
    return _joined(found, net, common)


def _trained(parts: Assembly, rates: dict[tuple[str, int], float], steps: int) -> xr.Dataset:
    """Trainings, each at a rate of its own."""

    def measure(norm: str, own: int, tell: Tell) -> xr.Dataset:
        return training(parts.net, norm, own, rates[norm, own], steps)

    return parts.each("training", measure, rate=rates, steps=steps)


def _shared(trained: xr.Dataset) -> xr.Dataset:
    """Trainings at a rate that all share, under names of their own."""
    return trained.rename({str(name): f"shared_{name}" for name in trained.data_vars})


def _watched(parts: Assembly, rate: float, steps: int, every: int) -> xr.Dataset:
    """Trainings under the scope, all at one rate."""

    def measure(norm: str, own: int, tell: Tell) -> xr.Dataset:
        return landscape(parts.net, norm, own, rate, steps, every)

    return parts.each("landscape", measure, rate=rate, steps=steps, every=every)


def _curved(parts: Assembly, probes: int, products: int) -> xr.Dataset:
    """Spectra of the first seed's nets."""
    samples = 2 * parts.net.batch_size

    def measure(norm: str, own: int, tell: Tell) -> xr.Dataset:
        return curvature(parts.net, norm, own, samples, probes, products)

    first = parts.seeds[:1]
    settings = {"samples": samples, "probes": probes, "products": products}
    return parts.each("curvature", measure, first, **settings).isel(seed=0, drop=True)


def _depth(parts: Assembly, layers: int) -> xr.Dataset:
    """Gradients through depth, plain and with skips."""
    net = parts.net

    def measure(norm: str, own: int, tell: Tell) -> xr.Dataset:
        return depth(net, norm, own, layers)

    plain = parts.each("depth", measure, layers=layers)
    residual = {
        own: parts.one(
            "depth", "skips", own, partial(_with_skips, net, own, layers), layers=layers, skips=True
        )
        for own in parts.seeds
    }
    both = xr.merge([plain, side_by_side("seed", residual)], compat="equals", join="outer")
    return both.assign(expected_growth=expected_growth(net))


def _with_skips(net: Net, own: int, layers: int, tell: Tell) -> xr.Dataset:
    return skips(net, own, layers)


def _statements(parts: Assembly, rate: float, steps: int) -> xr.Dataset:
    """The theorems on the first seed's net."""
    net, own = parts.net, parts.seeds[0]
    samples = min(net.batch_size, 64)

    def measure(tell: Tell) -> xr.Dataset:
        return statements(net, own, rate, steps, samples)

    settings = {"rate": rate, "steps": steps, "samples": samples}
    return parts.one("theorems", "batch", own, measure, **settings)


def _phases(
    parts: Assembly, gammas: Sequence[float], rates: Sequence[float], epochs: float
) -> xr.Dataset:
    """The phase diagram of the first seed; its trainings are records of their own."""
    with parts.pace.part("phase diagram", f"{len(gammas) * len(rates)} trainings") as tell:
        tell("")
        return diagram(parts.net, gammas, rates, epochs, parts.seeds[:1], parts.store, tell)


def _by_cell(rates: xr.DataArray) -> dict[tuple[str, int], float]:
    return {
        (str(norm), int(own)): float(rates.sel(norm=norm, seed=own))
        for norm in rates["norm"].values
        for own in rates["seed"].values
    }


def _joined(found: Sequence[xr.Dataset], net: Net, common: float) -> xr.Dataset:
    joined = xr.merge(found, compat="equals", join="outer", combine_attrs="drop_conflicts")
    joined = joined.assign(common_rate=common)
    joined["theory"].attrs["missing"] = "the theory covers none of these nets"
    joined["lambda_max"].attrs["missing"] = "no mode applies"
    return joined.assign_attrs(net.settings(linear_threshold=THRESHOLD))
