"""The diagram: labelled numbers of every cell, theory beside them, shared and resumed cells."""

import json

import numpy as np
import pytest
import xarray as xr

from normscope.curvature.problem import Problem
from normscope.data import load
from normscope.errors import InputError, UnknownNameError
from normscope.meanfield import predict
from normscope.models import build
from normscope.plots.phase_diagram import phase_diagram as draw
from normscope.results import Store
from normscope.sweeps import phase_diagram, status, training_cell
from normscope.sweeps.defaults import swept
from normscope.sweeps.estimate import estimate
from normscope.sweeps.phase_diagram import TRAININGS, training_units
from normscope.training import fit, sgd

SMALL = {"epochs": 1, "width": 24, "samples": 640, "test_samples": 100}
AXES = {"gammas": [0.5, 2.0], "learning_rates": [0.001, 0.01, 100.0]}


@pytest.fixture(scope="module")
def found():
    return phase_diagram(**AXES, seeds=2, **SMALL)


def test_every_cell_has_its_label(found):
    assert found["test_loss"].dims == ("gamma", "learning_rate", "seed")
    assert found["diverged"].sel(learning_rate=100.0).all()
    assert not found["diverged"].sel(learning_rate=0.001).any()
    assert np.isnan(found["test_loss"].where(found["diverged"], drop=True)).all()
    assert np.isfinite(found["train_loss"].where(~found["diverged"], drop=True)).all()
    assert float(found["steps_done"].sel(learning_rate=100.0).max()) < 5  # it ends at once


def test_cell_is_a_plain_training():
    cell = training_cell(gamma=2.0, learning_rate=0.01, seed=1, **SMALL)
    data = load("digits")
    network = build("fully_connected", input_shape=(1, 8, 8), width=24, gamma=2.0, seed=1)
    problem = Problem(network, "squared_error", (data.train.x[:640], data.train.y[:640]))
    run = fit(problem, sgd(0.01, 0.9), steps=5, batch_size=128, seed=1)
    np.testing.assert_array_equal(cell["loss"].values, run.losses)


def test_every_epoch_is_evaluated_on_demand():
    cell = training_cell(learning_rate=0.01, seed=1, every_epoch=True, **{**SMALL, "epochs": 3})
    assert cell["test_accuracy_by_epoch"].dims == ("epoch",)
    shorter = training_cell(learning_rate=0.01, seed=1, **{**SMALL, "epochs": 2})
    assert float(cell["test_loss_by_epoch"][1]) == float(shorter["test_loss"])
    assert float(cell["test_loss_by_epoch"][-1]) == float(cell["test_loss"])


def test_theory_stands_beside(found):
    data = load("digits").train.x[:512]
    network = build("fully_connected", input_shape=(1, 8, 8), width=24)
    expected = predict(network, (1, 8, 8), data=data, gamma=[0.5, 2.0], batch_size=128)
    rates = found["critical_learning_rate"].sel(closure="train").values
    np.testing.assert_allclose(rates, 3.8 / np.asarray(expected.lambda_max))
    entropy = phase_diagram(gammas=[0.5], learning_rates=[0.01], loss="cross_entropy", **SMALL)
    ratio = entropy["critical_learning_rate"] / found["critical_learning_rate"].sel(gamma=[0.5])
    np.testing.assert_allclose(ratio, 10)


def test_larger_diagram_uses_the_cells_of_a_smaller_one(tmp_path):
    path = tmp_path / "p.sqlite"
    phase_diagram(**AXES, store=path, **SMALL)
    with Store(path) as store:
        before = {record.key: record.attempts for record in store.select()}
    phase_diagram(gammas=[0.5, 2.0, 3.0], learning_rates=[0.001, 0.01], store=path, **SMALL)
    with Store(path, read_only=True) as store:
        after = {record.key: record.attempts for record in store.select()}
    assert len(after) == len(before) + 2
    assert all(after[key] == attempts for key, attempts in before.items())


def test_stored_cells_become_one_dataset(found, tmp_path):
    with Store(tmp_path / "p.sqlite") as store:
        phase_diagram(**AXES, seeds=2, store=store, **SMALL)
        whole = store.to_xarray("phase_diagram")
    aligned = whole["test_loss"].transpose("gamma", "learning_rate", "seed")
    np.testing.assert_array_equal(aligned.values, found["test_loss"].values)


def test_wrong_settings_are_refused_before_anything_is_stored():
    with Store(":memory:") as store:
        with pytest.raises(UnknownNameError, match="unknown model 'conv'"):
            phase_diagram("conv", store=store)
        with pytest.raises(UnknownNameError, match="'widht'; did you mean 'width'"):
            phase_diagram(widht=3, store=store)
        with pytest.raises(InputError, match="learning_rates must be above 0"):
            phase_diagram(learning_rates=[0.0, 1.0], store=store)
        with pytest.raises(InputError, match="samples must be from 1 to 1438 of digits"):
            phase_diagram(samples=5000, store=store)
        assert store.select() == []


def test_figure_is_white_where_any_run_exploded_and_names_the_settings(found):
    axes = draw(found)
    meshes = axes.collections
    white, colours = (mesh.get_array() for mesh in meshes[:2])
    exploded = found["diverged"].any("seed").values
    np.testing.assert_array_equal(~np.ma.getmaskarray(np.ma.masked_invalid(white)), exploded)
    np.testing.assert_array_equal(np.ma.getmaskarray(colours), exploded)
    assert len(axes.lines) == 4  # three closures and half of the first
    text = axes.figure._supxlabel.get_text()
    assert "fully_connected" in text
    assert "2 seeds" in text
    assert "width 24" in text.replace("\n", " ")


def test_partial_diagram_draws(found):
    partial = found.copy(deep=True)
    partial["test_loss"][1, 0] = np.nan
    draw(partial)
    draw(found.isel(gamma=[0], learning_rate=[2]))


def test_dataset_is_written_and_read(found, tmp_path):
    found.to_netcdf(tmp_path / "p.nc", engine="scipy")
    back = xr.load_dataset(tmp_path / "p.nc", engine="scipy")
    np.testing.assert_array_equal(back["test_loss"], found["test_loss"])
    assert json.loads(back.attrs["settings"])["data"] == "digits"


def test_settings_of_a_command_are_axes_or_fixed():
    axes, fixed = swept({"learning_rate": [0.1], "gamma": [1.0, 2.0], "width": [50, 100]}, "quick")
    assert list(axes) == ["gamma", "width", "learning_rate"]
    assert fixed["data"] == "digits"
    _, conv = swept({"model": ["conv_net"]}, "quick")
    assert "width" not in conv
    with pytest.raises(UnknownNameError, match="unknown scale"):
        swept({}, "tiny")


def test_status_and_estimate_count_cells(tmp_path):
    path = tmp_path / "p.sqlite"
    phase_diagram(gammas=[1.0], learning_rates=[0.01, 100.0], store=path, **SMALL)
    (state,) = status(path)
    assert (state.cells, state.open, state.seconds_left) == (2, 0, None)
    assert state.to_dict()["diverged"] == 1
    axes = {"gamma": [1.0], "learning_rate": [0.01, 0.1, 100.0]}
    units = training_units(axes, {"data": "digits", "model": "fully_connected", **SMALL}, [0])
    with Store(path, read_only=True) as store:
        cost = estimate(TRAININGS, units, store, workers=2, threads=1)
    assert (cost.cells, cost.open_cells, cost.steps) == (3, 1, 5)
    assert cost.seconds == pytest.approx(5 * cost.seconds_per_step / 2)
