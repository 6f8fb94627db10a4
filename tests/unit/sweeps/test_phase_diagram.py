"""The diagram: labelled numbers of every cell, theory beside them, shared and resumed cells."""

import json
import math
import threading
import time

import numpy as np
import pytest
import xarray as xr
from torch import nn

from normscope.cli.main import main
from normscope.data import load
from normscope.errors import NormscopeError
from normscope.meanfield import predict
from normscope.meanfield.output_curvature import output_curvature
from normscope.models import build
from normscope.plots.phase_diagram import phase_diagram as draw
from normscope.problem import Problem
from normscope.results import Store
from normscope.sweeps import Diagram, Work, phase_diagram, status, sweep, training_cell
from normscope.training import fit, sgd

SMALL = {"epochs": 1, "width": 24, "samples": 640, "test_samples": 100}
AXES = {"gammas": [0.5, 2.0], "learning_rates": [0.001, 0.01, 100.0]}


def theory_of(axes, settings):
    """The theory's lines of a diagram, of which nothing is trained."""
    with Store(":memory:") as store:
        return Diagram(axes, settings, [0]).results(store)["critical_learning_rate"]


def complete(settings):
    """All settings of a training, as a store has them."""
    (cell,) = Diagram({"learning_rate": [0.1]}, settings, [0]).cells
    return cell.parameters


def cost_of(capsys, *settings, **options):
    """The estimate of the command for these settings."""
    words = [word for each in settings for word in ("--set", each)]
    words += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    assert main(["sweep", "phase_diagram", *words, "--dry-run", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


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
    head = predict(network, (1, 8, 8), data=data, gamma=[0.5], batch_size=128)
    curvature = output_curvature("cross_entropy", head, 10)
    np.testing.assert_allclose(ratio.sel(closure="train"), 1 / curvature)


def test_theory_is_that_of_every_combination():
    axes = {
        "gamma": [0.5, 2.0],
        "width": [16, 32],
        "loss": ["squared_error", "cross_entropy"],
        "learning_rate": [0.01],
    }
    fixed = {name: value for name, value in SMALL.items() if name != "width"}
    with Store(":memory:") as store:
        found = Diagram(axes, fixed, [0]).results(store)  # nothing is trained
        assert store.select() == []
    assert found["test_loss"].isnull().all()
    lines = found["critical_learning_rate"]
    assert lines.dims == ("closure", "gamma", "width", "loss")
    for width in (16, 32):
        for loss in axes["loss"]:
            own = {"gamma": [0.5, 2.0], "learning_rate": [0.01]}
            alone = theory_of(own, {**fixed, "width": width, "loss": loss})
            np.testing.assert_array_equal(lines.sel(width=width, loss=loss), alone)
    assert (lines.sel(closure="train", width=16) != lines.sel(closure="train", width=32)).all()


def absolute(output, target):
    return (output.argmax(1) - target).abs().float().mean()


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"activation": "tanh"}, "no layer has a mean gradient over the data"),
        ({"norm": "l1"}, "has no closure here for the module LpNorm1d"),
        ({"loss": f"{__file__}:absolute"}, "it knows the losses squared_error and cross_entropy"),
        ({}, None),
    ],
)
def test_line_that_the_theory_does_not_have_says_why(settings, reason, tmp_path):
    axes = {"gamma": [0.5, 2.0], "learning_rate": [0.01]}
    with Store(":memory:") as store:
        found = Diagram(axes, {**SMALL, **settings}, [0]).results(store)
    found.to_netcdf(tmp_path / "c.nc", engine="scipy")
    line = xr.load_dataset(tmp_path / "c.nc", engine="scipy")["critical_learning_rate"]
    assert line.sel(closure="train").isnull().all() == (reason is not None)
    assert (reason or "") in line.attrs.get("no_answer", "")
    assert ("no_answer" in line.attrs) == (reason is not None)


