"""The verb: sweeps, data, batch size, parameters, and its refusals."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import ArgumentTypeError, InputError, ShapeError, UnknownNameError
from normscope.meanfield import (
    CLOSURES,
    convolutional_specification,
    fully_connected_specification,
    predict,
)

FC, CONV = fully_connected_specification(), convolutional_specification(padding=1)


@pytest.mark.parametrize("closure", CLOSURES)
@pytest.mark.parametrize("graph", [FC, CONV], ids=["fc", "conv"])
def test_sweep_is_the_loop(graph, closure):
    gammas = [0.2, 1.0, 2.5]
    swept = predict(graph, closure=closure, gamma=gammas)
    for index, gamma in enumerate(gammas):
        single = predict(graph, closure=closure, gamma=gamma)
        assert swept.lambda_max[index] == pytest.approx(single.lambda_max, rel=1e-12)
        assert swept.lower_bound[index] == pytest.approx(single.lower_bound, rel=1e-12)
        assert swept.regime[index] == single.regime
        assert swept.reason[index] == single.reason
        for row, alone in zip(swept.layers, single.layers, strict=True):
            assert row.term[index] == pytest.approx(alone.term, rel=1e-12)
            assert row.growth[index] == pytest.approx(alone.growth, rel=1e-12)


def test_long_sweep_of_a_resolved_map_is_made_in_pieces():
    """Twenty values, eight at a time: the same as all at once."""
    gammas = np.linspace(0.2, 3.0, 20)
    found = predict(CONV, gamma=gammas)
    alone = predict(CONV, gamma=gammas[13])
    assert found.lambda_max.shape == (20,)
    assert found.lambda_max[13] == pytest.approx(alone.lambda_max, rel=1e-12)
    assert found.layers[2].term[13] == pytest.approx(alone.layers[2].term, rel=1e-12)
    assert found.layers[0].positions == 256


def test_gamma_per_layer_reaches_its_layer():
    found = predict(fully_connected_specification(gamma=(0.5, 2.0, 3.0)), closure="train")
    assert found.lambda_max == pytest.approx(1000 * 9 / (2 * math.pi))
    with pytest.raises(InputError, match="one number or 3"):
        fully_connected_specification(gamma=(1.0, 2.0))


def test_learning_rate_follows_from_the_eigenvalue():
    found = predict(FC)
    assert found.max_learning_rate() == pytest.approx(2 / found.lambda_max)
    assert found.max_learning_rate(momentum=0.9) == pytest.approx(3.8 / found.lambda_max)
    assert found.max_learning_rate(output_curvature=0.1) == pytest.approx(20 / found.lambda_max)
    with pytest.raises(InputError, match="momentum"):
        found.max_learning_rate(momentum=1.0)


def test_iid_normal_data_change_nothing():
    x = torch.randn(4000, 784, generator=torch.Generator().manual_seed(0))
    measured = predict(FC, data=(x, torch.zeros(4000)), closure="frozen")
    assert measured.lower_bound == pytest.approx(
        predict(FC, closure="frozen").lower_bound, rel=0.01
    )
    assert measured.batch_size == 4000


def test_data_come_as_tensor_pair_list_or_loader():
    x = torch.randn(60, 784, generator=torch.Generator().manual_seed(0)) + 0.3
    y = torch.zeros(60)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=20)
    parts = [(x[i : i + 20], y[i : i + 20]) for i in (0, 20, 40)]
    found = [predict(FC, closure="frozen", data=each) for each in (x, (x, y), parts, loader)]
    assert [each.batch_size for each in found] == [60, 60, 20, 20]
    assert [each.lower_bound for each in found] == pytest.approx([found[0].lower_bound] * 4)


def test_data_with_a_mean_raise_the_first_layers_term():
    shifted = torch.randn(500, 50, generator=torch.Generator().manual_seed(0)) + 1.0
    graph = fully_connected_specification((50, 300, 10), norm="none")
    found = predict(graph, data=shifted)
    assert found.layers[0].input_second_moment == pytest.approx(2.0, rel=0.05)
    assert found.layers[0].input_pair == pytest.approx(1.0, rel=0.05)
    assert found.layers[0].term > 0
    assert predict(graph).layers[0].term == 0


def test_data_without_a_mean_have_no_pair_moment_on_average():
    values = [
        predict(
            fully_connected_specification((20, 30, 2)),
            data=torch.randn(8, 20, generator=torch.Generator().manual_seed(seed)),
        )
        .layers[0]
        .input_pair
        for seed in range(200)
    ]
    assert abs(np.mean(values)) < 3 * np.std(values) / math.sqrt(200)


def test_images_keep_their_positions():
    x = torch.zeros(100, 3, 8, 8)
    x[:, :, 2:6, 2:6] = torch.randn(100, 3, 4, 4, generator=torch.Generator().manual_seed(0)) + 1.0
    graph = convolutional_specification((3, 8, 8), (20, 30), padding=1)
    found = predict(graph, data=x)
    assert found.lambda_max > 0
    assert found.layers[0].input_pair == pytest.approx(0.25, rel=0.1)


def test_all_parameters_count_biases_scales_and_shifts():
    """At small gamma they outweigh the weights: one for the head's biases, and so on."""
    model = ns.models.build("fully_connected", width=400, gamma=0.1, input_shape=(100,))
    x = torch.randn(400, 100, generator=torch.Generator().manual_seed(0))
    top = ns.curvature.top_eigenvalue(model, "squared_error", (x, torch.zeros(400, 10)), "fisher")
    found = predict(model, (100,), parameters="all", batch_size=400)
    weights = predict(model, (100,), batch_size=400)
    assert weights.lambda_max == pytest.approx(400 * 0.01 / (2 * math.pi), rel=0.01)
    assert found.lambda_max == pytest.approx(top.value, rel=0.1)


