"""Rows in a store, and the row that the next step completes."""

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import ShapeError, StateError
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


def positive_batch(size=1.0):
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
                scope.step(*positive_batch())
                assert scope.results.sizes["step"] == 1
                scope.step(*positive_batch(1e7))

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
        scope.step(*positive_batch())
        with pytest.raises(ShapeError):
            scope.step(positive_batch()[0], positive_batch()[1][:-1])
        for _ in range(3):
            scope.step(*positive_batch(2.0))
        scope.close()
        for rows in (scope.results, store.get(scope.key).dataset):
            assert rows["step"].values.tolist() == [0, 3]
            changes = rows["activation_mean_change"].values[:, 0, :3]
            assert np.isnan(changes[0]).all()
            assert (changes[1] == 0).all()  # the same batch twice, and no update


def net(**options):
    return ns.models.build("fully_connected", input_shape=(1, 8, 8), width=9, **options)


def batch(seed=0, samples=8):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 1, 8, 8, generator=generator)
    return x, torch.randint(0, 10, (samples,), generator=generator)


def test_store_holds_every_measured_step_at_once(tmp_path):
    model = net()
    with (
        Store(tmp_path / "runs.db") as store,
        Scope(
            model,
            "cross_entropy",
            torch.optim.SGD(model.parameters(), 0.1),
            "all",
            every=2,
            store=store,
            seed=4,
            labels={"norm": "batch"},
        ) as scope,
    ):
        for step in range(5):
            scope.step(*batch(step))
            kept = store.get(scope.key)
            assert kept.state == "running"
            # the row of step 4 waits for the step after it
            rows = 0 if step == 0 else step // 2 + step % 2
            if rows:
                assert kept.dataset["step"].values.tolist() == list(range(0, 2 * rows, 2))
        scope.close()
        record = store.get(scope.key)
        assert record.state == "finished"
        assert (record.experiment, record.seed) == ("scope", 4)
        assert record.parameters == {"norm": "batch"}
        for name, values in scope.results.drop_vars("seed").items():
            np.testing.assert_array_equal(record.dataset[name], values, err_msg=str(name))
        assert store.to_xarray("scope")["ray_loss"].sizes["step"] == 3


def test_store_refuses_the_same_training_twice(tmp_path):
    with Store(tmp_path / "runs.db") as store:
        for attempt in range(2):
            if attempt == 0:
                with Scope(net(), "cross_entropy", probes="gradient_norms", store=store) as scope:
                    scope.step(*batch())
            else:
                with pytest.raises(StateError, match="finished record of 'scope' with seed 0"):
                    Scope(net(), "cross_entropy", probes="gradient_norms", store=store)


def test_store_says_that_the_training_broke_off(tmp_path):
    with Store(tmp_path / "runs.db") as store:
        scope = Scope(net(), "cross_entropy", probes=["gradient_norms"], every=1, store=store)

        def training():
            with scope:
                scope.step(*batch())
                raise ZeroDivisionError("by hand")

        with pytest.raises(ZeroDivisionError):
            training()
        record = store.get(scope.key)
        assert (record.state, record.error) == ("failed", "ZeroDivisionError: by hand")
        assert record.dataset.sizes["step"] == 1


def test_store_keeps_no_record_of_nothing(tmp_path):
    with Store(tmp_path / "runs.db") as store:
        with Scope(net(), "cross_entropy", probes="gradient_norms", store=store) as scope:
            pass
        assert store.get(scope.key).state == "pending"
