"""The trainings of VGG and the deep linear network: settings by scale, and records in a store.

A figure asks for trainings and selects from them; a training that is in the store is not run again.
So all figures of a network cost its trainings once, and an interrupted run resumes with the
training that was under way. The deep linear network's loss is summed: `loss_scale` shows why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from normscope.errors import InputError, StateError
from normscope.experiments.recipe import side_by_side
from normscope.experiments.santurkar2018.run_training import (
    ALL_PROBES,
    CHECKPOINT_EVERY,
    MOMENTS,
    Training,
    estimate_seconds,
    read_unfinished,
    run_training,
)
from normscope.progress import Progress, ProgressCallback, ignore_progress
from normscope.results import Store
from normscope.results.record import record_key
from normscope.text import format_duration
from normscope.training.checkpoint import steps_taken

RECORDS = "santurkar2018 training"
REVISION = 2  # raise it when a change of the code changes the numbers

MISSING = "missing"  # attribute of a dataset: trainings that a read-only store lacks
UNFINISHED = "unfinished"  # attribute of a dataset: trainings that were under way
_LONG = 1_000  # steps from which the time is estimated before

_Key = tuple[float, str, int]  # learning rate, normalization, seed

VGG_RATE = 0.1
VGG_BATCH_SIZE = 128
VGG_DISTANCES = tuple(np.linspace(0.5, 4.0, 8).tolist())
VGG_QUICK_DISTANCES = (0.5, 1.5, 4.0)
LINEAR_RATE = 1e-6
LINEAR_DISTANCES = (0.01, 0.1, 1.0, 3.0, 6.0, 10.0, 20.0, 30.0)

#: The paper's settings of each network.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "vgg": {"data": "cifar10", "width": 1.0, "steps": 15_000, "every": 250, "evaluated": 10_000},
    "deep_linear": {
        "depth": 25,
        "samples": 1000,
        "linear_steps": 10_000,
        "linear_every": 500,
    },
}
#: Settings that differ from the paper's. Small: VGG at an eighth of its width and a fiftieth of
#: the steps, minutes on two cores; the deep linear network's loss is constant well before 4,000
#: steps. Medium: all of the paper's steps, VGG at a quarter of its width, which takes 15 to 20
#: minutes of one core for each training; a deep linear training takes 1 to 3.
SETTINGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "vgg": {
        "quick": {"data": "digits", "width": 0.03, "steps": 4, "every": 2, "evaluated": 50},
        "small": {"width": 0.125, "steps": 300, "every": 25, "evaluated": 1000},
        "medium": {"width": 0.25, "evaluated": 2_000},
        "paper": {},
    },
    "deep_linear": {
        "quick": {"depth": 5, "samples": 100, "linear_steps": 20, "linear_every": 10},
        "small": {"linear_steps": 4_000, "linear_every": 200},
        "medium": {},
        "paper": {},
    },
}
_DIMENSIONS = ("step", "layer", "distance", "learning_rate")  # each network has its own


def vgg_trainings(
    norms: Sequence[str],
    rates: Sequence[float] = (VGG_RATE,),
    *,
    data: str,
    width: float,
    steps: int,
    every: int,
    evaluated: int,
) -> list[Training]:
    """Return trainings of VGG: batch 128, plain gradient descent without augmentation.

    Reference: santurkar2018, Appendix A.1.

    Args:
        norms: normalizations.
        rates: learning rates; the landscape is measured at 0.1 only, the paper's rate.
        data: cifar10, or digits for a quick run with three points on the ray.
        width: multiplier of the hidden sizes.
        steps: number of updates.
        every: steps between measurements; twice as many for the covariate shift.
        evaluated: samples of either split on which the accuracy is measured.

    Returns:
        Input of `run_trainings`; each seed has its own weights and order of the data.
    """
    return [
        Training(
            network="vgg",
            norm=norm,
            learning_rate=rate,
            steps=steps,
            measured=tuple(range(0, steps, every)),
            batch_size=VGG_BATCH_SIZE,
            probes=ALL_PROBES if rate == VGG_RATE else MOMENTS,
            distances=VGG_QUICK_DISTANCES if data == "digits" else VGG_DISTANCES,
            shift_every=2 * every,
            evaluated=evaluated,
            options={"data": data, "width": width},
        )
        for rate in rates
        for norm in norms
    ]


def deep_linear_trainings(
    norms: Sequence[str],
    rates: Sequence[float] = (LINEAR_RATE,),
    probes: Sequence[str] = ALL_PROBES,
    *,
    depth: int,
    samples: int,
    linear_steps: int,
    linear_every: int,
) -> list[Training]:
    """Return trainings of the deep linear network: Gaussian data, full batch, summed loss.

    Reference: santurkar2018, Appendix A.1.

    Args:
        norms: normalizations.
        rates: learning rates.
        probes: names of the probes.
        depth: number of 10 x 10 matrices.
        samples: of the data, all of which are the batch.
        linear_steps: number of updates.
        linear_every: steps between measurements; a tenth of it in the first tenth.

    Returns:
        Input of `run_trainings`; each seed has its own weights, matrix A and inputs.

    Raises:
        InputError: if the depth is below 2.
    """
    if depth < 2:
        raise InputError(
            f"depth must be at least 2, got {depth}: probes measure the layers of the deep linear "
            "network that follow another."
        )
    return [
        Training(
            network="deep_linear",
            norm=norm,
            learning_rate=rate,
            steps=linear_steps,
            measured=measured_steps(linear_steps, linear_every),
            probes=tuple(probes),
            distances=LINEAR_DISTANCES,
            options={"depth": depth, "samples": samples},
        )
        for rate in rates
        for norm in norms
    ]


def measured_steps(steps: int, every: int) -> tuple[int, ...]:
    """Return measured steps, ten times as dense in the first tenth, where the loss falls most.

    >>> measured_steps(40, 20)
    (0, 2, 20)
    """
    dense = np.arange(0, steps // 10, max(1, every // 10))
    return tuple(np.unique([*dense, *range(0, steps, every)]).tolist())


def beside(vgg: xr.Dataset, linear: xr.Dataset) -> xr.Dataset:
    """Return both networks in one dataset, names and dimensions of the linear one prefixed.

    Args:
        vgg: variables of VGG, over step, layer and others.
        linear: those of the deep linear network; their names get the prefix ``linear_``.

    Returns:
        Both, sharing the normalizations and the seeds.
    """
    own = [name for name in _DIMENSIONS if name in linear.coords]
    names = {str(name): f"linear_{name}" for name in (*linear.data_vars, *own)}
    parts = [vgg, linear.rename(names)]
    return xr.merge(parts, compat="equals", join="outer", combine_attrs="drop_conflicts")


def linear_part(results: xr.Dataset) -> xr.Dataset:
    """Return the deep linear network's part of `beside` under the names without the prefix."""
    names = [str(name) for name in results.data_vars if str(name).startswith("linear_")]
    part = results[names]
    own = [name for name in _DIMENSIONS if f"linear_{name}" in part.coords]
    part = part.drop_vars([name for name in _DIMENSIONS if name in part.coords])
    return part.rename({f"linear_{name}": name for name in own}).rename(
        {name: name.removeprefix("linear_") for name in names}
    )


