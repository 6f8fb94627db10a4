"""Which cells of a diagram are trained together, and how."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence

import numpy as np
import xarray as xr
from torch import Tensor, nn

from normscope.problem.problem import Problem
from normscope.results.record import canonical_json
from normscope.sweeps.cells import Cell
from normscope.sweeps.ensemble import LOSSES, Member, train_together
from normscope.sweeps.stack import is_stackable
from normscope.sweeps.training_cell import summary, tested, training_cell
from normscope.sweeps.training_settings import Training
from normscope.training import Evaluation
from normscope.training.batches import batch_source

__all__ = ["GROUP", "WIDEST", "group_of", "train_units"]

GROUP = 8  # cells; half of them may diverge and leave, and four are enough to gain
WIDEST = 200  # features; wider layers are bound by their products already
_OWN = ("gamma", "learning_rate")  # what the cells of a group may differ in


def group_of(cell: Cell) -> Hashable | None:
    """What cells must agree in to be trained together: all but gamma and learning rate.

    The seed is among it: it decides the order of the data, and the group sees the same batches.

    Args:
        cell: of a diagram.

    Returns:
        A text to compare; None for a cell that is trained alone.
    """
    training = Training.of(cell.parameters)
    width = (training.options or {}).get("width", 1000)
    small = training.model == "fully_connected" and isinstance(width, int) and width <= WIDEST
    plain = training.norm in ("batch", "none") and training.loss in LOSSES
    if not (small and plain) or training.every_epoch or training.device != Training.device:
        return None
    others = {name: value for name, value in cell.parameters.items() if name not in _OWN}
    return f"{cell.seed} {canonical_json(others)}"


def train_units(cells: Sequence[Cell]) -> list[xr.Dataset]:
    """The trainings of a unit: together if there are several.

    Args:
        cells: one, or several that agree in `group_of`.

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
    return [_summary(member, first) for member in members]


def _batches(training: Training, network: nn.Module, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """The batches that a training alone would see."""
    train = training.data_set.train
    problem = Problem(network, training.loss, (train.x, train.y))
    source = batch_source(problem, training.batch_size, seed, drop_last=True)
    while True:
        inputs, targets = source.draw()
        yield inputs, targets


def _summary(member: Member, training: Training) -> xr.Dataset:
    nothing = Evaluation(math.nan, math.nan)
    score = nothing if member.diverged else tested(member.network, training)
    losses = np.array(member.losses)
    return summary(losses, member.taken, member.diverged, score, training.steps)
