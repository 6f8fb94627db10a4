"""A user's own model, data and loss in a phase diagram."""

import sys

import numpy as np
import pytest
import torch

from normscope.cli.main import main
from normscope.data import load
from normscope.errors import (
    ArgumentTypeError,
    InputError,
    NormscopeError,
    StateError,
    UnknownNameError,
)
from normscope.results import State, Store
from normscope.sweeps import Diagram, Training, phase_diagram, status, training_cell

SOURCE = """
import torch
from torch import nn
from normscope.data import load
from normscope.models import build as registered

def build(width=16):
    return registered("fully_connected", input_shape=(1, 8, 8), outputs=10, width=width, seed=0)

def needs(width, gain):
    return build(width)

def plain(width=16):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

def everything():
    return load("digits")

def one_pair():
    return load("digits").train

def two_pairs():
    digits = load("digits")
    return (digits.train.x[:200], digits.train.y[:200]), tuple(digits.test)

def regression():
    x = torch.linspace(0, 1, 50).reshape(-1, 1)
    return x, x * 2

def batches():
    return [load("digits").train]

def uneven():
    return torch.ones(10, 1), torch.ones(9, 1)

def triple_error(output, target):
    return 1.5 * ((output - nn.functional.one_hot(target, 10)) ** 2).sum(1).mean()

kept = plain()
only = build()

def repeated():
    return kept

def within():
    return nn.Sequential(kept, nn.ReLU())

def in_order():
    x = torch.arange(50.0).reshape(-1, 1)
    return x, x

def with_gap():
    x, y = regression()
    y[3] = float("nan")
    return x, y

def unlabelled():
    x, y = load("digits").train
    return x, y.index_fill(0, torch.tensor([7]), -1)

def too_many():
    x, y = load("digits").train
    return x, y.index_fill(0, torch.tensor([7, 70]), 10)

def ignoring(output, target):
    return nn.functional.cross_entropy(output, target, ignore_index=-1)

def one_hot():
    x, y = load("digits").train
    return x, nn.functional.one_hot(y)

def single():
    return torch.ones(()), torch.ones(())

number = 3
"""
GRID = {"gammas": [0.5, 2.0], "learning_rates": [0.01, 0.1], "epochs": 1, "batch_size": 64}


@pytest.fixture
def own(tmp_path):
    """Places in a file of the user's."""
    path = tmp_path / "own_parts.py"
    path.write_text(SOURCE, encoding="utf-8")

    def place(name):
        return f"{path}:{name}"

    place.path = path
    return place


def data_at(place):
    return Training(data=place).data_set


def scales_of(model, **settings):
    """The scales of the norm layers of a user's model."""
    network = Training.of({"model": model, **settings}).network(seed=0)
    norms = [each for each in network.modules() if isinstance(each, torch.nn.BatchNorm1d)]
    return [norm.weight.detach() for norm in norms]


def complete(**settings):
    """All settings of a training, as a store has them."""
    (cell,) = Diagram({"learning_rate": [0.1]}, settings, [0]).cells
    return cell.parameters


def test_own_parts_train_as_the_registered_ones(own):
    """The factory makes the registered net of seed 0, so that every number must be the same."""
    registered = phase_diagram(**GRID, width=16)
    found = phase_diagram(**GRID, model=own("build"), data=own("everything"), width=16)
    assert registered["test_loss"].notnull().all()
    np.testing.assert_allclose(found["test_loss"], registered["test_loss"], rtol=1e-6)
    np.testing.assert_array_equal(found["diverged"], registered["diverged"])


def test_own_loss_is_trained_and_tested_with(own):
    """Three times the squared error: a third of the learning rate takes the same steps."""
    grid = {**GRID, "learning_rates": [0.01, 0.1]}
    thirds = [rate / 3 for rate in grid["learning_rates"]]
    expected = phase_diagram(**grid, width=16)
    found = phase_diagram(**{**grid, "learning_rates": thirds}, loss=own("triple_error"), width=16)
    np.testing.assert_allclose(found["test_loss"], 3 * expected["test_loss"], rtol=1e-3)


