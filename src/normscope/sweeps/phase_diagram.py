"""Where training converges: the diagram over gamma (or another setting) and learning rate."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import xarray as xr

from normscope.errors import InputError
from normscope.results import Store
from normscope.sweeps.checked import value_list
from normscope.sweeps.defaults import DEFAULT_GAMMAS, DEFAULT_RATES, MODEL
from normscope.sweeps.diagram import TRAININGS, complete, diagram, training_units

__all__ = [
    "TRAININGS",
    "complete",
    "phase_diagram",
    "refuse_axes",
    "seed_list",
    "training_units",
]


_OWN = {
    "gamma": "give its values as gammas",
    "learning_rate": "give its values as learning_rates",
}


def phase_diagram(
    model: str = MODEL,
    data: str = "digits",
    gammas: Sequence[float] = DEFAULT_GAMMAS,
    learning_rates: Sequence[float] = DEFAULT_RATES,
    seeds: int | Sequence[int] = 1,
    epochs: float = 5,
    *,
    store: Store | str | os.PathLike[str] | None = None,
    engine: str = "local",
    workers: int = 1,
    threads: int = 1,
    address: str | None = None,
    progress: Callable[[str], None] = lambda label: None,
    **settings: Any,
) -> xr.Dataset:
    """Train over all (gamma, learning rate, seed) and set the theory's lines beside it.

    Every training is a record of the store: an interrupted call goes on where it was, and
    diagrams that share trainings share them. Reference: wei2018, Figure 2.

    Args:
        model: a registered model, or the place of a factory of your own, such as
            ``my_model.py:build`` or ``package.module:build``.
        data: a registered data set, or the place of a function of your own that returns a pair
            (inputs, targets), or two such pairs (training, test).
        gammas: initial scales of every norm layer.
        learning_rates: of SGD.
        seeds: how many repetitions, or their seeds.
        epochs: passes over the training data.
        store: keeps the trainings: a store, or the path of its file; None: for this call only.
        engine: local, ray or dask.
        workers: trainings at the same time.
        threads: of each worker.
        address: of a Ray or Dask cluster that runs already.
        progress: called with a label as trainings end.
        **settings: the other settings of :class:`normscope.sweeps.Training`, and options of the
            model.

    Returns:
        ``test_loss``, ``test_accuracy``, ``train_loss``, ``loss_growth``, ``steps_done`` and
        ``diverged`` (gamma, learning_rate, seed), not-a-number where a training diverged or
        failed (``failed``); ``critical_learning_rate`` (closure, gamma) by theory.

    Examples:
        >>> found = phase_diagram(
        ...     gammas=[1.0], learning_rates=[0.01, 10.0], epochs=1, width=20, samples=256
        ... )
        >>> found["diverged"].values.ravel().tolist()
        [False, True]
    """
    refuse_axes(settings, _OWN)
    fixed = {"model": model, "data": data, "epochs": epochs, **settings}
    axes = {
        "gamma": value_list("gammas", gammas),
        "learning_rate": value_list("learning_rates", learning_rates),
    }
    found, _ = diagram(
        axes,
        fixed,
        seed_list(seeds),
        store,
        engine=engine,
        workers=workers,
        threads=threads,
        address=address,
        progress=progress,
    )
    return found


def seed_list(seeds: int | Sequence[int], first: int = 0) -> list[int]:
    """The seeds: so many of them from the first one on, or as they are given."""
    return list(range(first, first + seeds)) if isinstance(seeds, int) else list(seeds)


def refuse_axes(settings: Mapping[str, Any], places: Mapping[str, str]) -> None:
    """Refuse settings that a diagram varies itself.

    Args:
        settings: as they are given.
        places: where such a setting belongs, by its name.

    Raises:
        InputError: if there is one.
    """
    for name in places:
        if name in settings:
            raise InputError(
                f"{name} is no fixed setting here, got {settings[name]!r}; {places[name]}."
            )
