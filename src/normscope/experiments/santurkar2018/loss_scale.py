"""Which scale of the deep linear network's loss the paper's learning rate belongs to.

Unlike the rules in `judge`, the line between trained and not, half of the first loss, was drawn
with curves of seed 0 in view: as a mean over samples an eighth of the loss goes in 10,000 steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from normscope.experiments.recipe import Progress, experiment
from normscope.experiments.santurkar2018.deep_linear import LEARNING_RATE, deep_linear_trainings
from normscope.experiments.santurkar2018.judge import spread, verdict
from normscope.experiments.santurkar2018.trainings import MOMENTS
from normscope.plots.santurkar_curves import losses_by_rate
from normscope.results import Claim, Store

__all__ = ["loss_scale"]

_SOURCE = "santurkar2018, Appendix A.1"
_MEANS = {"the samples": 1e-9, "samples and outputs": 1e-10}  # 1e-6 over 1000, and over 10 more
_TRAINED = 0.5  # of the first loss: a network with less of it left has trained


def _claims(results: xr.Dataset) -> list[Claim]:
    """What is left of the first loss, by the rate that the printed one is of the summed loss."""
    left = results["final_loss"] / results["training_loss"].isel(step=0)
    left = left.sel(norm="none").where(lambda share: np.isfinite(share), np.inf)
    rates = left["learning_rate"].values
    claims = [
        _share(left.sel(learning_rate=LEARNING_RATE), "trains if the loss is summed", True),
        *(
            _share(left.sel(learning_rate=rate), f"does not if it is a mean over {what}", False)
            for what, rate in _MEANS.items()
            if rate in rates
        ),
    ]
    best = rates[left.argmin("learning_rate").values]
    found = ", ".join(f"{rate:g}" for rate in np.atleast_1d(best))
    text = "1e-6 is the best of the rates tried for the standard network (summed loss)"
    held = np.atleast_1d(best) == LEARNING_RATE
    return [*claims, Claim(text, _SOURCE, f"best rate by seed: {found}", verdict(held))]


def _share(left: xr.DataArray, ending: str, trains: bool) -> Claim:
    shares = np.atleast_1d(left.values)
    held = (shares < _TRAINED) == trains
    text = f"DLN: the learning rate 1e-6 {ending}"
    return Claim(text, _SOURCE, f"{spread(shares)} of the first loss is left", verdict(held))


@experiment(
    "santurkar2018/loss_scale",
    claims=_claims,
    figure=losses_by_rate,
    scales={
        "quick": {"depth": 5, "samples": 100, "steps": 10, "rates": (1e-9, 1e-6), "seeds": 1},
        "small": {"steps": 2_000},
        "paper": {},
    },
)
def loss_scale(
    *,
    rates: Sequence[float] = (1e-10, 1e-9, 1e-7, 1e-6, 1e-5),
    depth: int = 25,
    samples: int = 1000,
    steps: int = 10_000,
    seeds: int = 3,
    seed: int = 0,
    store: Store,
    progress: Progress,
) -> xr.Dataset:
    """Loss of the deep linear network over learning rates of the summed loss.

    A loss divided by a number trains as the undivided one with the learning rate divided by it;
    so the rates are also those of means over the samples (1e-6 is 1e-9 of the sum) and over
    samples and outputs (1e-10).

    Reference: santurkar2018, Appendix A.1.

    Args:
        rates: learning rates of the summed loss.
        depth: number of 10 x 10 matrices.
        samples: of the data, all of which are the batch.
        steps: updates.
        seeds: repetitions.
        seed: the first of them.
        store: keeps the trainings.
        progress: called with a label before each.

    Returns:
        ``training_loss`` over (norm, learning_rate, seed, step) and ``final_loss``.
    """
    results = deep_linear_trainings(
        ("none", "batch"),
        rates,
        depth=depth,
        samples=samples,
        linear_steps=steps,
        linear_every=max(1, steps // 10),
        seeds=seeds,
        seed=seed,
        store=store,
        progress=progress,
        probes=MOMENTS,
    )
    return results[["training_loss", "final_loss"]]
