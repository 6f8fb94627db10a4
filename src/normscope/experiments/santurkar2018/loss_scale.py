"""Which scale of the deep linear network's loss the paper's learning rate refers to.

Unlike the rules in `judging`, the threshold between trained and not trained, half of the first
loss, was chosen after seeing curves of seed 0: with the mean over samples the loss falls by an
eighth in 10,000 steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from normscope.errors import InputError
from normscope.experiments.recipe import experiment
from normscope.experiments.santurkar2018.judging import spread, verdict
from normscope.experiments.santurkar2018.run_training import MOMENTS
from normscope.experiments.santurkar2018.trainings import (
    LINEAR_RATE,
    deep_linear_trainings,
    run_trainings,
)
from normscope.plots.training_curves import losses_by_rate
from normscope.progress import ProgressCallback
from normscope.results import Claim, Store

_SOURCE = "santurkar2018, Appendix A.1"
_SAME = 1e-6  # relative difference below which two rates are equal
_OUTPUTS = 10  # of the network, over which a mean may run besides the samples
_RULE = "share of the first loss left at the end, half of it is the line; all of at least 3 seeds"
_TRAINED = 0.5  # share of the first loss below which a network counts as trained


def _means(samples: int) -> dict[str, float]:
    """Return the rates of the summed loss that equal the printed rate of a mean."""
    over_samples = LINEAR_RATE / samples
    return {"the samples": over_samples, "samples and outputs": over_samples / _OUTPUTS}


def _claims(results: xr.Dataset) -> list[Claim]:
    """Judge the share of the first loss that is left at each rate."""
    left = _left(results).sel(norm="none")
    rates, steps = left["learning_rate"].values, results.attrs["steps"]
    claims = [
        _share(_at(left, LINEAR_RATE), "trains", "is summed", steps),
        *(
            _share(_at(left, rate), "does not train", f"is a mean over {what}", steps)
            for what, rate in _means(results.attrs["samples"]).items()
        ),
    ]
    best = np.atleast_1d(rates[left.fillna(np.inf).argmin("learning_rate").values])
    missing = np.atleast_1d(left.isnull().any("learning_rate").values)
    found = ", ".join(
        "unknown" if lacks else f"{rate:g}" for rate, lacks in zip(best, missing, strict=True)
    )
    text = "1e-6 is the best of the rates tried for the standard network (summed loss)"
    held = np.isclose(best, LINEAR_RATE, rtol=_SAME, atol=0)
    measured = f"best rate by seed, after {steps:,} steps: {found}"
    return [*claims, _judged(text, measured, held, missing)]


def _left(results: xr.Dataset) -> xr.DataArray:
    """Return the share of the first loss; infinite after a divergence, NaN without a run."""
    first = results["training_loss"].isel(step=0)
    share = results["final_loss"] / first
    return share.where(np.isfinite(share) | first.isnull(), np.inf)


def _at(left: xr.DataArray, rate: float) -> xr.DataArray:
    return left.sel(learning_rate=rate, method="nearest", tolerance=_SAME * rate)


def _share(left: xr.DataArray, does: str, loss: str, steps: int) -> Claim:
    shares = np.atleast_1d(left.values)
    held = (shares < _TRAINED) == (does == "trains")
    text = f"DLN: the learning rate 1e-6 {does} in {steps:,} steps if the loss {loss}"
    missing = np.isnan(shares)
    of_first = "" if missing.all() else " of the first loss is left"
    return _judged(text, f"{spread(shares)}{of_first}", held, missing)


def _judged(text: str, measured: str, held: np.ndarray, missing: np.ndarray) -> Claim:
    """Return the claim, undecided if a number it needs is missing in a seed."""
    lack = (
        f" (undecided: not measured in {missing.sum()} of {len(missing)} seeds)"
        if missing.any()
        else ""
    )
    decided = None if missing.any() else verdict(held)
    return Claim(
        text,
        _SOURCE,
        f"{measured}{lack}",
        decided,
        rule=_RULE,
        origin="beyond the paper",
        resolve="" if decided is not None else "at least 3 seeds that agree",
    )


def _check_rates(rates: Sequence[float], samples: int) -> None:
    needed = (LINEAR_RATE, *_means(samples).values())
    if all(np.isclose(rates, rate, rtol=_SAME, atol=0).any() for rate in needed):
        return
    raise InputError(
        f"rates must hold {', '.join(f'{rate:g}' for rate in needed)} (1e-6 and what it is as a "
        f"mean over {samples} samples, and over their {_OUTPUTS} outputs too), got "
        f"{', '.join(f'{rate:g}' for rate in rates)}."
    )


@experiment(
    "santurkar2018/loss_scale",
    claims=_claims,
    figure=losses_by_rate,
    scales={
        "quick": {"depth": 5, "samples": 100, "steps": 10, "rates": (1e-9, 1e-8, 1e-6), "seeds": 1},
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
    progress: ProgressCallback,
) -> xr.Dataset:
    """Loss of the deep linear network over learning rates of the summed loss.

    A loss divided by a number trains as the undivided one with the learning rate divided by it;
    so the rates are also those of means over the samples (of 1000: 1e-6 is 1e-9 of the sum) and
    over samples and outputs (1e-10).

    Reference: santurkar2018, Appendix A.1.

    Args:
        rates: learning rates of the summed loss; 1e-6 and what it is of both means among them.
        depth: number of 10 x 10 matrices.
        samples: of the data, all of which are the batch.
        steps: updates.
        seeds: repetitions.
        seed: the first of them.
        store: keeps the trainings.
        progress: receives an event before each.

    Returns:
        ``training_loss`` over (norm, learning_rate, seed, step) and ``final_loss``.
    """
    _check_rates(rates, samples)
    every = max(1, steps // 10)
    size = {"depth": depth, "samples": samples, "linear_steps": steps, "linear_every": every}
    trainings = deep_linear_trainings(("none", "batch"), rates, MOMENTS, **size)
    results = run_trainings(trainings, range(seed, seed + seeds), store, progress)
    return results[["training_loss", "final_loss"]].assign_attrs(samples=samples, steps=steps)
