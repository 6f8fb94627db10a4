"""MLflow as a logger, to a tracking server or a local file."""

from __future__ import annotations

import re
import time
from typing import Any

from normscope.errors import StateError
from normscope.integrations.logger import RowLogger, require_package

_MAX_METRICS = 1000  # that MLflow takes in one call
_FORBIDDEN = re.compile(r"[^\w\-. /]")


class MLflowLogger(RowLogger):
    """Logs the numbers of a scope as metrics of an MLflow run.

    Characters of a layer's name that MLflow does not allow become underscores. MLflow has no
    histograms.

    Args:
        run_id: of the run; None: the active one.
        tracking_uri: such as "sqlite:///mlflow.db"; None: as MLflow is configured.

    Raises:
        StateError: if there is no run.
    """

    def __init__(self, run_id: str | None = None, tracking_uri: str | None = None) -> None:
        super().__init__()
        self._library = require_package("mlflow", "normscope.integrations.mlflow")
        if run_id is None:
            run = self._library.active_run()
            if run is None:
                raise StateError(
                    "there is no open run of MLflow; call mlflow.start_run first, or give run_id."
                )
            run_id = run.info.run_id
        self.run_id: str = run_id
        self._client = self._library.MlflowClient(tracking_uri)

    def log_row(self, step: int, values: dict[str, Any]) -> None:
        """Log the numbers of one step.

        Args:
            step: of the training.
            values: by name.
        """
        now = time.time_ns() // 1_000_000
        metric = self._library.entities.Metric
        row = [metric(_FORBIDDEN.sub("_", tag), value, now, step) for tag, value in values.items()]
        for start in range(0, len(row), _MAX_METRICS):
            self._client.log_batch(self.run_id, metrics=row[start : start + _MAX_METRICS])
