"""Figure 2: test loss over learning rate and gamma, with the theory's critical rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr

from normscope.experiments.recipe import Progress, experiment
from normscope.experiments.wei2018.phase_diagram import (
    agreement,
    both_losses,
    nearest_half,
    smaller_is,
)
from normscope.plots.phase_diagram import phase_diagrams
from normscope.results import Claim, Store

__all__ = ["conv_net_panel", "fully_connected_panel"]

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


def _fully_connected_scales(data: str) -> dict[str, dict[str, Any]]:
    quick = {**QUICK, "width": 48}
    return {"quick": quick, "small": {"data": data}, "paper": {"data": data, **PAPER}}


def _conv_net_scales(data: str) -> dict[str, dict[str, Any]]:
    quick = {**QUICK, "channels": (6, 8, 10), "padding": 1}
    return {"quick": quick, "small": {"data": data}, "paper": {"data": data, **PAPER}}


@experiment(
    "wei2018/figure2_mnist_fully_connected",
    claims=_claims,
    figure=phase_diagrams,
    scales=_fully_connected_scales("mnist"),
)
@experiment(
    "wei2018/figure2_cifar10_fully_connected",
    claims=_claims,
    figure=phase_diagrams,
    scales=_fully_connected_scales("cifar10"),
)
def fully_connected_panel(
    *,
    data: str = "mnist",
    gammas: Sequence[float] = GAMMAS,
    learning_rates: Sequence[float] = RATES,
    losses: Sequence[str] = LOSSES,
    width: int = 1000,
    epochs: float = 2.0,
    samples: int | None = 12800,
    test_samples: int | None = 2000,
    batch_size: int = 128,
    momentum: float = 0.9,
    seeds: int = 2,
    workers: int = 2,
    threads: int = 1,
    seed: int = 0,
    store: Store,
    progress: Progress,
) -> xr.Dataset:
    """Test loss over gamma and learning rate: four fully connected layers, and the theory's lines.

    Reference: wei2018, Figure 2 and Section 4.

    Args:
        data: a registered data set.
        gammas: initial scales of the normalization.
        learning_rates: of SGD.
        losses: to train with.
        width: of the hidden layers.
        epochs: passes over the training data.
        samples: of the training data; None: all.
        test_samples: of the test data; None: all.
        batch_size: samples per step.
        momentum: heavy-ball momentum.
        seeds: trainings of each cell.
        workers: trainings at the same time.
        threads: of each worker.
        seed: first seed; the others follow it.
        store: keeps each training.
        progress: called with a label as trainings end.

    Returns:
        ``test_loss``, ``train_loss``, ``diverged`` and others (loss, gamma, learning_rate, seed),
        ``critical_learning_rate`` (loss, closure, gamma).
    """
    settings = {
        "model": "fully_connected",
        "data": data,
        "width": width,
        "epochs": epochs,
        "samples": samples,
        "test_samples": test_samples,
        "batch_size": batch_size,
        "momentum": momentum,
    }
    axes = {"gamma": list(gammas), "learning_rate": list(learning_rates)}
    running = {"workers": workers, "threads": threads, "progress": progress}
    return both_losses(axes, settings, losses, seeds, seed, store, **running)


@experiment(
    "wei2018/figure2_mnist_conv_net",
    claims=_claims,
    figure=phase_diagrams,
    scales=_conv_net_scales("mnist"),
)
@experiment(
    "wei2018/figure2_cifar10_conv_net",
    claims=_claims,
    figure=phase_diagrams,
    scales=_conv_net_scales("cifar10"),
)
def conv_net_panel(
    *,
    data: str = "mnist",
    gammas: Sequence[float] = GAMMAS,
    learning_rates: Sequence[float] = RATES,
    losses: Sequence[str] = LOSSES,
    channels: Sequence[int] = (30, 60, 90),
    padding: int = 0,
    epochs: float = 2.0,
    samples: int | None = 12800,
    test_samples: int | None = 2000,
    batch_size: int = 128,
    momentum: float = 0.9,
    seeds: int = 1,
    workers: int = 1,
    threads: int = 2,
    seed: int = 0,
    store: Store,
    progress: Progress,
) -> xr.Dataset:
    """Test loss over gamma and learning rate: three convolutions, and the theory's lines.

    Reference: wei2018, Figure 2 and Section 4.

    Args:
        data: a registered data set.
        gammas: initial scales of the normalization.
        learning_rates: of SGD.
        losses: to train with.
        channels: of the convolutions.
        padding: zeros on each side of an image; the paper has none.
        epochs: passes over the training data.
        samples: of the training data; None: all.
        test_samples: of the test data; None: all.
        batch_size: samples per step.
        momentum: heavy-ball momentum.
        seeds: trainings of each cell.
        workers: trainings at the same time.
        threads: of each worker; convolutions gain more from threads than from workers.
        seed: first seed; the others follow it.
        store: keeps each training.
        progress: called with a label as trainings end.

    Returns:
        ``test_loss``, ``train_loss``, ``diverged`` and others (loss, gamma, learning_rate, seed),
        ``critical_learning_rate`` (loss, closure, gamma).
    """
    settings = {
        "model": "conv_net",
        "data": data,
        "channels": list(channels),
        "padding": padding,
        "epochs": epochs,
        "samples": samples,
        "test_samples": test_samples,
        "batch_size": batch_size,
        "momentum": momentum,
    }
    axes = {"gamma": list(gammas), "learning_rate": list(learning_rates)}
    running = {"workers": workers, "threads": threads, "progress": progress}
    return both_losses(axes, settings, losses, seeds, seed, store, **running)
