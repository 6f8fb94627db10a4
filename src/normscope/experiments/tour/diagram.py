"""A small phase diagram of the net with BatchNorm, with the theory's line."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import xarray as xr

from normscope.experiments.tour.net import Net
from normscope.results import Store
from normscope.sweeps import phase_diagram

__all__ = ["diagram", "diagram_part"]

_OWN = ("test_loss", "diverged", "critical_learning_rate")
_PREFIX = "diagram_"


def diagram(
    net: Net,
    gammas: Sequence[float],
    rates: Sequence[float],
    epochs: float,
    seeds: Sequence[int],
    store: Store,
    tell: Callable[[str], None],
) -> xr.Dataset:
    """Where training converges over the scale of BatchNorm and the learning rate.

    The loss is the squared error, which the theory is about. Reference: wei2018, Figure 2.

    Args:
        net: the network.
        gammas: initial scales of BatchNorm.
        rates: learning rates.
        epochs: of each training.
        seeds: of weights and order of the data.
        store: keeps the trainings.
        tell: called with a text as trainings end.

    Returns:
        ``diagram_test_loss`` and ``diagram_diverged`` (gamma, learning_rate, diagram_seed),
        ``diagram_critical_learning_rate`` (closure, gamma).
    """
    found = phase_diagram(
        "fully_connected",
        net.data,
        list(gammas),
        list(rates),
        list(seeds),
        epochs,
        store=store,
        progress=tell,
        width=net.width,
        depth=net.depth,
        batch_size=net.batch_size,
        momentum=net.momentum,
    )
    names = {name: f"{_PREFIX}{name}" for name in (*_OWN, "seed")}
    settings = {f"{_PREFIX}{key}": value for key, value in found.attrs.items()}
    return found[list(_OWN)].rename(names).drop_attrs(deep=False).assign_attrs(settings)


def diagram_part(results: xr.Dataset) -> xr.Dataset:
    """The diagram in the results of the tour, as `normscope.sweeps.phase_diagram` returns it."""
    part = results[[f"{_PREFIX}{name}" for name in _OWN]]
    names = {f"{_PREFIX}{name}": name for name in (*_OWN, "seed")}
    settings = {
        str(key).removeprefix(_PREFIX): value
        for key, value in results.attrs.items()
        if str(key).startswith(_PREFIX)
    }
    return part.drop_vars("seed", errors="ignore").rename(names).assign_attrs(settings)
