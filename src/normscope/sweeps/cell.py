"""Trainings of a phase diagram: one cell alone, or the cells of a unit together."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn

from normscope.results.record import canonical_json
from normscope.sweeps.ensemble import LOSSES, Member, is_stackable, train_together
from normscope.sweeps.settings import Training
from normscope.sweeps.work import Cell
from normscope.training import Evaluation, Outcome, evaluate
from normscope.training.batches import batch_source

GROUP = 8  # most cells of a group; half may diverge and leave, and four are enough for a gain
_WIDEST = 200  # features; wider layers are limited by their matrix products already
_MAY_DIFFER = ("gamma", "learning_rate")  # between the cells of a group
_MOST_POINTS = 100  # of the stored loss curve
_TEST_BATCH = 1024  # samples per batch of the evaluation
_NO_SCORE = Evaluation(math.nan, math.nan)  # of a training that diverged


def training_cell(*, seed: int, **parameters: Any) -> xr.Dataset:
    """Train one network and test it; divergence ends it at once.

    Args:
        seed: of the weights and of the order of the data.
        **parameters: the settings of `Training`, and options of the model.

    Returns:
        ``loss`` (step), thinned; ``train_loss``, ``loss_growth``, ``test_loss``, ``test_accuracy``,
        ``steps_done`` and ``outcome``; with ``every_epoch`` also ``test_loss_by_epoch`` and
        ``test_accuracy_by_epoch`` (epoch).

    >>> cell = training_cell(learning_rate=0.01, epochs=1, width=20, samples=256, seed=0)
    >>> str(cell["outcome"].values), int(cell["steps_done"])
    ('finished', 2)
    """
    training = Training.of(parameters)
    network = training.network(seed).to(training.device)
    loop = training.loop(training.problem(network), seed)
    by_epoch: list[Evaluation] = []

    def test_epoch() -> None:
        if training.every_epoch and loop.taken % training.steps_per_epoch == 0:
            by_epoch.append(_test(network, training))

    for _ in loop.run(training.steps, after_update=test_epoch):
        pass
    diverged = loop.outcome is Outcome.DIVERGED
    score = _NO_SCORE if diverged else _test(network, training)
    losses = np.array(loop.losses, dtype=np.float64)
    found = _summary(losses, loop.taken, diverged, score, training.steps)
    return _with_epochs(found, by_epoch, score, training) if training.every_epoch else found


def group_key(cell: Cell) -> Hashable | None:
    """What cells must have in common to be trained together: all but gamma and learning rate.

    That includes the seed, which determines the batches: the group shares them.

    Args:
        cell: of a phase diagram.

    Returns:
        A string to compare; None for a cell that is trained alone.
    """
    training = Training.of(cell.parameters)
    width = (training.options or {}).get("width", 1000)
    small = training.model == "fully_connected" and isinstance(width, int) and width <= _WIDEST
    plain = training.norm in ("batch", "none") and training.loss in LOSSES
    if not (small and plain) or training.every_epoch or training.device != Training.device:
        return None
    others = {name: value for name, value in cell.parameters.items() if name not in _MAY_DIFFER}
    return f"{cell.seed} {canonical_json(others)}"


def train_unit(cells: Sequence[Cell]) -> list[xr.Dataset]:
    """Train the cells of a unit, together if there are several.

    Args:
        cells: one, or several with the same `group_key`.

    Returns:
        The dataset of each.
    """
    trainings = [Training.of(cell.parameters) for cell in cells]
    first, seed = trainings[0], cells[0].seed
    networks = [each.network(seed) for each in trainings] if len(cells) > 1 else []
    if not networks or not all(map(is_stackable, networks)):
        return [training_cell(**cell.parameters, seed=cell.seed) for cell in cells]
    members = [
        Member(network, each.learning_rate)
        for network, each in zip(networks, trainings, strict=True)
    ]
    train_together(
        members,
        _batches(first, networks[0], seed),
        first.loss,
        first.steps,
        first.momentum,
        first.weight_decay,
        first.divergence_factor,
    )
    scores = [_NO_SCORE if each.diverged else _test(each.network, first) for each in members]
    return [
        _summary(np.array(each.losses), each.taken, each.diverged, score, first.steps)
        for each, score in zip(members, scores, strict=True)
    ]


def has_diverged(dataset: xr.Dataset) -> bool:
    """Return whether a cell's training diverged."""
    return str(dataset["outcome"].values) == "diverged"


def _batches(training: Training, network: nn.Module, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches that a training alone would draw."""
    source = batch_source(training.problem(network), training.batch_size, seed, drop_last=True)
    while True:
        inputs, targets = source.draw()
        yield inputs, targets


def _summary(
    losses: NDArray[np.float64], taken: int, diverged: bool, score: Evaluation, steps: int
) -> xr.Dataset:
    """Dataset of a training.

    Args:
        losses: of every step.
        taken: number of updates.
        diverged: whether the training diverged; a test loss that is not finite counts too.
        score: on the test split.
        steps: planned updates, which determine at which steps the loss is stored.
    """
    exploded = diverged or not math.isfinite(score.loss)
    stride = math.ceil(steps / _MOST_POINTS)
    kept = losses[::stride]
    last = losses[-max(1, steps // 10) :]
    with np.errstate(over="ignore", invalid="ignore"):
        growth = float(np.nanmax(losses / losses[0])) if losses[0] > 0 else math.nan
        train_loss = math.nan if exploded else float(last.mean())
    accuracy = math.nan if exploded or score.accuracy is None else score.accuracy
    values = {
        "train_loss": train_loss,
        "loss_growth": math.inf if not np.isfinite(losses[-1]) else growth,
        "test_loss": math.nan if exploded else score.loss,
        "test_accuracy": accuracy,
        "steps_done": taken,
        "outcome": "diverged" if exploded else "finished",
    }
    return xr.Dataset(
        {"loss": ("step", kept), **values},
        coords={"step": np.arange(len(kept)) * stride},
        attrs={"steps": steps},
    )


def _test(network: nn.Module, training: Training) -> Evaluation:
    """Loss and accuracy on the test split, by the running statistics."""
    test = training.data_set.test
    return evaluate(network, training.loss_function, (test.x, test.y), batch_size=_TEST_BATCH)


def _with_epochs(
    found: xr.Dataset, by_epoch: Sequence[Evaluation], score: Evaluation, training: Training
) -> xr.Dataset:
    """Add the scores after each epoch; an incomplete last epoch counts, diverged ones are NaN."""
    epochs = math.ceil(training.steps / training.steps_per_epoch)
    loss, accuracy = np.full(epochs, np.nan), np.full(epochs, np.nan)
    for number, each in enumerate([*by_epoch, score][:epochs]):
        loss[number] = each.loss
        accuracy[number] = np.nan if each.accuracy is None else each.accuracy
    variables = {
        "test_loss_by_epoch": ("epoch", loss),
        "test_accuracy_by_epoch": ("epoch", accuracy),
    }
    return found.assign(variables).assign_coords(epoch=np.arange(1, epochs + 1))
