"""Mini-batches: batch sharpness settles at thresholds that momentum and batch size set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import xarray as xr
from matplotlib.figure import Figure

from normscope.errors import InputError
from normscope.experiments.cohen2021.trainings import run_all, settings_of, settled_claims
from normscope.experiments.recipe import experiment
from normscope.plots.stability import edge_figure
from normscope.progress import ProgressCallback
from normscope.results import Claim, Store

SHARPNESS = "batch_sharpness"
EDGES = {"small": "batch_threshold_small", "large": "batch_threshold_large"}
FORMULAS = {"small": "2 (1 - momentum) / rate", "large": "2 (1 + momentum) / rate"}


def mini_batch_claims(results: xr.Dataset) -> list[Claim]:
    """Whether batch sharpness settles at the threshold of its batch size and momentum."""
    smallest = int(results["batch_size"].min())

    def judged_by(run: str) -> tuple[str, str, str, str]:
        kind = "small" if int(results["batch_size"].sel(run=run)) == smallest else "large"
        text = f"{kind} batches, {run}: batch sharpness settles at {FORMULAS[kind]}, within 10 %"
        return SHARPNESS, EDGES[kind], FORMULAS[kind], text

    return settled_claims(
        results,
        "andreyev2026",
        "Batch sharpness settles at 2 (1 - momentum) / rate for small batches and at "
        "2 (1 + momentum) / rate for large ones.",
        judged_by,
    )


def mini_batch_figure(results: xr.Dataset) -> Figure:
    """Draw batch sharpness over steps with both thresholds, a panel for each training."""
    return edge_figure(results, SHARPNESS, {EDGES[kind]: FORMULAS[kind] for kind in EDGES})


@experiment(
    "cohen2021/mini_batches",
    claims=mini_batch_claims,
    figure=mini_batch_figure,
    scales={
        "quick": {
            "batch_sizes": (8, 64),
            "momenta": (0.0, 0.9),
            "rates": (0.1, 0.02),
            "steps": (60, 60),
            "every": (10, 10),
            "batches": 4,
            "data": "digits",
            "samples": 100,
            "width": 16,
        },
        "small": {},
        "paper": {
            "steps": (100_000, 100_000, 20_000, 20_000),
            "every": (500, 500, 100, 100),
            "batches": 100,
        },
    },
)
def mini_batches(
    *,
    batch_sizes: Sequence[int] = (16, 16, 2048, 2048),
    momenta: Sequence[float] = (0.0, 0.9, 0.0, 0.9),
    rates: Sequence[float] = (0.08, 0.012, 0.04, 0.06),
    steps: Sequence[int] = (30_000, 24_000, 1000, 1000),
    every: Sequence[int] = (300, 240, 40, 40),
    batches: int = 10,
    network: str = "fc-tanh",
    data: str = "cifar10",
    samples: int = 5000,
    width: int = 200,
    channels: int = 8,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """Batch sharpness of networks that are trained on small and large batches, with momentum.

    Batch sharpness is the mean over batches of the curvature along their own gradients. Batches are
    small if they have the least of the sizes. It has settled at its threshold if the median of the
    last third of its measurements is within 10 % of it; a training that never came within 10 %
    decides nothing.

    Reference: andreyev2026.

    Args:
        batch_sizes: samples of a step, one for each training.
        momenta: heavy-ball momentum of each training.
        rates: the learning rate of each training.
        steps: the number of updates of each training.
        every: steps from one measurement to the next, of each training.
        batches: number of batches whose mean is measured; the same at every measurement.
        network: "fc-tanh", "cnn" or "cnn-bn".
        data: a registered data set.
        samples: number of training images.
        width: units of a hidden layer of "fc-tanh".
        channels: of a convolution.
        seed: of the initial weights and the batches.
        store: keeps each training.
        progress: receives an event before each training.

    Returns:
        The variables of the probe ``stability`` over ``run`` and ``step``, with ``batch_size`` and
        ``momentum`` of each run.
    """
    if not len(batch_sizes) == len(momenta) == len(rates) == len(every):
        raise InputError(
            "batch_sizes, momenta, rates and every must have one entry for each training, got "
            f"{len(batch_sizes)}, {len(momenta)}, {len(rates)} and {len(every)}."
        )
    shared = {"every": 1, "data": data, "samples": samples, "batches": batches}
    networks = [network] * len(rates)
    plain = settings_of(networks, rates, steps, width=width, channels=channels, **shared)
    rows = zip(plain, batch_sizes, momenta, every, strict=True)
    settings = [
        replace(one, batch_size=size, momentum=float(mu), every=gap) for one, size, mu, gap in rows
    ]
    results = run_all(settings, seed, store, progress)
    return results.assign(
        batch_size=("run", [each.batch_size for each in settings]),
        momentum=("run", [each.momentum for each in settings]),
    )