def test_theory_lines_stand_beside_an_own_model(own):
    found = phase_diagram(own("build"), "digits", **GRID)
    expected = phase_diagram(**GRID, width=16)
    name = "critical_learning_rate"
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


def test_gamma_and_norm_reach_an_own_model(own):
    kept = scales_of(own("build"), gamma=0.25, width=8)
    assert kept
    assert all(torch.equal(scale, torch.full((8,), 0.25)) for scale in kept)
    assert not scales_of(own("plain"), norm="own")
    (converted,) = scales_of(own("plain"), norm="batch", gamma=0.25, width=8)
    assert torch.equal(converted, torch.full((8,), 0.25))


def test_gamma_without_a_norm_layer_is_refused(own):
    with pytest.raises(InputError, match=r"no norm layer with a scale.*norm=batch"):
        phase_diagram(own("plain"), **GRID)
    found = phase_diagram(own("plain"), **{**GRID, "gammas": [1.0]})
    assert found["test_loss"].notnull().all()
    assert phase_diagram(own("plain"), **GRID, norm="batch")["test_loss"].notnull().all()
    with pytest.raises(InputError, match="no norm layer"):
        phase_diagram(own("plain"), **{**GRID, "gammas": [0.5]})


@pytest.mark.parametrize("name", ["repeated", "within"])
def test_weights_that_two_cells_would_share_are_refused(own, name):
    """A cell would go on training where the cell before it ended."""
    with pytest.raises(InputError, match="the same weights at every call"):
        phase_diagram(own(name), **{**GRID, "gammas": [1.0]})


def test_one_model_for_all_cells_is_refused(own):
    with pytest.raises(ArgumentTypeError, match="a function that makes it"):
        phase_diagram(own("only"), **GRID)


def test_global_randomness_is_left_alone(own):
    before = torch.random.get_rng_state()
    training_cell(model=own("build"), epochs=1, batch_size=64, seed=3)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_edited_source_makes_new_cells(own, tmp_path):
    store = tmp_path / "cells.sqlite"
    phase_diagram(own("build"), **GRID, store=store)
    phase_diagram(own("build"), **GRID, store=store)
    with Store(store) as kept:
        assert len(kept.select("phase_diagram")) == 4
    own.path.write_text(SOURCE.replace("width=16", "width=8"), encoding="utf-8")
    phase_diagram(own("build"), **GRID, store=store)
    with Store(store) as kept:
        assert len(kept.select("phase_diagram")) == 8


def test_status_tells_cells_of_an_edited_source_apart(own, tmp_path):
    store = tmp_path / "cells.sqlite"
    phase_diagram(own("build"), **GRID, store=store)
    with Store(store) as kept:  # as an interrupted sweep leaves it
        (first, *_) = kept.select("phase_diagram")
        kept.add("phase_diagram", {**first.parameters, "gamma": 3.0}, seed=0)
    (before,) = status(store)
    assert (before.cells, before.open, sum(before.earlier.values())) == (5, 1, 0)
    assert before.seconds_left > 0
    own.path.write_text(SOURCE.replace("width=16", "width=8"), encoding="utf-8")
    phase_diagram(own("build"), **GRID, store=store)
    (after,) = status(store)
    assert (after.cells, after.open, after.to_dict()["of_earlier_code"]) == (4, 0, 5)
    assert (after.earlier[State.PENDING], after.earlier[State.FINISHED]) == (1, 4)
    assert sum(after.counts.values()) == 4
    assert after.seconds_left is None  # nobody will go on with the old cell
    own.path.unlink()
    (unknown,) = status(store)
    assert sum(unknown.earlier.values()) == 0


