"""A user's own model, data and loss in a phase diagram."""

import numpy as np
import pytest
import torch

from normscope.data import load
from normscope.errors import ArgumentTypeError, InputError, StateError
from normscope.results import Store
from normscope.sweeps import phase_diagram
from normscope.sweeps.defaults import swept
from normscope.sweeps.diagram import complete
from normscope.sweeps.own import own_data, own_network, scales
from normscope.sweeps.training_cell import Training, training_cell

SOURCE = """
import torch
from torch import nn
from normscope.data import load
from normscope.models import build as registered

def build(width=16):
    return registered("fully_connected", input_shape=(1, 8, 8), outputs=10, width=width, seed=0)

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

def half_error(output, target):
    return ((output - nn.functional.one_hot(target, 10)) ** 2).sum(1).mean() / 2

number = 3
"""
GRID = {"gammas": [0.5, 2.0], "learning_rates": [0.01, 0.1], "epochs": 1, "batch_size": 64}


@pytest.fixture
def own(tmp_path):
    """Places in a file of the user's."""
    path = tmp_path / "own_parts.py"
    path.write_text(SOURCE, encoding="utf-8")
    own_data.cache_clear()

    def place(name):
        return f"{path}:{name}"

    place.path = path
    yield place
    own_data.cache_clear()


def test_own_parts_train_as_the_registered_ones(own):
    """The factory makes the registered net of seed 0, so that every number must be the same."""
    registered = phase_diagram(**GRID, width=16)
    parts = {"model": own("build"), "data": own("everything"), "loss": own("half_error")}
    found = phase_diagram(**GRID, **parts, width=16)
    assert registered["test_loss"].notnull().all()
    np.testing.assert_allclose(found["test_loss"], registered["test_loss"], rtol=1e-6)
    np.testing.assert_array_equal(found["diverged"], registered["diverged"])


def test_theory_lines_stand_beside_an_own_model(own):
    found = phase_diagram(own("build"), "digits", **GRID)
    expected = phase_diagram(**GRID, width=16)
    name = "critical_learning_rate"
    np.testing.assert_allclose(found[name], expected[name], rtol=1e-6)


def test_gamma_and_norm_reach_an_own_model(own):
    kept = own_network(own("build"), 0, "own", 0.25, {"width": 8})
    assert [scale.unique().tolist() for scale in scales(kept)] == [[0.25]] * len(scales(kept))
    assert not scales(own_network(own("plain"), 0, "own", 0.25, {}))
    converted = scales(own_network(own("plain"), 0, "batch", 0.25, {"width": 8}))
    assert [tuple(scale.shape) for scale in converted] == [(8,)]


def test_gamma_without_a_norm_layer_is_refused(own):
    with pytest.raises(InputError, match=r"no norm layer with a scale.*norm=batch"):
        phase_diagram(own("plain"), **GRID)
    found = phase_diagram(own("plain"), **{**GRID, "gammas": [1.0]})
    assert found["test_loss"].notnull().all()
    assert phase_diagram(own("plain"), **GRID, norm="batch")["test_loss"].notnull().all()


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


def test_source_edited_during_a_sweep_fails_the_cell(own):
    settings = complete({"model": own("build"), "epochs": 1, "batch_size": 64})
    training_cell(**settings, seed=0)
    own.path.write_text(SOURCE + "\n# edited\n", encoding="utf-8")
    with pytest.raises(StateError, match="no longer that of this sweep"):
        training_cell(**settings, seed=0)


def test_registered_trainings_keep_their_keys():
    assert "code" not in complete({})
    assert complete({})["norm"] == "batch"


def test_one_pair_holds_out_every_fifth_sample(own):
    whole, found = load("digits").train, own_data(own("one_pair"))
    count = len(whole.x)
    assert (len(found.train.x), len(found.test.x)) == (count - -(-count // 5), -(-count // 5))
    together = torch.cat([found.train.x, found.test.x]).flatten(1).sum(1).sort().values
    assert torch.equal(together, whole.x.flatten(1).sum(1).sort().values)
    assert found.classes == tuple(map(str, range(10)))


def test_two_pairs_are_training_and_test(own):
    found = own_data(own("two_pairs"))
    assert (len(found.train.x), len(found.test.x)) == (200, len(load("digits").test.x))


def test_numbers_to_learn_are_no_classes(own):
    assert own_data(own("regression")).classes == ()
    assert Training(model=own("plain"), data=own("regression")).outputs == 1


@pytest.mark.parametrize(
    ("name", "error", "text"),
    [
        ("batches", ArgumentTypeError, "a pair of tensors"),
        ("uneven", InputError, "10 inputs and 9 targets"),
        ("number", ArgumentTypeError, "got int"),
    ],
)
def test_data_that_cannot_be_split_is_refused(own, name, error, text):
    with pytest.raises(error, match=text):
        phase_diagram(own("build"), own(name), **GRID)


def test_what_is_no_network_is_refused(own):
    with pytest.raises(ArgumentTypeError, match=r"torch\.nn\.Module, got int"):
        phase_diagram(own("number"), **GRID)
    with pytest.raises(InputError, match=r"no function, and takes no width"):
        phase_diagram(own("number"), **GRID, width=3)
    with pytest.raises(InputError, match="say which function"):
        phase_diagram(str(own.path), **GRID)


def test_own_models_cannot_vary(own):
    from normscope.sweeps.diagram import Diagram

    axes = {"model": [own("build"), "conv_net"], "learning_rate": [0.1]}
    with pytest.raises(InputError, match="one sweep for each"):
        Diagram(axes, {}, [0])


def test_scale_leaves_the_samples_of_own_data(own):
    _, fixed = swept({"data": [own("one_pair")]}, "small")
    assert "samples" not in fixed
    assert swept({"data": ["mnist"]}, "small")[1]["samples"] == 12800
