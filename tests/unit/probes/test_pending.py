"""The row that waits for the next step is never lost, nor completed by another step."""

import numpy as np
import pytest
import torch
from torch import nn

from normscope.errors import ShapeError
from normscope.probes import Scope
from normscope.results import Store


class Breaking(nn.Module):
    """Breaks off on large inputs."""

    def __init__(self, error):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.error = error

    def forward(self, x):
        if x.sum() > 1e6:
            raise self.error
        return self.linear(x)


def batch(size=1.0):
    x = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    return size * x.abs(), torch.tensor([0, 1, 2, 0, 1])


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_row_is_kept_when_the_next_step_breaks_off(error, tmp_path):
    model = Breaking(error())
    with Store(tmp_path / "runs.db") as store:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scope = Scope(model, "cross_entropy", optimizer, "standard", store=store)

        def training():
            with scope:
                scope.step(*batch())
                assert scope.results.sizes["step"] == 1
                scope.step(*batch(1e7))

        with pytest.raises(error):
            training()
        record = store.get(scope.key)
        assert record.state == "failed"
        for rows in (scope.results, record.dataset):
            assert rows["step"].values.tolist() == [0]
            assert np.isfinite(rows["activation_mean"].values[0, 0, :3]).all()
            assert np.isnan(rows["activation_mean_change"]).all()


def test_row_is_not_completed_by_a_later_step(tmp_path):
    model = Breaking(None)
    with Store(tmp_path / "runs.db") as store:
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        scope = Scope(model, "cross_entropy", optimizer, ["activation_moments"], 3, store=store)
        scope.step(*batch())
        with pytest.raises(ShapeError):
            scope.step(batch()[0], batch()[1][:-1])
        for _ in range(3):
            scope.step(*batch(2.0))
        scope.close()
        for rows in (scope.results, store.get(scope.key).dataset):
            assert rows["step"].values.tolist() == [0, 3]
            changes = rows["activation_mean_change"].values[:, 0, :3]
            assert np.isnan(changes[0]).all()
            assert (changes[1] == 0).all()  # the same batch twice, and no update
