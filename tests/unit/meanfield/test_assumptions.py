"""What the theory assumes of a model: layers that do what they say, weights of mean zero."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from torch.nn.utils import parametrizations

import normscope as ns
from normscope.errors import InputError, NoClosureError
from normscope.meanfield import (
    Graph,
    Node,
    Rectifier,
    assumptions,
    fully_connected_specification,
    predict,
)
from normscope.meanfield.activations import Nonlinearity
from normscope.meanfield.field import Setting
from normscope.meanfield.graph import Input
from normscope.meanfield.weighted import Linear


def network(norm=None, width=100):
    """A ReLU network in float64 with weights of variance 2 / fan in."""
    torch.manual_seed(0)
    sizes, modules = (30, width, width, 10), []
    for inputs, outputs in pairwise(sizes):
        linear = nn.Linear(inputs, outputs)
        nn.init.normal_(linear.weight, 0, (2 / inputs) ** 0.5)
        modules += [linear] if norm is None else [linear, norm(outputs)]
        modules += [nn.ReLU()]
    return nn.Sequential(*modules[: -1 if norm is None else -2]).double()


def measured(model):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(256, 30, generator=generator, dtype=torch.float64)
    names = [name for name, _ in model.named_parameters() if "bias" not in name]
    data = (x, torch.zeros(256, 10, dtype=torch.float64))
    return ns.curvature.top_eigenvalue(model, "squared_error", data, "fisher", params=names).value


def never(*_):
    raise AssertionError("a hook must not run")


@pytest.mark.parametrize("name", ["", "1", "2"])
@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
def test_forward_hooks_are_refused_and_do_not_run(name, register):
    model = nn.Sequential(*network())
    getattr(model.get_submodule(name), register)(never)
    with pytest.raises(NoClosureError, match=f"^{name or 'the model'}: a forward hook may change"):
        predict(model)


@pytest.mark.parametrize(
    "register", [register_module_forward_hook, register_module_forward_pre_hook]
)
def test_global_forward_hooks_are_refused(register):
    handle = register(never)
    try:
        with pytest.raises(NoClosureError, match="a global forward hook may change"):
            predict(network())
    finally:
        handle.remove()


def test_replaced_forward_is_refused():
    for name in ("1", "2", "3"):
        model = network()
        model.get_submodule(name).forward = lambda x: 3 * torch.relu(x)
        with pytest.raises(NoClosureError, match=f"^{name}: "):
            predict(model)


class Tripled(nn.BatchNorm1d):
    def forward(self, x):
        return 3 * super().forward(x)


class Logged(nn.BatchNorm1d):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(x)


def test_subclass_of_batch_norm_must_normalize_as_its_attributes_say():
    with pytest.raises(NoClosureError, match=r"^1: .* Tripled"):
        predict(network(Tripled))
    plain, logged = predict(network(nn.BatchNorm1d)), predict(network(Logged))
    assert logged.lambda_max == plain.lambda_max


def test_batch_norm_that_is_frozen_by_its_flag_is_refused():
    model = network(nn.BatchNorm1d)
    whole = predict(model).lambda_max
    model[4].eval()
    with pytest.raises(NoClosureError, match=r"^4: .* BatchNorm1d in eval mode inside a model in"):
        predict(model)
    model.eval()  # as a whole: the theory is about training
    assert predict(model).lambda_max == whole
    model[1].train()
    with pytest.raises(NoClosureError, match=r"^4: "):
        predict(model)
    unfrozen = network(lambda n: nn.BatchNorm1d(n, track_running_stats=False))
    expected = predict(unfrozen).lambda_max
    unfrozen[4].eval()  # still uses batch statistics
    assert predict(unfrozen).lambda_max == expected


def test_dropout_that_is_switched_off_by_its_flag_drops_nothing():
    model = network()
    model.insert(2, nn.Dropout(0.5))
    dropped = predict(model).layers[1].input_second_moment
    model[2].eval()
    kept = predict(model).layers[1].input_second_moment
    assert kept == pytest.approx(predict(network()).layers[1].input_second_moment)
    assert dropped == pytest.approx(2 * kept)


class FunctionalDropout(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, self.training)


def test_dropout_called_as_a_function_counts_like_the_layer():
    layer, function = network(), network()
    layer.insert(2, nn.Dropout(0.5))
    function.insert(2, FunctionalDropout())
    assert predict(function).lambda_max == predict(layer).lambda_max
    function[2].eval()
    assert predict(function).lambda_max == predict(network()).lambda_max


def test_rms_norm_over_several_dimensions_is_refused():
    class WholeNorm(nn.Module):
        def forward(self, x):
            return nn.functional.rms_norm(x, x.shape[1:])

    model = nn.Sequential(nn.Linear(8, 16), WholeNorm(), nn.Linear(16, 3))
    with pytest.raises(NoClosureError, match=r"^1 \(WholeNorm\): .* the function rms_norm"):
        predict(model, (4, 8))


def test_tied_weights_are_refused():
    model = nn.Sequential(*network(), nn.ReLU(), nn.Linear(10, 10).double())
    model.insert(4, nn.Linear(100, 100).double())
    model[4].weight = model[2].weight
    with pytest.raises(NoClosureError, match=r"^4: .* Linear whose weights are those of 2"):
        predict(model)


def test_parametrized_weights_are_refused_unless_they_leave_the_eigenvalue():
    plain, model = network(), network()
    for layer in (model[0], model[2], model[4]):
        parametrizations.weight_norm(layer)
    assert predict(model).lambda_max == pytest.approx(predict(plain).lambda_max, rel=1e-12)
    assert measured(model) == pytest.approx(measured(plain), rel=1e-6)
    with torch.no_grad():
        model[2].parametrizations.weight.original1.mul_(3)  # same weights, other derivatives
    assert measured(model) < 0.8 * measured(plain)
    for changed in (
        model,
        nn.Sequential(*network()[:2], parametrizations.orthogonal(network()[2])),
    ):
        with pytest.raises(NoClosureError, match=r"^2: .* whose weights are parametrized"):
            predict(changed)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["0.weight", "3.bias", "1.weight", "4.bias"])
@pytest.mark.parametrize("closure", ["train", "printed"])
def test_weights_that_are_not_finite_are_refused(name, value, closure):
    model = network(nn.BatchNorm1d)
    with torch.no_grad():
        model.get_parameter(name).flatten()[3] = value
    with pytest.raises(InputError, match=f"^{name[0]}: the theory needs finite weights, got NaN"):
        predict(model, closure=closure)


def test_given_variances_and_scales_replace_what_is_not_finite():
    model = network(nn.BatchNorm1d)
    expected = predict(model, weight_variance=2.0, gamma=0.5).lambda_max
    with torch.no_grad():
        model[0].weight[0, 0] = model[1].weight[0] = math.nan
    assert predict(model, weight_variance=2.0, gamma=0.5).lambda_max == expected
    with pytest.raises(InputError, match="must not be negative, got weight_variance -1"):
        predict(network(), weight_variance=-1.0)
    with pytest.raises(InputError, match="finite weights"):
        predict(network(), weight_variance=math.nan)


def test_data_that_are_not_finite_are_refused():
    x = torch.zeros(5, 30)
    x[2, 3] = math.nan
    with pytest.raises(InputError, match="data needs finite inputs, got NaN"):
        predict(network(), data=x)


def test_batches_of_fewer_than_four_samples_are_said_to_be_too_small():
    found = predict(fully_connected_specification(), batch_size=3)
    assert found.lambda_max is None
    assert "batch of 3" in found.reason
    assert predict(fully_connected_specification(), batch_size=4).lambda_max > 0


def shifted(norm, layer, effect):
    """A network whose weights have a mean, with fan_in * mean^2 = effect * variance."""
    model = network(norm)
    weight = [each for each in model if isinstance(each, nn.Linear)][layer].weight
    with torch.no_grad():
        weight -= weight.mean()
        weight += (effect / weight.shape[1]) ** 0.5 * weight.std()
    return model


@pytest.mark.parametrize(
    ("norm", "layer", "effect"),
    [(None, 1, 0.4), (None, 1, 30.0), (nn.BatchNorm1d, 1, 30.0), (nn.BatchNorm1d, 0, 1000.0)],
)
def test_weights_with_a_mean_that_matters_are_refused(norm, layer, effect):
    model = shifted(norm, layer, effect)
    weight = [each for each in model if isinstance(each, nn.Linear)][layer].weight
    with pytest.raises(NoClosureError, match=r"^\d: the theory is about weights of mean zero, got"):
        predict(model)
    with torch.no_grad():  # the same mean square, without a mean
        weight.mul_(torch.randint(0, 2, weight.shape) * 2 - 1)
    predicted = predict(model).lambda_max
    assert measured(shifted(norm, layer, effect)) > 1.4 * predicted


@pytest.mark.parametrize(
    ("norm", "layer", "effect"),
    [(nn.BatchNorm1d, 0, 0.9), (nn.BatchNorm1d, 1, 0.9), (nn.LayerNorm, 1, 0.9), (None, 0, 0.9)],
)
def test_weights_with_a_mean_that_does_not_matter_are_read(norm, layer, effect):
    """A normalization removes the shift, and inputs of mean zero make none."""
    model = shifted(norm, layer, effect)
    assert measured(model) == pytest.approx(measured(shifted(norm, layer, 0.0)), rel=0.2)
    before, after = (predict(each).lambda_max for each in (shifted(norm, layer, 0.0), model))
    if norm is not None:  # which forgets the variance of the weights below
        assert after == pytest.approx(before, rel=0.02)


def test_mean_of_the_first_weights_matters_to_data_with_a_mean():
    model = shifted(None, 0, 0.9)
    x = torch.randn(256, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert predict(model, data=x).lambda_max > 0
    with pytest.raises(NoClosureError, match=r"^0: the theory is about weights of mean zero"):
        predict(model, data=x + 1)


INITIALIZATIONS = (
    nn.init.xavier_normal_,
    nn.init.xavier_uniform_,
    nn.init.kaiming_normal_,
    nn.init.kaiming_uniform_,
    nn.init.orthogonal_,
    nn.init.trunc_normal_,
    lambda weight: nn.init.sparse_(weight, 0.5),
    nn.init.zeros_,
)


@pytest.mark.parametrize("initialize", INITIALIZATIONS)
def test_ordinary_initializations_are_read(initialize):
    torch.manual_seed(1)
    for width in (1, 2, 3, 10, 300):
        for _ in range(20):
            model = nn.Sequential(nn.Linear(5, width), nn.ReLU(), nn.Linear(width, width))
            model.extend([nn.ReLU(), nn.Linear(width, 2)])
            for layer in (model[0], model[2], model[4]):
                initialize(layer.weight)
            predict(model, data=np.ones((4, 5)) + np.eye(4, 5))


def test_false_alarms_are_rarer_than_stated(monkeypatch):
    """At a level where they can be counted, for few and many weights, normal or uniform."""
    rng, level = np.random.default_rng(0), 0.05
    monkeypatch.setattr(assumptions, "FALSE_ALARM", level)
    for inputs, outputs in ((2, 1), (3, 2), (4, 8), (20, 30)):
        for draw in (rng.standard_normal, lambda size: rng.uniform(-1, 1, size)):
            alarms = 0
            for weights in draw((1000, outputs, inputs)):
                layer = Linear(inputs, outputs, inputs * np.square(weights).mean())
                node = replace(layer, weight_mean=weights.mean())
                alarms += refuses(node, inputs)
            assert alarms <= level * 1000 + 3 * (level * 1000) ** 0.5
            if inputs == 20:
                assert alarms > 0  # the level is not zero in disguise


def refuses(layer, inputs):
    """Return whether a layer between a mean input and an activation is refused."""
    nodes = (Node("0", layer, (-1,)), Node("1", Nonlinearity(Rectifier()), (0,)))
    start = Input((inputs,), np.ones((1, 1)), np.ones((1, 1))).field(Setting())
    graph = Graph(nodes, (inputs,))
    try:
        assumptions.check_weight_means(graph, start, graph.forward(start, Setting()))
    except NoClosureError:
        return True
    return False