def test_several_reasons_are_none_of_a_whole_line():
    axes = {"gamma": [0.5], "norm": ["l1", "l2"], "learning_rate": [0.01]}
    lines = theory_of(axes, SMALL)
    assert lines.attrs["no_answer"].startswith("features.1: ")  # the same layer of both
    odd = theory_of({**axes, "norm": ["l1", "batch"]}, {**SMALL, "activation": "tanh"})
    assert odd.isel(closure=0).isnull().all()
    assert "no_answer" not in odd.attrs


def test_settings_that_are_lists_are_labelled_by_their_text(tmp_path):
    axes = {"gamma": [1.0], "channels": [[2, 3, 4], [4, 3, 2]], "learning_rate": [0.01]}
    fixed = {"model": "conv_net", "padding": 1, "samples": 256}
    with Store(":memory:") as store:
        found = Diagram(axes, fixed, [0]).results(store)
    assert list(found["channels"].values) == ["[2,3,4]", "[4,3,2]"]
    assert np.isfinite(found["critical_learning_rate"].sel(closure="train")).all()
    found.to_netcdf(tmp_path / "c.nc", engine="scipy")


def test_whole_numbers_are_the_cells_of_floats():
    whole = Diagram({"gamma": [1, 2], "learning_rate": [1]}, SMALL, [0]).units
    floats = Diagram({"gamma": [1.0, 2.0], "learning_rate": [1.0]}, SMALL, [0]).units
    assert [repr(unit) for unit in whole] == [repr(unit) for unit in floats]


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"model": "conv"}, "unknown model 'conv'"),
        ({"model": "mine.py:net"}, "there is no file mine.py"),
        ({"widht": 3}, "'widht' of .*; did you mean 'width'"),
        ({"width": "wide"}, "width"),
        ({"learning_rates": [0.0, 1.0]}, "learning_rate must be above 0"),
        ({"learning_rates": [math.inf]}, "learning_rate must be a finite number"),
        ({"learning_rates": ["abc"]}, "learning_rate must be a finite number, got 'abc'"),
        ({"learning_rates": 0.1}, "learning_rates needs values in a list"),
        ({"gammas": [math.nan]}, "gamma must be a finite number, got nan"),
        ({"gammas": [1, "abc"]}, "gamma must be a finite number, got 'abc'"),
        ({"gammas": [None]}, "gamma must be a finite number, got None"),
        ({"gammas": [[1, 2]]}, "gamma must be a finite number"),
        ({"gammas": [True]}, "gamma must be a finite number, got True"),
        ({"gammas": [-1]}, "gamma must be above 0"),
        ({"gammas": [0]}, "gamma must be above 0"),
        ({"gamma": 2.0}, "gamma is not a fixed setting here, got 2.0"),
        ({"learning_rate": 2.0}, "learning_rate is not a fixed setting"),
        ({"seed": 3}, "seeds"),
        ({"seeds": 0}, "seeds needs values"),
        ({"epochs": -1}, "epochs must be above 0"),
        ({"batch_size": 5000}, "batch_size must be from 1 to the 1438 samples"),
        ({"batch_size": 1.5}, "batch_size must be an integer"),
        ({"samples": 5000}, "samples must be from 1 to 1438 of digits"),
        ({"loss": "nonsense"}, "unknown loss 'nonsense'"),
        ({"norm": "nonsense"}, "unknown"),
        ({"weight_decay": -1}, "weight_decay must be"),
        ({"momentum": 1.0}, "momentum must be"),
        ({"divergence_factor": 0}, "divergence_factor must be above 1"),
        ({"every_epoch": 1}, "every_epoch must be True or False"),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_before_anything_is_stored(arguments, said):
    with Store(":memory:") as store:
        with pytest.raises(NormscopeError, match=said) as raised:
            phase_diagram(store=store, **arguments)
        assert "\n" not in str(raised.value)
        assert store.select() == []


def test_every_value_of_an_axis_is_built_before_anything_is_stored():
    axes = {"gamma": [1.0], "model": ["fully_connected", "conv_net"], "learning_rate": [0.1]}
    with pytest.raises(NormscopeError, match="width"):
        Diagram(axes, {"width": 16}, [0])


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