def test_undetermined_is_none_with_its_reason():
    found = predict(fully_connected_specification(activation="tanh"))
    assert found.lambda_max is None
    assert found.lower_bound == 0.0
    assert found.regime == "undetermined"
    assert "odd activation" in found.reason
    assert found.max_learning_rate() is None
    assert "undetermined" in str(found)
    swept = predict(fully_connected_specification(activation="erf"), gamma=[0.5, 1.0])
    assert np.isnan(swept.lambda_max).all()
    assert np.isnan(swept.max_learning_rate()).all()


def test_terms_that_are_rounding_are_shown_as_zero_without_a_share():
    found = predict(fully_connected_specification(activation="tanh"))
    layers = [replace(row, term=1e-17 * row.gradient, share=1.0) for row in found.layers]
    noise = replace(found, layers=tuple(layers), lower_bound=7.193e-32)
    assert "7.193e-32" not in str(noise)
    assert "lower bound per output 0" in str(noise)
    shown = [line.split()[-2:] for line in noise.text(100).splitlines()[3 : 3 + len(layers)]]
    assert shown == [["0", "-"]] * len(layers)
    plain = predict(fully_connected_specification())
    last = plain.layers[-1]
    mixed = replace(plain, layers=(replace(plain.layers[0], term=1e-30, share=1e-30), last))
    shown = [line.split()[-2:] for line in mixed.text(100).splitlines()[3:5]]
    assert shown == [["0", "0"], [f"{last.term:.4g}", f"{last.share:.4g}"]]


def test_larger_batches_calm_the_explosive_branch():
    deep = fully_connected_specification((200, *[300] * 9, 10), bias_variance=0.0)
    assert predict(deep, batch_size=300).regime == "explosive"
    calm = predict(deep, batch_size=math.inf)
    assert calm.regime == "head"
    assert calm.lambda_max == pytest.approx(300 / (2 * math.pi))


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"closure": "training"}, UnknownNameError, "did you mean 'train'"),
        ({"parameters": "every"}, UnknownNameError, "choice of parameters"),
        ({"gamma": -1.0}, InputError, "gamma must be a number above 0"),
        ({"gamma": []}, InputError, "gamma"),
        ({"batch_size": 0}, InputError, "batch_size"),
        ({"input_shape": (3,)}, ShapeError, "specification is for inputs"),
        ({"input_shape": (0,)}, ShapeError, "at least 1"),
        ({"data": [1, 2]}, ArgumentTypeError, "data must be inputs"),
        ({"data": torch.zeros(1, 784)}, ShapeError, "two samples"),
    ],
)
def test_wrong_arguments_are_told(options, error, said):
    with pytest.raises(error, match=said):
        predict(FC, **options)


def test_printed_closure_tells_what_it_does_not_cover():
    for graph in (
        fully_connected_specification(activation="gelu"),
        fully_connected_specification(norm="layer"),
        fully_connected_specification(beta=0.5),
        convolutional_specification(head="average"),
    ):
        with pytest.raises(InputError, match="printed recursions do not cover"):
            predict(graph, closure="printed")


def test_table_dict_and_dataset_hold_the_same():
    found = predict(FC, closure="frozen")
    plain = json.loads(json.dumps(found.to_dict()))
    data = found.to_xarray()
    assert plain["lambda_max"] == found.lambda_max == float(data["lambda_max"])
    assert [row["term"] for row in plain["layers"]] == data["term"].values.tolist()
    assert data["layer"].values.tolist() == ["linear1", "linear2", "linear3", "linear4"]
    assert sum(row.share for row in found.layers) == pytest.approx(1.0)
    text = str(found)
    assert "linear3" in text
    assert "116.7" in text
    assert max(map(len, text.splitlines())) <= 80
    assert ">linear3</td>" in found._repr_html_()
    swept = predict(FC, gamma=[0.5, 1.0]).to_xarray()
    assert swept["term"].dims == ("layer", "gamma")
    assert json.loads(json.dumps(predict(FC, gamma=[0.5, 1.0]).to_dict()))["gamma"] == [0.5, 1.0]


@pytest.mark.parametrize("gamma", [None, [0.5, 1.0, 2.0]])
def test_plot_draws_layers_or_the_sweep(gamma):
    axes = predict(FC, gamma=gamma).plot()
    if gamma is None:
        assert axes.get_xticklabels()[0].get_text() == "linear1"
        assert len(axes.patches) == 4
    else:
        assert axes.lines[0].get_ydata() == pytest.approx(predict(FC, gamma=gamma).lambda_max)


def test_lazy_name_is_the_package():
    assert ns.meanfield.predict is predict


def deep_vectors():
    layers = [nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16)]
    return nn.Sequential(*layers, nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))


def images_to_vectors():
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 6)]
    return nn.Sequential(*layers, nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


@pytest.mark.parametrize("closure", ["train", "frozen"])
@pytest.mark.parametrize("samples", [2, 3])
@pytest.mark.parametrize(("make", "shape"), [(deep_vectors, (8,)), (images_to_vectors, (1, 8, 8))])
def test_infinite_gradients_of_few_samples_are_undetermined(make, shape, samples, closure):
    for seed in range(3):  # for three vectors, E[1/s^2] is infinite by a hair
        torch.manual_seed(seed)
        found = predict(make(), shape, closure, batch_size=samples)
        assert (found.lambda_max, found.regime) == (None, "undetermined")
        assert f"a batch of {samples}" in found.reason


@pytest.mark.parametrize("samples", [2, 4])
def test_samples_that_are_all_alike_are_undetermined(samples):
    found = predict(images_to_vectors(), data=torch.ones(samples, 1, 8, 8))
    assert found.lambda_max is None
