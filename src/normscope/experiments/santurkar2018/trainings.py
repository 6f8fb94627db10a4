r"""Trainings with probes attached: the records that all figures of the paper are made from.

A figure asks for trainings and selects from them; a training that is in the store is not run again.
So all figures of a network cost its trainings once, and an interrupted run resumes with the
training that was under way.

**The scale of the deep linear network's loss.** The paper minimizes ``|W_1 ... W_k x - A x|^2``
with a learning rate of 1e-6 and does not say whether the loss is summed or averaged over the 1000
samples and the 10 outputs. Gradient descent answers: dividing the loss by a number has the effect
of dividing the learning rate by it, so 1e-6 is 1e-9 of the sum if the loss is a mean over samples,
and 1e-10 if it is a mean over samples and outputs. Measured with seed 0, in squared error per
sample: with the summed loss, 1e-6 takes the standard network from 130 to 44 in 300 steps and to 20,
where it stays, in 1000; 1e-7 needs ten times as many, and 1e-5 diverges within 20 steps. At 1e-9
all 10,000 steps lead only as far as ten of these, to 113, and at 1e-10 as far as one. So the loss
is the sum: only then does it level off within the paper's 10,000 steps, and only then is 1e-6 near
the largest stable learning rate of the standard network. `loss_scale` measures it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import xarray as xr
from torch import Tensor, nn
from torch.nn import functional

from normscope.data import Dataset, Split, load
from normscope.data.dataset import DATASETS
from normscope.experiments.recipe import side_by_side
from normscope.models import build
from normscope.probes import PROBES, Probe, Scope
from normscope.problem import Problem, RandomGenerators
from normscope.problem.loss import Loss, cross_entropy
from normscope.progress import Progress, ProgressCallback
from normscope.results import Store
from normscope.training import evaluate, sgd, train

RECORDS = "santurkar2018 training"
REVISION = 1  # raise it when a change of the code changes the numbers

MOMENTS = ("activation_moments",)
ALL_PROBES = (
    *("loss_variation", "gradient_predictiveness", "effective_smoothness"),
    *("covariate_shift", "activation_moments"),
)
_UNITS, _BINS = 4, 24  # units sampled per layer, and bins of each unit's histogram


@dataclass(frozen=True)
class Training:
    """All settings of a training and its probes, except the seed.

    Args:
        network: "vgg" or "deep_linear".
        norm: its normalization.
        learning_rate: of plain gradient descent.
        steps: number of updates.
        measured: steps before whose update the probes and the accuracy are measured.
        batch_size: samples per step; None for all of them.
        probes: names of the probes.
        distances: points on the gradient's ray, in multiples of the learning rate.
        shift_every: least number of steps between measurements of the covariate shift, which
            costs a pass for every layer.
        evaluated: samples of either split on which the accuracy is measured.
        options: of the network and its data.
    """

    network: str
    norm: str
    learning_rate: float
    steps: int
    measured: tuple[int, ...]
    batch_size: int | None = None
    probes: tuple[str, ...] = ALL_PROBES
    distances: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0)
    shift_every: int = 1
    evaluated: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """Short description for progress messages."""
        return f"{self.network} {self.norm}, learning rate {self.learning_rate:g}"


def summed_squares(output: Tensor, target: Tensor) -> Tensor:
    r"""Return the squared distance to the target, summed over outputs and samples.

    .. math:: L = \sum_{i=1}^{m} \lVert f_i - y_i \rVert^2

    Reference: santurkar2018, Appendix A.1.

    Args:
        output: (batch, outputs).
        target: like the output.

    Returns:
        The loss, a scalar tensor.

    >>> import torch
    >>> summed_squares(torch.tensor([[1.0, 2.0]]), torch.zeros(1, 2)).item()
    5.0
    """
    return functional.mse_loss(output, target, reduction="sum")


_images = lru_cache(maxsize=1)(load)  # loads the images once per process


def _problem(training: Training, seed: int) -> tuple[nn.Module, Dataset, Loss]:
    """Return the network of a training, its data, and the loss that its learning rate refers to."""
    options: dict[str, Any] = {"norm": training.norm, "seed": seed}
    if training.network == "vgg":
        data = _images(training.options["data"])
        options["input_shape"] = tuple(data.train.x.shape[1:])
        return build("vgg", width=training.options["width"], **options), data, cross_entropy
    # a new matrix A and new inputs for every seed
    samples = training.options["samples"]
    data = DATASETS["gaussian"](samples=samples, test_samples=1, seed=seed)
    return build("deep_linear", depth=training.options["depth"], **options), data, summed_squares


def run_trainings(
    trainings: Sequence[Training], seeds: Iterable[int], store: Store, progress: ProgressCallback
) -> xr.Dataset:
    """Return trainings that differ in normalization or learning rate, from the store or run now.

    Args:
        trainings: each pair of their normalizations and learning rates at most once.
        seeds: each training is run with each.
        store: keeps one record for each training and seed.
        progress: called before each.

    Returns:
        The probes' variables over (norm, learning_rate, seed, step, ...); ``training_loss`` (the
        mean of the steps since the last measured one), ``training_accuracy`` and
        ``test_accuracy`` over step too; ``final_loss``, ``final_test_accuracy`` and
        ``updates_taken`` without it. NaN after a divergence.
    """
    seeds = list(seeds)
    by_rate: dict[float, dict[str, xr.Dataset]] = {}
    for place, training in enumerate(trainings):
        runs: dict[int, xr.Dataset] = {}
        for seed in seeds:
            done = place * len(seeds) + len(runs)
            stage = f"{training.label}, seed {seed}"
            progress(Progress(stage, "", done, len(trainings) * len(seeds), "trainings"))
            found = _record(training, seed, store).drop_vars("seed", errors="ignore")
            # over all steps that were to be measured, also after a divergence
            runs[seed] = found.reindex(step=np.array(training.measured, dtype=np.int64))
        by_rate.setdefault(training.learning_rate, {})[training.norm] = side_by_side("seed", runs)
    rates = {rate: side_by_side("norm", runs) for rate, runs in by_rate.items()}
    found = side_by_side("learning_rate", rates)
    return found.transpose("norm", "learning_rate", "seed", ..., missing_dims="ignore")


def _record(training: Training, seed: int, store: Store) -> xr.Dataset:
    parameters = {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(training).items()
    }
    return store.compute(
        RECORDS,
        parameters,
        seed,
        lambda: _run(training, seed),
        REVISION,
        diverged=lambda record: bool(record["diverged"] == 1),
    )


def _run(training: Training, seed: int) -> xr.Dataset:
    """Train once and measure."""
    model, data, loss = _problem(training, seed)
    optimizer = sgd(training.learning_rate)(model.parameters())
    problem = Problem(model, loss, (data.train.x, data.train.y))
    size = min(training.evaluated, len(data.train.x), len(data.test.x))
    losses: list[float] = []
    accuracies: list[tuple[float, float]] = []  # in training and test, at the measured steps
    options: dict[str, Any] = {"steps": training.measured, "distances": training.distances}
    scope = Scope(model, loss, optimizer, probes=_probes(training), seed=seed, **options)
    with RandomGenerators().preserved(seed), scope:
        for step in train(problem, optimizer, training.steps, training.batch_size, seed):
            losses.append(step.loss)
            if step.index in training.measured:
                in_training = _accuracy(model, loss, data.train, size)
                accuracies.append((in_training, _accuracy(model, loss, data.test, size)))
            scope.step(*step.batch)
            diverged = step.diverged
    ends = [each + 1 for each in training.measured if each < len(losses)]
    means = [np.mean(losses[begin:end]) for begin, end in pairwise((0, *ends))]
    found = scope.results.drop_vars(("channel", "learning_rate"), errors="ignore")
    return found.assign(
        training_loss=("step", means),
        training_accuracy=("step", [each for each, _ in accuracies]),
        test_accuracy=("step", [each for _, each in accuracies]),
        final_loss=float("nan") if diverged else losses[-1],
        final_test_accuracy=_accuracy(model, loss, data.test, size),
        updates_taken=len(losses) - diverged,
        diverged=int(diverged),
    )


def _accuracy(model: nn.Module, loss: Loss, split: Split, size: int) -> float:
    """Return the accuracy on the first samples of a split; NaN if it is not measured."""
    found = evaluate(model, loss, (split.x[:size], split.y[:size])).accuracy if size else None
    return float("nan") if found is None else found


def _probes(training: Training) -> list[Probe]:
    settings = {
        "activation_moments": {"units": _UNITS, "bins": _BINS},
        "covariate_shift": {"every": training.shift_every},
    }
    return [PROBES[name](**settings.get(name, {})) for name in training.probes]