def names_in_legend(results):
    return [text.get_text() for text in draw(results).figure.legends[0].get_texts()]


def with_rates(found, **rates):
    """The diagram with lines at these rates, each the same for every gamma."""
    lines = xr.DataArray(
        [[rate] * found.sizes["gamma"] for rate in rates.values()],
        coords={"closure": list(rates), "gamma": found["gamma"]},
    )
    return found.drop_vars(["critical_learning_rate", "closure"]).assign(
        critical_learning_rate=lines
    )


def test_legend_says_which_line_is_off_the_picture_and_leaves_out_one_without_values(found):
    rate = float(found["learning_rate"][1])
    assert names_in_legend(with_rates(found, train=rate, frozen=1.5 * rate, printed=1e9)) == [
        "theory, train",
        "theory, frozen",
        "theory, printed (off the picture)",
        "half of it, train",
    ]
    assert names_in_legend(with_rates(found, train=np.nan, frozen=rate)) == ["theory, frozen"]


def test_lines_on_each_other_are_one_with_both_names(found):
    """Without batch statistics train and frozen agree, and one would hide the other."""
    rate = float(found["learning_rate"][1])
    one = with_rates(found, train=rate, frozen=1.0001 * rate, printed=2 * rate)
    assert names_in_legend(one) == [
        "theory, train and frozen",
        "theory, printed",
        "half of it, train",
    ]


@pytest.mark.parametrize(
    ("settings", "label"),
    [
        ('{"norm": "layer"}', r"initial scale of LayerNorm $\gamma$"),
        ('{"norm": "batch"}', r"initial scale of BatchNorm $\gamma$"),
        ('{"norm": "own"}', r"initial scale of the normalization $\gamma$"),
        ("{}", r"initial scale of the normalization $\gamma$"),
        ("not of this house", r"initial scale of the normalization $\gamma$"),
    ],
)
def test_axis_names_the_normalization_whose_scale_is_swept(found, settings, label):
    assert draw(found.assign_attrs(settings=settings)).get_ylabel() == label


def test_order_of_the_values_is_no_matter_to_the_figure(found):
    turned = found.isel(learning_rate=[2, 0, 1], gamma=[1, 0])
    for first, second in zip(draw(found).collections, draw(turned).collections, strict=True):
        np.testing.assert_array_equal(first.get_coordinates(), second.get_coordinates())
        np.testing.assert_array_equal(
            np.ma.filled(first.get_array(), -1), np.ma.filled(second.get_array(), -1)
        )


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


def test_settings_of_a_command_are_axes_or_fixed(capsys):
    axes = ("lr=0.1", "gamma=1,2", "width=50,100")
    assert cost_of(capsys, *axes)["cells"] == 4
    assert cost_of(capsys, "lr=0.1", "gamma=1,2", "width=50")["cells"] == 2
    # the scale's width is of the fully connected net alone
    assert cost_of(capsys, "lr=0.1", "gamma=1", "model=conv_net", "padding=1")["cells"] == 1
    both = ["--set", "model=fully_connected,conv_net", "--dry-run"]
    assert main(["sweep", "phase_diagram", *both]) == 2  # not for its width: digits are too small
    assert "conv_net has more convolutions than an image of (8, 8)" in capsys.readouterr().err
    assert main(["sweep", "phase_diagram", "--scale", "tiny", "--dry-run"]) == 2
    assert "unknown scale 'tiny'" in capsys.readouterr().err


def test_scale_of_a_command_sets_what_is_not_given(capsys):
    """Quick: two epochs of 1438 digits in batches of 128, of which the last is left out."""
    assert cost_of(capsys, "lr=0.1", "gamma=1")["steps"] == 2 * 11
    assert cost_of(capsys, "lr=0.1", "gamma=1", "epochs=3")["steps"] == 3 * 11


