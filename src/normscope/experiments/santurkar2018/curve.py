"""Loss and accuracy over a training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from normscope.data import Dataset
from normscope.problem.loss import Loss
from normscope.training import evaluate

__all__ = ["Curve"]

_CURVES = ("training_loss", "training_accuracy", "test_accuracy")


class Curve:
    """How well the network does, at the measured steps and at the end.

    Args:
        data: what it is trained and tested on.
        loss: of the network.
        measured: the steps at which to look.
        evaluated: samples of either split on which the accuracy is taken; 0 for none.
    """

    def __init__(self, data: Dataset, loss: Loss, measured: Sequence[int], evaluated: int) -> None:
        self._due = frozenset(measured)
        self._loss = loss
        self._size = min(evaluated, len(data.train.x), len(data.test.x))
        self._data = data
        self._since: list[float] = []
        self._rows: dict[str, list[float]] = {name: [] for name in _CURVES}
        self._last = (0, float("nan"))

    def see(self, step: int, loss: float, model: nn.Module) -> None:
        """Note a step's loss and, if it is a measured one, the accuracies."""
        self._since.append(loss)
        self._last = (step, loss)
        if step in self._due:
            self._rows["training_loss"].append(float(np.mean(self._since)))
            self._since = []
            for name, split in (("training", self._data.train), ("test", self._data.test)):
                self._rows[f"{name}_accuracy"].append(self._accuracy(model, *split))

    def _accuracy(self, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
        if not self._size:
            return float("nan")
        part = (x[: self._size], y[: self._size])
        found = evaluate(model, self._loss, part).accuracy
        return float("nan") if found is None else found

    def variables(self, model: nn.Module, diverged: bool) -> dict[str, Any]:
        """The curves, and the numbers at the end."""
        curves = {name: ("step", np.array(values)) for name, values in self._rows.items()}
        return {
            **curves,
            "final_loss": float("nan") if diverged else self._last[1],
            "final_test_accuracy": self._accuracy(model, *self._data.test),
            "updates_taken": self._last[0] + (not diverged),
            "diverged": int(diverged),
        }