def run_trainings(
    trainings: Sequence[Training],
    seeds: Iterable[int],
    store: Store,
    progress: ProgressCallback,
    other_seeds: int | None = None,
    unfinished: bool = False,
) -> xr.Dataset:
    """Return trainings that differ in normalization or learning rate, from the store or run now.

    A long training saves a checkpoint every 500 steps, in the folder ``checkpoints`` beside the
    store: if interrupted, the next call resumes it and gives the same numbers, bit for bit. From a
    read-only store no training is run; those that it lacks are NaN, and the attribute ``missing``
    lists them.

    Args:
        trainings: each pair of their normalizations and learning rates at most once.
        seeds: each training is run with each; all trainings with the first seed come first.
        store: keeps one record for each training and seed.
        progress: called before each training and during it.
        other_seeds: number of seeds of normalizations other than none and batch; None: all.
        unfinished: of a read-only store, also use trainings under way up to their last checkpoint;
            all are cut to the shortest then, and the attribute ``unfinished`` lists them.

    Returns:
        The probes' variables over (norm, learning_rate, seed, step, ...); ``training_loss`` (the
        mean of the steps since the last measured one), ``training_accuracy`` and
        ``test_accuracy`` over step too; ``final_loss``, ``final_test_accuracy`` (on the whole test
        set), ``updates_taken`` and ``processor_seconds`` without it. NaN after a divergence.

    Raises:
        StateError: if a read-only store has none of the trainings.
    """
    seeds = list(seeds)
    planned = {
        (training.learning_rate, training.norm, seed): training
        for place, seed in enumerate(seeds)
        for training in trainings
        if training.norm in ("none", "batch") or other_seeds is None or place < other_seeds
    }
    runs, missing = _records(planned, store, progress)
    under_way = _add_unfinished(runs, planned, store) if unfinished and store.read_only else []
    missing = [each for each in missing if not any(label.startswith(each) for label in under_way)]
    if not runs:
        raise StateError(f"{store!r} has none of the {len(planned)} trainings; run them first.")
    empty = xr.full_like(next(iter(runs.values())), np.nan, dtype=float)
    by_rate = {
        rate: side_by_side(
            "norm",
            {
                norm: side_by_side("seed", {s: runs.get((rate, norm, s), empty) for s in seeds})
                for norm in dict.fromkeys(each.norm for each in trainings)
            },
        )
        for rate in dict.fromkeys(each.learning_rate for each in trainings)
    }
    found = side_by_side("learning_rate", by_rate)
    found = found.transpose("norm", "learning_rate", "seed", ..., missing_dims="ignore")
    listed = {MISSING: "; ".join(missing), UNFINISHED: "; ".join(under_way)}
    return found.assign_attrs({name: text for name, text in listed.items() if text})


