"""Figure 1: VGG with and without BatchNorm at two learning rates."""

from __future__ import annotations

import numpy as np
import xarray as xr

from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.judge import spread, verdict
from normscope.experiments.santurkar2018.shape import (
    CURVES,
    chosen_layers,
    distributions,
    normalized_layers,
)
from normscope.experiments.santurkar2018.statements import trains_better
from normscope.experiments.santurkar2018.vgg import LEARNING_RATE, SCALES, on_vgg
from normscope.plots.training_curves import accuracy_and_distributions
from normscope.results import Claim

__all__ = ["figure1"]

_SOURCE = "santurkar2018, Figure 1"
_RATES = (LEARNING_RATE, 0.5)
_PRINTED = {"batch": 0.83, "none": 0.80}
_CLOSE = 0.02  # a test accuracy within two points of the printed one counts as it
_PAPER = {"data": "cifar10", "width": 1.0, "steps": 15_000, "evaluated": 10_000}


def _claims(results: xr.Dataset) -> list[Claim]:
    by_rate = (
        trains_better(
            results.sel(learning_rate=rate), "batch", _SOURCE, f"VGG at learning rate {rate:g}"
        )
        for rate in _RATES
    )
    return [*by_rate, _test_accuracy(results)]


def _test_accuracy(results: xr.Dataset) -> Claim:
    """The printed accuracies; at other settings than the paper's they are reported, not judged.

    Nor are they if the accuracy was taken on a part of the test set only, or not at all.
    """
    final = results["final_test_accuracy"].sel(learning_rate=LEARNING_RATE)
    found = {norm: np.atleast_1d(final.sel(norm=norm).values) for norm in _PRINTED}
    is_paper = all(results.attrs.get(name) == value for name, value in _PAPER.items())
    is_whole = bool(final.sel(norm=list(_PRINTED)).notnull().all())
    held = np.all([abs(found[norm] - value) <= _CLOSE for norm, value in _PRINTED.items()], axis=0)
    return Claim(
        "test accuracy 83 % with BatchNorm and 80 % without, after 15,000 steps",
        "santurkar2018, Appendix A.1",
        f"after {results.attrs['steps']} steps at width {results.attrs['width']:g}: BatchNorm "
        f"{spread(found['batch'])}, standard {spread(found['none'])}",
        verdict(held) if is_paper and is_whole else None,
    )


@experiment(
    "santurkar2018/figure1", claims=_claims, figure=accuracy_and_distributions, scales=SCALES
)
@on_vgg(("none", "batch"), _RATES)
def figure1(results: xr.Dataset) -> xr.Dataset:
    """Accuracy of VGG at learning rates 0.1 and 0.5, and the distributions of activations at 0.1.

    Reference: santurkar2018, Figure 1.

    Args:
        results: of the trainings.

    Returns:
        The curves over (norm, learning_rate, seed, step), and histograms of a unit of two layers.
    """
    layers = chosen_layers(normalized_layers(results), 2)
    at_rate = results.sel(learning_rate=LEARNING_RATE, drop=True)
    return results[list(CURVES)].merge(distributions(at_rate, layers), compat="equals")
