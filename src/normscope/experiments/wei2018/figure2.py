"""Figure 2: test loss over learning rate and gamma, with the theory's critical rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.wei2018.phase_diagram import (
    agreement,
    bisected,
    both_losses,
    nearest_half,
    smaller_is,
)
from normscope.plots.phase_diagram import phase_diagrams
from normscope.progress import ProgressCallback
from normscope.results import Claim, Store
from normscope.sweeps.diagram import seed_list

LOSSES = ("squared_error", "cross_entropy")
GAMMAS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
RATES = tuple(np.geomspace(1e-3, 30, 14).tolist())
PAPER: dict[str, Any] = {
    "gammas": tuple(np.linspace(0.1, 3, 30).tolist()),
    "learning_rates": tuple(np.geomspace(1e-3, 30, 40).tolist()),
    "seeds": 5,
    "epochs": 5.0,
    "samples": None,
    "test_samples": None,
}
# The paper's samples, epochs and widths: a coarse heat map, and the boundary by bisection. Only the
# squared error, which the theory is about.
MEDIUM: dict[str, Any] = {
    "gammas": (0.1, 0.5, 1.0, 2.0),
    "learning_rates": tuple(np.geomspace(1e-3, 30, 8).tolist()),
    "losses": ("squared_error",),
    "seeds": 1,
    "epochs": 5.0,
    "samples": None,
    "test_samples": None,
    "boundary_gammas": (0.1, 0.5, 1.0, 2.0),
}
# options of each model, at the paper's size and at quick scale
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "fully_connected": ({"width": 1000}, {"width": 48}),
    "conv_net": ({"channels": (30, 60, 90), "padding": 0}, {"channels": (6, 8, 10), "padding": 1}),
}
QUICK: dict[str, Any] = {
    "data": "digits",
    "gammas": (0.3, 1.0, 3.0),
    "learning_rates": tuple(np.geomspace(1e-2, 30, 7).tolist()),
    "epochs": 2.0,
    "samples": None,
    "test_samples": None,
    "seeds": 1,
    "workers": 1,
    "threads": 1,
}


def _claims(results: xr.Dataset) -> list[Claim]:
    source = "wei2018, Figure 2"
    return [
        *agreement(results, source),
        *nearest_half(results, source),
        *smaller_is(results, source, "the smaller gamma, the lower the test loss it can reach"),
    ]


def panel(
    *,
    model: str = "fully_connected",
    data: str = "mnist",
    gammas: Sequence[float] = GAMMAS,
    learning_rates: Sequence[float] = RATES,
    losses: Sequence[str] = LOSSES,
    width: int | None = None,
    channels: Sequence[int] | None = None,
    padding: int | None = None,
    epochs: float = 1.0,
    samples: int | None = 12800,
    test_samples: int | None = 2000,
    batch_size: int = 128,
    momentum: float = 0.9,
    seeds: int = 2,
    boundary_gammas: Sequence[float] = (),
    boundary_seeds: int = 3,
    tolerance: float = 0.05,
    workers: int = 2,
    threads: int = 1,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """Test loss over gamma and learning rate with the theory's lines: one panel of Figure 2.

    Reference: wei2018, Figure 2 and Section 4.

    Args:
        model: fully_connected (four layers) or conv_net (three convolutions).
        data: a registered data set.
        gammas: initial scales of the normalization.
        learning_rates: of SGD.
        losses: to train with.
        width: of the hidden layers; None: the model has none, or its own.
        channels: of the convolutions, likewise.
        padding: zeros on each side of an image, likewise; the paper has none.
        epochs: passes over the training data.
        samples: of the training data; None: all.
        test_samples: of the test data; None: all.
        batch_size: samples per step.
        momentum: heavy-ball momentum.
        seeds: trainings of each cell.
        boundary_gammas: where the boundary is searched by bisection; none: it is the grid's.
        boundary_seeds: searches at each of them.
        tolerance: relative width of a bracket at which a search ends.
        workers: trainings at the same time.
        threads: of each worker.
        seed: first seed; the others follow it.
        store: keeps each training.
        progress: receives an event as trainings end.

    Returns:
        ``test_loss``, ``train_loss``, ``diverged`` and others (loss, gamma, learning_rate, seed),
        ``critical_learning_rate`` (loss, closure, gamma); of a search ``boundary_low`` and
        ``boundary_high`` (loss, boundary_gamma, boundary_seed) and ``boundary_theory``.
    """
    options = {"width": width, "channels": channels and list(channels), "padding": padding}
    settings = {
        "model": model,
        "data": data,
        **{name: value for name, value in options.items() if value is not None},
        "epochs": epochs,
        "samples": samples,
        "test_samples": test_samples,
        "batch_size": batch_size,
        "momentum": momentum,
    }
    axes = {"gamma": list(gammas), "learning_rate": list(learning_rates)}
    running = {"workers": workers, "threads": threads, "progress": progress}
    found = both_losses(axes, settings, losses, seeds, seed, store, **running)
    if not boundary_gammas:
        return found
    searches = seed_list(boundary_seeds, seed)
    running["tolerance"] = tolerance
    searched = bisected("gamma", boundary_gammas, settings, losses, searches, store, **running)
    return found.merge(searched)


for _model, (_options, _quick) in MODELS.items():
    for _data in ("mnist", "cifar10"):
        _own = {"data": _data, "model": _model, **_options}
        experiment(
            f"wei2018/figure2_{_data}_{_model}",
            claims=_claims,
            figure=phase_diagrams,
            scales={
                "quick": {**_own, **QUICK, **_quick},
                "small": _own,
                "medium": {**_own, **MEDIUM},
                "paper": {**_own, **PAPER},
            },
        )(panel)
