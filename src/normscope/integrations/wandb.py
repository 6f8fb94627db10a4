"""Weights & Biases as a logger; it works offline too (``WANDB_MODE=offline``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from normscope.errors import StateError
from normscope.integrations.logger import RowLogger, require_package


class WandbLogger(RowLogger):
    """Logs the numbers and histograms of a scope to a Weights & Biases run.

    The run's step counter is left to the training's own calls of ``run.log``: the numbers of a
    measured step join the open row, and start a new row only if nothing else was logged since.
    Their step is logged as a metric, the horizontal axis of their charts.

    Args:
        run: as ``wandb.init`` returns it; None: the active one.
        step_name: of the metric that holds the step.

    Raises:
        StateError: if there is no run.
    """

    def __init__(self, run: Any = None, step_name: str = "scope/step") -> None:
        super().__init__()
        self._library = require_package("wandb", "normscope.integrations.wandb")
        self.run = self._library.run if run is None else run
        if self.run is None:
            raise StateError("there is no open run of Weights & Biases; call wandb.init first.")
        self.step_name = step_name
        self.run.define_metric(step_name, hidden=True)
        self._defined: set[str] = set()
        self._open_row: int | None = None  # the run's own step, while our row is not committed

    def log_row(self, step: int, values: dict[str, Any]) -> None:
        """Log the values of one step.

        Args:
            step: of the training.
            values: by name.
        """
        for tag in values.keys() - self._defined:
            self.run.define_metric(tag, step_metric=self.step_name)
        self._defined |= values.keys()
        if self._open_row == self.run.step:  # the row of our last step is still open
            self.run.log({}, commit=True)
        self._open_row = self.run.step
        self.run.log({**values, self.step_name: step}, commit=False)

    def add_histogram_raw(
        self,
        tag: str,
        min: float,
        max: float,
        num: int,
        sum: float,
        sum_squares: float,
        bucket_limits: Sequence[float],
        bucket_counts: Sequence[float],
        global_step: int,
    ) -> None:
        """Collect a binned histogram.

        Args:
            tag: its name.
            min: lower end of the first bin.
            max: unused: follows from the bins.
            num: unused: follows from the bins.
            sum: unused: follows from the bins.
            sum_squares: unused: follows from the bins.
            bucket_limits: upper end of each bin.
            bucket_counts: values in each bin.
            global_step: of the training.
        """
        counted = (np.asarray(bucket_counts), np.asarray([min, *bucket_limits]))
        self.collect(tag, self._library.Histogram(np_histogram=counted), global_step)