def test_status_and_estimate_count_cells(tmp_path, capsys):
    path = tmp_path / "p.sqlite"
    phase_diagram(gammas=[1.0], learning_rates=[0.01, 100.0], store=path, **SMALL)
    (state,) = status(path)
    assert (state.cells, state.open, state.seconds_left) == (2, 0, None)
    assert state.to_dict()["diverged"] == 1
    settings = [f"{name}={value}" for name, value in SMALL.items()]
    cost = cost_of(capsys, "gamma=1", "lr=0.01,0.1,100", *settings, out=path, workers=2)
    assert (cost["cells"], cost["open_cells"], cost["steps"]) == (3, 1, 5)
    assert cost["seconds"] == pytest.approx(5 * cost["seconds_per_step"] / 2)


def test_estimate_sums_over_the_settings(capsys):
    fixed = [f"{name}={value}" for name, value in SMALL.items() if name != "epochs"]
    cost = cost_of(capsys, "gamma=1", "epochs=1,100", "lr=0.01", *fixed)
    assert cost["steps"] == 500
    assert cost["seconds"] == pytest.approx(505 * cost["seconds_per_step"])


def slowly(cells):
    """A cell takes its share of a twentieth of a second."""
    time.sleep(0.4 * len(cells) / 8)
    return [xr.Dataset({"outcome": "finished"}) for _ in cells]


def test_time_left_of_groups_is_right_by_the_clock(tmp_path):
    """Groups of eight: a cell's duration is a share of its group's, and so is its rate."""
    axes = {"gamma": [0.5, 1.0, 2.0, 3.0], "learning_rate": np.geomspace(0.01, 1, 12).tolist()}
    units = Diagram(axes, SMALL, [0]).units
    assert {len(unit.cells) for unit in units} == {8}
    said = []

    def look():
        while not said:
            (each,) = status(path) or [None]
            if each and each.seconds_left is not None and each.counts["finished"] >= 16:
                said.append((each.seconds_left, time.monotonic()))
            time.sleep(0.02)

    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        watcher = threading.Thread(target=look)
        watcher.start()
        sweep(Work("phase_diagram", slowly), units, store)
        ended = time.monotonic()
        watcher.join()
    left, looked = said[0]
    assert left == pytest.approx(ended - looked, rel=0.5)


def test_cells_of_a_sweep_that_is_gone_are_not_running(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        keys = [store.add("squares", {"value": value}, 0) for value in range(3)]
        store.start(keys[0])
        (live,) = status(path)
        assert (live.at_work, live.counts["running"], live.open) == (True, 1, 3)
    (gone,) = status(path)
    assert (gone.at_work, gone.counts["running"], gone.open) == (False, 0, 3)
    assert gone.seconds_left is None


def test_time_left_of_a_sweep_that_is_gone_is_with_one_worker(tmp_path):
    path = tmp_path / "s.sqlite"
    with Store(path) as store:
        keys = [store.add("squares", {"value": value}, 0) for value in range(9)]
        for key, seconds in zip(keys, (1.0, 3.0), strict=False):
            store.start(key)
            store.finish(key, xr.Dataset({"square": 1.0}), seconds=seconds)
        for key in keys[2:5]:
            store.start(key)
        (live,) = status(path)
        assert live.seconds_left == 2.0 * (4 + 3 / 2) / 3  # three are at work, half through
    (gone,) = status(path)
    assert gone.seconds_left == 2.0 * 7


def test_device_is_where_a_training_goes_and_what_it_is_known_by(monkeypatch):
    """ "cpu:0" is the CPU by another name: the numbers are the same, the way is that of a GPU."""
    moved = []
    original = nn.Module.to
    monkeypatch.setattr(nn.Module, "to", lambda *given: moved.append(given[1]) or original(*given))
    settings = {"width": 16, "epochs": 1, "samples": 256, "learning_rate": 0.1}
    there = training_cell(**settings, device="cpu:0", seed=0)
    here = training_cell(**settings, seed=0)
    assert moved == ["cpu:0", "cpu"]
    assert float(there["test_loss"]) == float(here["test_loss"])
    del settings["learning_rate"]
    assert "device" not in complete(settings)
    assert complete({**settings, "device": "cpu:0"})["device"] == "cpu:0"
