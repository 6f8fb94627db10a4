"""Selecting from the trainings what a figure shows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

__all__ = ["CURVES", "LANDSCAPE", "chosen_layers", "distributions", "normalized_layers"]

CURVES = ("training_loss", "training_accuracy", "test_accuracy", "final_test_accuracy")
LANDSCAPE = (
    *("loss_low", "loss_high", "gradient_distance_low", "gradient_distance_high"),
    *("effective_smoothness", "training_loss"),
)
_HISTOGRAMS = ("histogram", "histogram_low", "histogram_high")


def chosen_layers(results: xr.Dataset, count: int) -> list[str]:
    """Evenly spaced layers, the first left out: nothing runs before it.

    Args:
        results: with a dimension ``layer``.
        count: how many.

    Returns:
        Their names, in order.
    """
    names = [str(name) for name in results["layer"].values]
    places = np.unique(np.linspace(1, len(names) - 1, count + 1).round().astype(int)[:-1])
    return [names[place] for place in places]


def normalized_layers(results: xr.Dataset) -> xr.Dataset:
    """The layers that a norm layer follows: those of ``features``."""
    names = [str(name) for name in results["layer"].values]
    return results.sel(layer=[name for name in names if name.startswith("features")])


def distributions(results: xr.Dataset, layers: Sequence[str]) -> xr.Dataset:
    """Histograms of one sampled unit of each layer over the training of the first seed."""
    return results[list(_HISTOGRAMS)].isel(seed=0, unit=0, drop=True).sel(layer=list(layers))
