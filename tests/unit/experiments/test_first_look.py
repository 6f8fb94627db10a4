import numpy as np
import pytest
import torch

from normscope.data import load
from normscope.experiments.first_look import first_look
from normscope.losses import cross_entropy
from normscope.models import build


@pytest.fixture(scope="module")
def results():
    labels = []
    found = first_look(learning_rates=(0.01, 1e4), seeds=2, steps=4, seed=5, progress=labels.append)
    assert len(labels) == len(set(labels)) == 8
    return found


def test_first_look_has_the_declared_dimensions(results):
    assert dict(results.sizes) == {"norm": 2, "learning_rate": 2, "seed": 2, "step": 4}
    assert results["loss"].dims == ("norm", "learning_rate", "seed", "step")
    assert list(results["seed"].values) == [5, 6]


def test_first_loss_is_the_untrained_models_on_the_first_batch(results):
    # Both rates see the same weights and the same first batch, so the same first loss.
    first = results["loss"].isel(step=0)
    assert (first.sel(learning_rate=0.01) == first.sel(learning_rate=1e4)).all()
    assert len(np.unique(first.sel(learning_rate=0.01))) == 4  # norms and seeds differ
    x, y = load("digits").train
    model = build("fully_connected", norm="none", seed=5, input_shape=(1, 8, 8))
    whole = cross_entropy(model(x), y).item()
    assert first.sel(norm="none", learning_rate=0.01, seed=5).item() == pytest.approx(
        whole, rel=0.3
    )


def test_divergence_is_an_outcome_with_its_steps(results):
    wild = results.sel(norm="none", learning_rate=1e4)
    assert (wild["outcome"] == "diverged").all()
    assert wild["test_accuracy"].isnull().all()
    assert (wild["steps_done"] < 4).all()
    # The loss that ends a run is seen, its update is not taken; it may itself be infinite.
    seen = wild["loss"].notnull().sum("step")
    assert (seen == wild["steps_done"] + 1).all()


def test_stable_runs_finish_with_an_accuracy(results):
    calm = results.sel(learning_rate=0.01)
    assert (calm["outcome"] == "finished").all()
    assert (calm["steps_done"] == 4).all()
    assert (calm["test_accuracy"] > 0.2).all()  # ten classes: chance is 0.1


def test_same_seed_gives_the_same_values():
    state = torch.get_rng_state()
    one, other = (
        first_look(norms=("batch",), learning_rates=(0.1,), seeds=1, steps=3) for _ in range(2)
    )
    assert one.identical(other)
    assert torch.equal(torch.get_rng_state(), state)