def _add_unfinished(
    runs: dict[_Key, xr.Dataset], planned: Mapping[_Key, Training], store: Store
) -> list[str]:
    """Add trainings under way, cut all to the shortest, and return a label for each of them."""
    labels: list[str] = []
    last = np.inf
    for key, training in planned.items():
        checkpoint = _checkpoint(training, key[-1], store)
        if key in runs or checkpoint is None or not checkpoint.exists():
            continue
        found = read_unfinished(training, key[-1], checkpoint)
        taken = steps_taken(checkpoint)
        labels.append(f"{training.label}, seed {key[-1]}: {taken:,} of {training.steps:,} steps")
        last = min(last, float(found["step"].max()))
        runs[key] = found.drop_vars("seed", errors="ignore")
    for key in list(runs) if labels else ():
        runs[key] = runs[key].sel(step=runs[key]["step"] <= last)
    return labels


def _records(
    planned: Mapping[_Key, Training], store: Store, progress: ProgressCallback
) -> tuple[dict[_Key, xr.Dataset], list[str]]:
    """Return the record of each training, and the labels of those that a read-only store lacks."""
    runs: dict[_Key, xr.Dataset] = {}
    missing = []
    if not store.read_only and progress is not ignore_progress:
        _announce(planned, store, progress)
    for done, (key, training) in enumerate(planned.items()):
        seed = key[-1]
        event = Progress(f"{training.label}, seed {seed}", "", done, len(planned), "trainings")
        progress(event)
        if store.read_only and not _is_stored(training, seed, store):
            missing.append(event.stage)
            continue
        found = _record(training, seed, store, _within(event, training, progress))
        # over all steps that were to be measured, also after a divergence
        steps = np.array(training.measured, dtype=np.int64)
        runs[key] = found.drop_vars("seed", errors="ignore").reindex(step=steps)
    return runs, missing


def _within(
    event: Progress, training: Training, progress: ProgressCallback
) -> Callable[[int], None]:
    return lambda step: progress(replace(event, detail=f"step {step:,} of {training.steps:,}"))


def _announce(planned: Mapping[_Key, Training], store: Store, progress: ProgressCallback) -> None:
    """Report the time that long trainings will take, from measured steps and measurements."""
    waiting = [
        (training, key[-1])
        for key, training in planned.items()
        if training.steps >= _LONG and not _is_stored(training, key[-1], store)
    ]
    costs: dict[tuple[str, float], tuple[float, float]] = {}
    total = 0.0
    for training, seed in waiting:
        kind = training.norm, training.learning_rate
        if kind not in costs:
            costs[kind] = estimate_seconds(training, seed)
        step, measurement = costs[kind]
        checkpoint = _checkpoint(training, seed, store)
        taken = 0 if checkpoint is None else steps_taken(checkpoint)
        measured = sum(each >= taken for each in training.measured)
        total += (training.steps - taken) * step + measured * measurement
    if waiting:
        units = [f"{1e3 * step:.0f} ms a step of {norm}" for (norm, _), (step, _) in costs.items()]
        time = f"about {format_duration(total)} ({', '.join(dict.fromkeys(units))})"
        progress(Progress(f"{len(waiting)} trainings to run: {time}"))


def _parameters(training: Training) -> dict[str, Any]:
    return {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(training).items()
    }


def _key(training: Training, seed: int) -> str:
    return record_key(RECORDS, _parameters(training), seed, REVISION)


def _is_stored(training: Training, seed: int, store: Store) -> bool:
    wanted = _key(training, seed)
    found = store.select(RECORDS, seed=seed, norm=training.norm)
    return any(each.key == wanted and each.state.has_result for each in found)


def _checkpoint(training: Training, seed: int, store: Store) -> Path | None:
    """Return the checkpoint file of a training, beside its store; None for one in memory."""
    if store.path is None or training.steps <= CHECKPOINT_EVERY:
        return None
    return store.path.parent / "checkpoints" / f"{_key(training, seed)[:24]}.pt"


def _record(training: Training, seed: int, store: Store, show: Callable[[int], None]) -> xr.Dataset:
    checkpoint = _checkpoint(training, seed, store)
    found = store.compute(
        RECORDS,
        _parameters(training),
        seed,
        lambda: run_training(training, seed, checkpoint, show),
        REVISION,
        diverged=lambda record: bool(record["diverged"] == 1),
    )
    if checkpoint is not None and not store.read_only:
        checkpoint.unlink(missing_ok=True)  # the store has the result
    return found
