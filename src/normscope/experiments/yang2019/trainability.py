"""Depth up to which networks train within a budget of steps, and the claims about it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from normscope.data import load
from normscope.experiments.recipe import experiment
from normscope.experiments.yang2019.explosion import RELIEF, judged
from normscope.experiments.yang2019.growth import (
    Stack,
    integer,
    integers,
    positive_numbers,
)
from normscope.plots.depth import trainability as draw
from normscope.problem.problem import Problem
from normscope.progress import Progress, ProgressCallback
from normscope.results import Claim, Store
from normscope.results.claim import DECISION, decide_all, decide_below
from normscope.training import Outcome, fit, sgd

NAMES = ("batch", "batch, skip")
LEARNT = 0.5  # of the loss of guessing: a net that stays above has not trained
NOTHING = 0.95  # of the loss of guessing: a net that stays above has learnt nothing
NEED = "a shallow net that trains and a deep one that does not"
UNTRAINABLE = "Practically, deep batchnorm networks are untrainable."


def trainability_claims(results: xr.Dataset) -> list[Claim]:
    """Judge where plain nets stop training, and whether more steps or skip connections help.

    Args:
        results: as the experiment yang2019/trainability returns it.

    Returns:
        The claims.
    """
    more = [_is_untrainable(results)] if results.attrs["longer"] > 1 else []
    return [_within_the_budget(results), *more, _skips(results)]


def trained(best_loss: xr.DataArray, guessing: float) -> list[bool | None]:
    """Return for each depth whether the best loss is below half the loss of guessing, over seeds.

    Args:
        best_loss: of one architecture, (depth, seed).
        guessing: the loss of guessing.
    """
    losses = best_loss.fillna(np.inf).transpose("depth", "seed").values
    return [decide_below(row, LEARNT * guessing) for row in losses]


def _within_the_budget(results: xr.Dataset) -> Claim:
    guessing, steps = math.log(results.attrs["classes"]), results.attrs["steps"]
    depths, states = [int(depth) for depth in results["depth"].values], _plain_states(results)
    stuck = [depth for depth, state in zip(depths, states, strict=True) if state is False]
    onwards = bool(stuck) and stuck == depths[-len(stuck) :]
    if onwards:
        at = f"above it from depth {stuck[0]} on"
    elif stuck:
        at = f"above it at depth {', '.join(str(depth) for depth in stuck)} alone"
    else:
        at = "above it at no depth tried"
    is_open = len(depths) < 2 or states[0] is not True or (not onwards and None in states)
    return judged(
        f"deep plain batch-normalized nets do not train within {steps} steps, at every learning "
        "rate tried",
        f"half the loss of guessing is {LEARNT * guessing:.2f}; {at}; "
        + _by_depth(results, "batch"),
        None if is_open else onwards,
        NEED,
        statement=UNTRAINABLE,
        rule=f"best training loss over the learning rates, mean of the last {TAIL} steps, above "
        "half the loss of guessing at all depths from one on, and below it at the least depth; "
        f"{DECISION}",
        numbers=_numbers(results["best_loss"].sel(architecture="batch")),
    )


def _is_untrainable(results: xr.Dataset) -> Claim:
    guessing, times = math.log(results.attrs["classes"]), results.attrs["longer"]
    losses = results["longer_loss"]
    tried = [depth for depth in results["depth"].values if losses.sel(depth=depth).notnull().any()]
    best = losses.fillna(np.inf).min("learning_rate")
    texts = []
    for depth in tried:
        own = best.sel(depth=depth).values
        trains = "trains" if own.min() < LEARNT * guessing else "does not"
        slow = ", but learns" if trains != "trains" and own.max() < NOTHING * guessing else ""
        texts.append(f"depth {depth} {trains}{slow}: {_spread(own)}")
    reached = bool(tried) and tried[-1] == results["depth"].values[-1] and _shallow_trains(results)
    learns = decide_below(best.isel(depth=-1).values, NOTHING * guessing) if reached else None
    return judged(
        f"the deepest is untrainable, not merely slow: {times} times the steps leave it at the "
        f"loss of guessing ({guessing:.2f}, or less by at most 5 %)",
        f"best loss after {times * results.attrs['steps']} steps, plain nets that had stopped: "
        + ("; ".join(texts) or "none was trained on"),
        None if learns is None else not learns,
        NEED,
        statement=UNTRAINABLE,
        rule=f"best training loss over the learning rates after {times} times the steps, at the "
        f"largest depth, above {NOTHING:.0%} of the loss of guessing; {DECISION}",
        numbers=_numbers(best.sel(depth=tried)),
    )


def _skips(results: xr.Dataset) -> Claim:
    skip = results["best_loss"].sel(architecture=NAMES[1])
    states = trained(skip, math.log(results.attrs["classes"]))
    lifted = [
        state for state, plain in zip(states, _plain_states(results), strict=True) if plain is False
    ]
    return judged(
        "residual connections lift it: nets as deep as the plain ones that stopped train within "
        "the same steps",
        _by_depth(results, NAMES[1]),
        decide_all(lifted) if _shallow_trains(results) else None,
        NEED,
        statement=RELIEF,
        rule="best training loss over the learning rates below half the loss of guessing at every "
        f"depth at which plain nets are above it; {DECISION}",
        numbers=_numbers(skip),
    )


def _plain_states(results: xr.Dataset) -> list[bool | None]:
    plain = results["best_loss"].sel(architecture=NAMES[0])
    return trained(plain, math.log(results.attrs["classes"]))


def _numbers(losses: xr.DataArray) -> dict[str, list[float]]:
    """Return the losses of the seeds by depth."""
    return {f"depth {int(each['depth'])}": each.values.tolist() for each in losses}


def _shallow_trains(results: xr.Dataset) -> bool:
    """Whether the steps and learning rates are enough for a plain net of the least depth."""
    return _plain_states(results)[0] is True


def _by_depth(results: xr.Dataset, architecture: str) -> str:
    """The best loss of each depth, and the learning rate with the least mean loss."""
    loss = results["loss"].sel(architecture=architecture).fillna(np.inf)
    best = results["best_loss"].sel(architecture=architecture)
    texts = []
    for depth in results["depth"].values:
        means = loss.sel(depth=depth).mean("seed")
        rate = float(means["learning_rate"].values[means.values.argmin()])
        texts.append(f"{depth}: {_spread(best.sel(depth=depth).values)} at rate {rate:g}")
    return f"best loss by depth, {best.sizes['seed']} seeds: {', '.join(texts)}"


def _spread(values: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> str:
    return f"{values.mean():.3g} ({values.min():.3g} to {values.max():.3g})"


TAIL = 10  # last steps whose mean is the final loss


@experiment(
    "yang2019/trainability",
    claims=trainability_claims,
    figure=draw,
    scales={
        "quick": {
            "depths": (4, 48),
            "learning_rates": (0.1, 1.0),
            "width": 32,
            "batch_size": 32,
            "steps": 40,
            "longer": 1,
        },
        "small": {"data": "mnist"},
        "paper": {
            "data": "mnist",
            "depths": (10, 20, 30, 40, 60, 80, 120, 160),
            "learning_rates": (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
            "width": 1000,
            "batch_size": 128,
            "steps": 3000,
            "seeds": 5,
        },
    },
)
def trainability(
    *,
    data: str = "digits",
    depths: Sequence[int] = (5, 10, 20, 40, 80),
    learning_rates: Sequence[float] = (0.03, 0.3, 1.0),
    width: int = 64,
    batch_size: int = 64,
    steps: int = 150,
    longer: int = 10,
    seeds: int = 3,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """Training loss within some steps against depth, with and without skips, per learning rate.

    Fully connected ReLU nets with batch normalization, plain SGD, cross-entropy. Plain nets that do
    not train within the steps are trained again with more steps, to distinguish slow ones from
    those that cannot be trained.

    Reference: yang2019.

    Args:
        data: digits or mnist.
        depths: numbers of blocks.
        learning_rates: to choose the best of.
        width: units of a block.
        batch_size: samples per step.
        steps: optimizer steps.
        longer: times the steps for plain nets of a depth at which none trained; 1 for none.
        seeds: trainings of each kind.
        seed: first seed; the others follow it.
        store: keeps each training.
        progress: receives an event before each training.

    Returns:
        ``loss`` (architecture, depth, learning_rate, seed): the mean of the last ten steps, not a
        number after a divergence; ``best_loss`` (architecture, depth, seed); ``longer_loss``
        (depth, learning_rate, seed) of plain nets with more steps, NaN where none was
        trained so.
    """
    depths = integers("depths", depths, at_least=1)
    rates = positive_numbers("learning_rates", learning_rates)
    common = {
        "data": data,
        "width": integer("width", width, at_least=1),
        "batch_size": integer("batch_size", batch_size, at_least=2),
        "steps": integer("steps", steps, at_least=1),
    }
    longer = integer("longer", longer, at_least=1)
    seeds = integer("seeds", seeds, at_least=1)
    samples = load(data)
    coordinates = {
        "architecture": list(NAMES),
        "depth": list(depths),
        "learning_rate": list(rates),
        "seed": list(range(seed, seed + seeds)),
    }
    attributes = {**common, "longer": longer, "classes": len(samples.classes)}
    results = xr.Dataset(coords=coordinates, attrs=attributes)
    trained = partial(_trainings, store, progress, samples.train)
    losses = trained(common, results)
    results["loss"] = (tuple(coordinates), losses)
    best = np.where(np.isnan(losses), np.inf, losses).min(2)  # inf: every rate diverged
    results["best_loss"] = (("architecture", "depth", "seed"), best)
    results["longer_loss"] = _with_more_steps(trained, common, results)
    return results


def _with_more_steps(
    trained: Callable[[dict[str, Any], xr.Dataset], Any],
    common: dict[str, Any],
    results: xr.Dataset,
) -> xr.DataArray:
    """Train the plain nets that did not train with more steps; return their losses."""
    losses = xr.full_like(results["loss"].sel(architecture="batch", drop=True), math.nan)
    plain, times = results["best_loss"].sel(architecture="batch"), results.attrs["longer"]
    above = plain.min("seed") > LEARNT * math.log(results.attrs["classes"])
    stuck = [int(depth) for depth in plain["depth"].values[above.values]]
    if stuck and times > 1:
        which = results.coords.to_dataset().sel(architecture=["batch"], depth=stuck)
        more = trained({**common, "steps": times * common["steps"]}, which)
        losses.loc[{"depth": stuck}] = more[0]
    else:
        losses.attrs["missing"] = "no net was trained with more steps"
    return losses


def _trainings(
    store: Store,
    progress: ProgressCallback,
    samples: Any,
    common: dict[str, Any],
    which: xr.Dataset,
) -> Any:
    """Return the final losses of all combinations of the coordinates."""
    names = ("architecture", "depth", "learning_rate", "seed")
    values = [which[name].values.tolist() for name in names]
    losses = []
    for architecture, depth, rate, seed in itertools.product(*values):
        label = f"{architecture}, depth {depth}, learning rate {rate:g}, seed {seed}"
        progress(Progress(f"{label}, {common['steps']} steps"))
        kind = {"architecture": architecture, "depth": depth, "learning_rate": rate}
        parameters = {**common, **kind}
        compute = partial(_trained, samples, seed=seed, **parameters)
        found = store.compute("yang2019/trainability run", parameters, seed, compute)
        losses.append(float(found["loss"]))
    return np.reshape(losses, [len(each) for each in values])


def _trained(
    samples: Any,
    data: str,
    architecture: str,
    depth: int,
    width: int,
    learning_rate: float,
    batch_size: int,
    steps: int,
    seed: int,
) -> xr.Dataset:
    """The final loss of one training."""
    x, y = samples
    network = Stack(
        architecture, x[0].numel(), int(y.max()) + 1, depth=depth, width=width, seed=seed
    )
    problem = Problem(network, "cross_entropy", samples)
    run = fit(problem, sgd(learning_rate), steps=steps, batch_size=batch_size, seed=seed)
    diverged = run.outcome is Outcome.DIVERGED
    final = math.nan if diverged else float(run.losses[-TAIL:].mean())
    return xr.Dataset({"loss": final})
