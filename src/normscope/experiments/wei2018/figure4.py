"""Figure 4: learning curves of VGG16 and PreAct-ResNet18 for several initial gammas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import xarray as xr
from scipy.stats import spearmanr

from normscope.experiments.recipe import experiment
from normscope.experiments.wei2018.phase_diagram import RANK_RULE, rank_claim
from normscope.plots.training_curves import gamma_curves
from normscope.progress import ProgressCallback
from normscope.results import Claim, Store
from normscope.sweeps.diagram import TRAININGS, seed_list
from normscope.sweeps.run import sweep
from normscope.sweeps.settings import complete_settings
from normscope.sweeps.work import Cell, Unit, grid_cells

_STATEMENT = "Smaller initial gammas indeed increase the speed of convergence (Section 6.5)."
_EPOCHS, _SAMPLES = 5, 50_000  # below which a run says nothing about convergence
CURVES = ("loss", "test_loss_by_epoch", "test_accuracy_by_epoch", "train_loss", "test_accuracy")


def _claims(results: xr.Dataset) -> list[Claim]:
    claims = []
    source = "wei2018, Figure 4"
    for model in map(str, results["model"].values):
        every = results["train_loss"].sel(model=model).sortby("gamma")
        ended = every.notnull().all("seed")  # a gamma that loses seeds does not converge
        loss = every.mean("seed").where(ended).dropna("gamma")
        lost = [f"{float(gamma):g}" for gamma in every["gamma"][~ended.values]]
        text = f"a smaller initial gamma converges faster ({model})"
        left_out = f"; not every seed ended at gamma {', '.join(lost)}" if lost else ""
        if loss.size < 3:
            measured = f"all seeds ended at {loss.size} of {every.sizes['gamma']} gammas{left_out}"
            claim = Claim(text, source, measured, None, _STATEMENT, RANK_RULE)
            claims.append(replace(claim, resolve="three gammas or more"))
            continue
        points = every.sel(gamma=loss["gamma"]).stack(point=("gamma", "seed"))
        rank = float(spearmanr(points["gamma"].values, points.values).statistic)
        each = ", ".join(_with_spread(every.sel(gamma=gamma)) for gamma in loss["gamma"])
        measured = (
            f"training loss at the end by gamma {each}{left_out}; rank correlation {rank:.2f}"
        )
        claim = rank_claim(text, source, measured, rank, points.size, _STATEMENT)
        rows = {f"gamma {float(each['gamma']):g}": each.values.tolist() for each in every}
        claims.append(replace(claim, numbers=rows))
    return [claim if _is_long(results) else _undecided(claim) for claim in claims]


def _is_long(results: xr.Dataset) -> bool:
    """Return whether the trainings have the epochs and the samples that the rule asks for."""
    epochs, samples = (float(results.attrs.get(name, np.inf)) for name in ("epochs", "samples"))
    return epochs >= _EPOCHS and samples >= _SAMPLES


def _undecided(claim: Claim) -> Claim:
    remedy = f"at least {_EPOCHS} epochs of all {_SAMPLES:,} samples (scale medium)"
    return replace(claim, holds=None, resolve=remedy)


def _with_spread(loss: xr.DataArray) -> str:
    """The mean over the seeds, and their range if there are several."""
    mean = f"{float(loss['gamma']):g}: {float(loss.mean()):.3g}"
    least, most = float(loss.min()), float(loss.max())
    return f"{mean} ({least:.3g} to {most:.3g})" if loss.sizes["seed"] > 1 else mean


@experiment(
    "wei2018/figure4",
    claims=_claims,
    figure=gamma_curves,
    scales={
        "quick": {
            "data": "digits",
            "gammas": (0.1, 1.0),
            "width": 0.05,
            "samples": 128,
            "test_samples": 64,
            "batch_size": 32,
            "epochs": 2,
            "threads": 1,
        },
        "small": {"seeds": 2},
        "medium": {"seeds": 2, "epochs": 5, "samples": None, "test_samples": None},
        "paper": {
            "gammas": (0.1, 0.25, 0.5, 0.75, 1.0, 2.0),
            "width": 1.0,
            "samples": None,
            "test_samples": None,
            "epochs": 100,
            "seeds": 5,
        },
    },
)
def figure4(
    *,
    data: str = "cifar10",
    models: Sequence[str] = ("vgg16", "preact_resnet18"),
    gammas: Sequence[float] = (0.1, 0.25, 0.5, 1.0),
    width: float = 0.25,
    learning_rate: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    batch_size: int = 128,
    epochs: int = 3,
    samples: int | None = 5120,
    test_samples: int | None = 1000,
    seeds: int = 1,
    threads: int = 2,
    seed: int = 0,
    store: Store,
    progress: ProgressCallback,
) -> xr.Dataset:
    """Learning curves of VGG16 and PreAct-ResNet18 for several initial gammas, all else equal.

    Reference: wei2018, Figure 4 and Section 6.5.

    Args:
        data: a registered data set.
        models: registered models.
        gammas: initial scales of the normalization.
        width: multiplier of the channels.
        learning_rate: of SGD.
        momentum: heavy-ball momentum.
        weight_decay: factor of the parameters in the gradient.
        batch_size: samples per step.
        epochs: passes over the training data.
        samples: of the training data; None: all.
        test_samples: of the test data; None: all.
        seeds: trainings of each curve.
        threads: of a training.
        seed: first seed; the others follow it.
        store: keeps each training.
        progress: receives an event as trainings end.

    Returns:
        ``loss`` (model, gamma, seed, step), ``test_loss_by_epoch`` and ``test_accuracy_by_epoch``
        (model, gamma, seed, epoch), ``train_loss`` and ``test_accuracy`` (model, gamma, seed).
    """
    settings = {
        "data": data,
        "width": width,
        "loss": "cross_entropy",
        "learning_rate": learning_rate,
        "momentum": momentum,
        "weight_decay": weight_decay,
        "batch_size": batch_size,
        "epochs": epochs,
        "samples": samples,
        "test_samples": test_samples,
        "every_epoch": True,
    }
    axes: dict[str, list[Any]] = {"model": list(models), "gamma": list(gammas)}
    cells = grid_cells(axes, complete_settings(settings), seed_list(seeds, seed))
    units = [Unit((cell,)) for cell in cells]
    report = sweep(TRAININGS, units, store, threads=threads, progress=progress)
    words = f"{data}, {samples or 'all'} samples, batch size {batch_size}, {epochs} epochs, "
    words += f"width {width:g}, learning rate {learning_rate:g}, momentum {momentum:g}, "
    words += f"weight decay {weight_decay:g}, {seeds} seeds"
    labels: dict[str, list[Any]] = {**axes, "seed": seed_list(seeds, seed)}
    found = _curves(cells, store, labels)
    found = found.assign_attrs(settings=words, failures=len(report.failures), epochs=epochs)
    return found if samples is None else found.assign_attrs(samples=samples)


def _curves(cells: Sequence[Cell], store: Store, labels: Mapping[str, Sequence[Any]]) -> xr.Dataset:
    """Return the curves of all trainings that have a result on their grid; NaN elsewhere."""
    found = []
    for cell in cells:
        record = store.get(TRAININGS.key(cell))
        if record.state.has_result:
            place = {"model": [cell.parameters["model"]], "gamma": [cell.parameters["gamma"]]}
            found.append(record.dataset[list(CURVES)].expand_dims({**place, "seed": [cell.seed]}))
    together = xr.combine_by_coords(found, join="outer")
    assert isinstance(together, xr.Dataset)
    return together.reindex(labels, fill_value=np.nan)