def test_status_runs_nothing_that_a_store_names(tmp_path, monkeypatch):
    package = tmp_path / "own_package"
    package.mkdir()
    module, seen = package / "parts.py", tmp_path / "seen"
    (package / "__init__.py").write_text(f"open({str(seen)!r}, 'a').close()\n", encoding="utf-8")
    module.write_text("# the second version\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    settings = {"model": "own_package.parts:build", "data": "digits", "code": "sha256-000000000000"}
    with Store(tmp_path / "cells.sqlite") as store:
        store.add("phase_diagram", settings, seed=0)
        store.add("other work", {"model": "train.py", "data": "x"}, seed=0)
    path = list(sys.path)
    found = status(tmp_path / "cells.sqlite")
    assert [sum(each.earlier.values()) for each in found] == [1, 0]
    assert not seen.exists()
    assert sys.path == path


def test_source_edited_during_a_sweep_fails_the_cell(own):
    settings = complete(model=own("build"), epochs=1, batch_size=64)
    training_cell(**settings, seed=0)
    own.path.write_text(SOURCE + "\n# edited\n", encoding="utf-8")
    with pytest.raises(StateError, match="no longer that of this sweep"):
        training_cell(**settings, seed=0)


def test_edited_data_is_loaded_anew(own):
    before = data_at(own("regression"))
    own.path.write_text(SOURCE.replace("x * 2", "x * 5"), encoding="utf-8")
    after = data_at(own("regression"))
    assert float(before.train.y.max()) <= 2 < float(after.train.y.max())


def test_edited_module_is_imported_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "edited_parts_module.py"
    path.write_text(SOURCE, encoding="utf-8")
    place = "edited_parts_module:build"
    assert scales_of(place)[0].numel() == 16
    path.write_text(SOURCE.replace("width=16", "width=8"), encoding="utf-8")
    assert scales_of(place)[0].numel() == 8


def test_one_file_name_in_two_folders_is_two_sources(tmp_path, monkeypatch):
    for folder, factor in (("one", 2), ("other", 5)):
        (tmp_path / folder).mkdir()
        text = SOURCE.replace("x * 2", f"x * {factor}")
        (tmp_path / folder / "parts.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path / "one")
    first = Training(data="parts.py:regression").data_set
    monkeypatch.chdir(tmp_path / "other")
    second = Training(data="parts.py:regression").data_set
    assert float(first.train.y.max()) < float(second.train.y.max())


def test_registered_trainings_keep_their_keys():
    assert "code" not in complete()
    assert complete()["norm"] == "batch"


def test_one_pair_holds_out_every_fifth_sample(own):
    whole, found = load("digits").train, data_at(own("one_pair"))
    count = len(whole.x)
    assert (len(found.train.x), len(found.test.x)) == (count - -(-count // 5), -(-count // 5))
    together = torch.cat([found.train.x, found.test.x]).flatten(1).sum(1).sort().values
    assert torch.equal(together, whole.x.flatten(1).sum(1).sort().values)
    assert found.classes == tuple(map(str, range(10)))


@pytest.mark.parametrize("setting", ["batch_size", "samples"])
def test_size_above_what_is_left_names_the_held_out_fifth(own, setting):
    with pytest.raises(InputError) as caught:
        _ = Training(data=own("in_order"), **{setting: 45}).steps_per_epoch
    place = own("in_order")
    assert str(caught.value).endswith(
        f"got 45; of the 50 that {place} returns every fifth is held out for the test."
    )
    with pytest.raises(InputError, match=r"got 400\.$"):  # nothing is held out of these
        _ = Training(data=own("two_pairs"), **{setting: 400}).steps_per_epoch


def test_held_out_samples_are_drawn_from_everywhere(own):
    held_out = data_at(own("in_order")).test.x.flatten().tolist()
    assert held_out != sorted(held_out)
    assert [round(value % 5) for value in held_out].count(0) < len(held_out)


def test_two_pairs_are_training_and_test(own):
    found = data_at(own("two_pairs"))
    assert (len(found.train.x), len(found.test.x)) == (200, len(load("digits").test.x))


def test_numbers_to_learn_are_no_classes(own):
    assert data_at(own("regression")).classes == ()
    assert Training(model=own("plain"), data=own("regression")).outputs == 1


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("batches", ArgumentTypeError, "a pair of tensors"),
        ("uneven", InputError, r"got shapes \(10, 1\) and \(9, 1\)"),
        (
            "with_gap",
            InputError,
            "targets that are infinite .*, in 1 of 50 samples, the first .* 3,",
        ),
        ("unlabelled", InputError, r"such as -1, that are not from 0 to 9, in 1 of 1438"),
        ("too_many", InputError, r"such as 10, that are not from 0 to 9, in 2 of 1438 samples"),
        ("one_hot", InputError, "one integer for each sample"),
        ("single", InputError, "as many targets as inputs"),
        ("regression", InputError, "."),
        ("number", ArgumentTypeError, "got int"),
    ],
)
def test_data_that_cannot_be_split_is_refused(own, name, error, text):
    with pytest.raises(error, match=text):
        phase_diagram(own("build"), own(name), **GRID)


def test_labels_below_zero_are_left_to_an_own_loss(own):
    loss = own("ignoring")
    found = phase_diagram(own("build"), own("unlabelled"), loss=loss, **GRID)
    assert not bool(found["failed"].any())


def test_what_is_no_network_is_refused(own):
    with pytest.raises(ArgumentTypeError, match=r"torch\.nn\.Module, got int"):
        phase_diagram(own("number"), **GRID)
    with pytest.raises(InputError, match=r"not callable, so it takes no options \(got width\)"):
        phase_diagram(own("number"), **GRID, width=3)
    with pytest.raises(InputError, match="name the function in it"):
        phase_diagram(str(own.path), **GRID)


def test_misspelt_setting_of_an_own_model_is_told_from_its_arguments(own):
    with pytest.raises(UnknownNameError, match=r"'weight_deca' of .*; did you mean 'weight_decay'"):
        phase_diagram(own("build"), **GRID, weight_deca=0.1)
    with pytest.raises(UnknownNameError, match=r"'widht' of .*; did you mean 'width'"):
        phase_diagram(own("build"), **GRID, widht=3)
    with pytest.raises(UnknownNameError) as caught:
        phase_diagram(own("build"), **GRID, gama=3)
    assert "batch_size" in str(caught.value)
    assert "code" not in str(caught.value)  # nobody gives it


def test_arguments_that_an_own_model_needs_can_be_settings(own):
    with pytest.raises(InputError, match=r"needs width, gain; give --set width=VALUE --set gain="):
        phase_diagram(own("needs"), **GRID)
    with pytest.raises(InputError, match=r"needs gain; give --set gain=VALUE"):
        phase_diagram(own("needs"), **GRID, width=8)


def test_model_and_data_that_do_not_fit_are_refused_before_anything_is_stored(own, tmp_path):
    few = {**GRID, "batch_size": 16}
    with pytest.raises(NormscopeError, match="expects"):
        phase_diagram(own("build"), own("regression"), **few, store=tmp_path / "a.sqlite")
    assert list(tmp_path.glob("a*")) == []


def test_own_models_cannot_vary(own):
    axes = {"model": [own("build"), "conv_net"], "learning_rate": [0.1]}
    with pytest.raises(InputError, match="one sweep for each"):
        Diagram(axes, {}, [0])


def test_scale_leaves_the_samples_of_own_data(own, capsys):
    """The scale small has 12,800 samples, of which own data may have fewer."""
    settings = ["--set", f"data={own('one_pair')}", "--set", "gamma=1", "--set", "lr=0.1"]
    assert main(["sweep", "phase_diagram", *settings, "--scale", "small", "--dry-run"]) == 0
    assert capsys.readouterr().out.startswith("1 cell")
