"""A scope that resumes from its state, inside the checkpoint of a training."""

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

from normscope.errors import StateError
from normscope.probes import Scope, Stability
from normscope.probes.covariate_shift import CovariateShift
from normscope.problem import Problem
from normscope.results import Store
from normscope.training import fit, sgd

PROBES = ["loss_variation", "effective_smoothness", "activation_moments", "curvature"]
STEPS, STOP = 9, 5  # step 4 is measured, and step 5 completes it


def training(path=None, stop=None, scope_options=None):
    """Train and measure every second step; interrupted before an update if asked for."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    optimizer = sgd(0.1)(model.parameters())
    generator = torch.Generator().manual_seed(1)
    data = torch.randn(40, 4, generator=generator), torch.randint(0, 2, (40,), generator=generator)
    gauge = Stability(sharpness=True, preconditioned_sharpness=True)
    probes = [*PROBES, "statistics_gap", CovariateShift(every=3), gauge]
    scope = Scope(model, "cross_entropy", optimizer, probes, every=2, **(scope_options or {}))

    class Callback:
        state_dict, load_state_dict = scope.state_dict, scope.load_state_dict

        def __call__(self, step):
            if step.index == stop:
                raise InterruptedError
            scope.step(*step.batch)

    options = {"callback": Callback(), "checkpoint": path, "checkpoint_every": 1}
    with scope:
        fit(Problem(model, "cross_entropy", data), optimizer, STEPS, 8, **options)
    return scope.results


def test_resumed_scope_measures_the_same_bit_for_bit(tmp_path):
    whole = training()
    path = tmp_path / "training.pt"
    with pytest.raises(InterruptedError):
        training(path, STOP)
    resumed = training(path)
    assert list(resumed["step"].values) == [0, 2, 4, 6, 8]
    assert np.isfinite(resumed["activation_mean_change"].sel(step=4, unit=0)).all()
    assert np.isfinite(resumed["shift_cosine"].isel(layer=0)).values.tolist() == [
        *(True, False, True, False, True)  # at least three steps apart, over the interruption
    ]
    xr.testing.assert_identical(whole, resumed)


def test_resumed_scope_has_all_rows_in_its_store(tmp_path):
    path = tmp_path / "training.pt"
    with Store(tmp_path / "runs.sqlite") as store:
        options = {"store": store, "labels": {"net": "small"}}
        with pytest.raises(InterruptedError):
            training(path, STOP, options)
        resumed = training(path, scope_options=options)
        (record,) = store.select("scope")
        np.testing.assert_array_equal(record.dataset["step"], resumed["step"])
        np.testing.assert_array_equal(record.dataset["ray_loss"], resumed["ray_loss"])


def test_state_of_another_scope_is_refused():
    line = nn.Linear(2, 1)
    state = Scope(line, "squared_error", learning_rate=0.1, probes="loss_variation").state_dict()
    other = Scope(line, "squared_error", learning_rate=0.1, probes="effective_smoothness")
    with pytest.raises(StateError, match="with the probes loss_variation; load it before"):
        other.load_state_dict(state)
    begun = Scope(line, "squared_error", learning_rate=0.1, probes="loss_variation")
    begun.step(torch.ones(3, 2), torch.ones(3, 1))
    with pytest.raises(StateError, match="1 steps"):
        begun.load_state_dict(state)


def test_probe_that_would_lose_its_history_is_refused():
    class Forgetful(CovariateShift):
        def reset(self, seed):
            self.history = []

    scope = Scope(nn.Linear(2, 1), "squared_error", learning_rate=0.1, probes=[Forgetful()])
    with pytest.raises(StateError, match="'covariate_shift' keeps something between steps"):
        scope.state_dict()


def test_checkpoint_without_the_callbacks_state_is_refused(tmp_path):
    path = tmp_path / "training.pt"
    model = nn.Linear(2, 1)
    problem = Problem(model, "squared_error", (torch.ones(4, 2), torch.ones(4, 1)))
    fit(problem, sgd(0.1)(model.parameters()), 2, checkpoint=path)

    class Stateful:
        def __call__(self, step):
            return None

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            raise AssertionError

    with pytest.raises(StateError, match="without the state of a callback"):
        fit(problem, sgd(0.1)(model.parameters()), 3, checkpoint=path, callback=Stateful())
