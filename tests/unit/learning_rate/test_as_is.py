"""Limits of networks of which some modules are in eval mode, by each module's own flag."""

from __future__ import annotations

import copy
import math
import warnings

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, small_network
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.errors import NormscopeWarning, UnknownNameError
from normscope.layers.surgery.unfit import convert_in_mode
from normscope.learning_rate.network_properties import (
    held_norm_layers,
    scale_invariant_weights,
)
from normscope.learning_rate.prediction import mean_field_bound
from normscope.learning_rate.update_rule import UpdateRule
from normscope.problem import Problem


def network(variance=0.05):
    """Two norm layers whose running variance is far from that of the data."""
    torch.manual_seed(0)
    first = [nn.Linear(5, 12), nn.BatchNorm1d(12), nn.ReLU()]
    second = [nn.Linear(12, 12), nn.BatchNorm1d(12), nn.ReLU()]
    model = nn.Sequential(*first, *second, nn.Linear(12, 3))
    with torch.no_grad():
        model[1].running_var.fill_(variance)
        model[4].running_var.fill_(variance)
    return model.train()


def held(*names, **options):
    model = network(**options)
    for name in names:
        model.get_submodule(name).eval()
    return model


def digits():
    """Eight batches in a fixed order: another one gives another limit."""
    inputs, targets = ns.data.load("digits").train
    return DataLoader(TensorDataset(inputs[:512].flatten(1), targets[:512]), batch_size=64)


def classifier(*names, variance=1.0):
    """A network on the digits with running statistics of the data, some norm layers held."""
    torch.manual_seed(0)
    hidden = [nn.Linear(64, 24), nn.BatchNorm1d(24), nn.ReLU()]
    model = nn.Sequential(*hidden, nn.Linear(24, 24), nn.BatchNorm1d(24), nn.ReLU())
    model.append(nn.Linear(24, 10))
    ns.layers.population_statistics(model, digits())
    for name in names:
        model.get_submodule(name).eval().running_var.mul_(variance)
    return model


def onset(model):
    """The limit by a search of its own: plain steps on copies, with the model's flags."""
    batches = list(digits())

    def is_unstable(rate):
        twin, first = copy.deepcopy(model), None
        optimizer = torch.optim.SGD([p for p in twin.parameters() if p.requires_grad], rate)
        for step in range(100):
            inputs, targets = batches[step % 8]
            loss = nn.functional.cross_entropy(twin(inputs), targets)
            first = loss.item() if first is None else first
            if not math.isfinite(loss.item()) or loss.item() > 1.5 * first:
                return True
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return False

    low, high = 1e-4, 1e-4
    while not is_unstable(high):
        low, high = high, high * 1.3
    while high > 1.05 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if is_unstable(middle) else (middle, high)
    return math.sqrt(low * high)


@pytest.mark.parametrize(
    ("names", "variance"), [(("1", "4"), 1.0), (("1", "4"), 0.01), (("1",), 1.0), (("4",), 0.1)]
)
def test_verified_limit_is_that_of_training_with_the_same_flags(names, variance):
    model = classifier(*names, variance=variance)
    advice = ns.max_learning_rate(model, "cross_entropy", digits(), effort="thorough")
    truth = onset(model)
    # stable rates lie between unstable ones: of the first network up to 1.6 times the first failure
    assert 1 / 1.3 < advice.limit / truth < 1.5
    assert 1 / 3 < advice.predicted / truth < 3
    assert advice.held == names
    assert advice.mode == advice.to_dict()["mode"] == "as_is"
    assert "in eval mode" in advice.explanation


def test_train_mode_is_far_off_where_every_norm_layer_is_frozen():
    model, options = classifier("1", "4", variance=0.01), {"mode": "train"}
    forced = ns.max_learning_rate(model, "cross_entropy", digits(), **options)
    plain = ns.max_learning_rate(classifier(), "cross_entropy", digits())
    assert forced.limit > 50 * onset(model)
    assert forced.limit == plain.limit
    assert forced.held == ()


def test_prediction_of_a_frozen_network_is_not_that_of_its_last_layer():
    options = {"verify": False}
    free, frozen = (
        ns.max_learning_rate(classifier(*names), "cross_entropy", digits(), **options)
        for names in ((), ("1", "4"))
    )
    assert free.prediction.layer == "6"
    assert frozen.prediction.layer is None


def test_curvature_bound_is_that_of_the_flags():
    model = held("1")
    found = ns.max_learning_rate(model, "cross_entropy", labelled(), verify=False)
    expected = ns.curvature.top_eigenvalue(model, "cross_entropy", labelled(), "ggn", "as_is")
    assert found.curvature.values == (pytest.approx(expected.value, rel=0.03),)


@pytest.mark.parametrize("mode", ["train", "frozen", "eval"])
def test_modes_force_every_module(mode):
    options = {"mode": mode, "verify": True}
    found = ns.max_learning_rate(held("1"), "cross_entropy", labelled(), **options)
    plain = ns.max_learning_rate(network(), "cross_entropy", labelled(), **options)
    assert (found.limit, found.predicted, found.bound) == (
        plain.limit,
        plain.predicted,
        plain.bound,
    )


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.SGD])
def test_frozen_backbone_trains_the_head_alone(optimizer):
    model = held("1", "4").requires_grad_(False)
    model[6].requires_grad_(True)
    advice = ns.max_learning_rate(
        model, "cross_entropy", labelled(), optimizer=lambda p: optimizer(p, lr=0.1)
    )
    assert set(advice.shares) == {"6"}
    above = 1.3 if optimizer is torch.optim.SGD else math.inf  # under Adam losses come back
    assert 1 / 1.3 < advice.limit / advice.predicted < above


def test_model_is_left_as_it_is():
    model = held("4")
    before, flags = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    ns.max_learning_rate(model, "cross_entropy", labelled())
    assert [m.training for m in model.modules()] == flags
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_unknown_mode_is_refused():
    for call in (ns.max_learning_rate, ns.compare):
        with pytest.raises(UnknownNameError, match="as_is"):
            call(network(), "cross_entropy", labelled(), mode="asis")


def test_theory_has_no_running_statistics():
    rule, problem = UpdateRule("SGD"), Problem(held("4"), "cross_entropy", labelled())
    found = mean_field_bound(problem, labelled(), rule, mode="as_is")
    assert found.rate is None
    assert "'4'" in found.reason
    assert mean_field_bound(problem, labelled(), rule, mode="train").rate is not None


def test_layers_that_keep_their_statistics():
    model = nn.Sequential(
        nn.BatchNorm1d(2), nn.BatchNorm1d(2, track_running_stats=False), nn.LayerNorm(2)
    )
    flags = dict.fromkeys("012", False)
    assert held_norm_layers(model, flags) == ("0",)
    assert held_norm_layers(model, {}) == ()


def test_weights_before_a_frozen_norm_layer_are_not_invariant():
    problem = Problem(held("1"), "cross_entropy", labelled())
    assert scale_invariant_weights(problem, labelled(), mode="as_is") == ("3.weight",)
    assert scale_invariant_weights(problem, labelled()) == ("0.weight", "3.weight")


class Frozen(nn.Sequential):
    """Keeps its norm layers in eval mode, whoever calls train()."""

    def train(self, mode=True):
        super().train(mode)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.eval()
        return self


class FrozenWeights(nn.Sequential):
    def train(self, mode=True):
        self[0].requires_grad_(False)
        return super().train(mode)


def test_override_of_train_that_was_not_called_is_warned_of():
    model = Frozen(*network())
    with pytest.warns(NormscopeWarning, match=r"train\(\) method would change.*'1'") as caught:
        ns.max_learning_rate(model, "cross_entropy", labelled(), verify=False)
    assert caught[0].filename == __file__
    assert model[1].training
    advice = ns.max_learning_rate(model.train(), "cross_entropy", labelled())  # no warning
    assert advice.held == ("1", "4")
    same = ns.max_learning_rate(held("1", "4"), "cross_entropy", labelled())
    assert advice.limit == same.limit


def test_override_of_train_that_freezes_parameters_is_warned_of():
    model = FrozenWeights(*network())
    with pytest.warns(NormscopeWarning, match=r"requires_grad of '0\.weight'"):
        ns.max_learning_rate(model, "cross_entropy", labelled(), verify=False)
    assert model[0].weight.requires_grad


@pytest.mark.parametrize("name", ["max_learning_rate", "compare"])
def test_model_in_eval_mode_gets_one_warning(name):
    options = {"verify": False} | ({"steps": 1, "norms": ["batch"]} if name == "compare" else {})
    with pytest.warns(NormscopeWarning, match="in eval mode") as caught:
        getattr(ns, name)(network().eval(), "cross_entropy", labelled(), **options)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    for mode in ("train", "eval"):
        getattr(ns, name)(network().eval(), "cross_entropy", labelled(), mode=mode, **options)


def test_model_in_eval_mode_that_no_mode_changes_gets_no_warning():
    model = small_network(norm=False).eval()
    plain = ns.max_learning_rate(small_network(norm=False), "cross_entropy", labelled())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = ns.max_learning_rate(model, "cross_entropy", labelled())
    assert found.limit == plain.limit


def test_comparison_keeps_the_flags_of_old_layers_and_trains_new_ones():
    model = held("1", "4")
    found = ns.compare(model, "cross_entropy", labelled(), norms=["batch", "none", "l2"])
    alone = ns.max_learning_rate(model, "cross_entropy", labelled(), effort="thorough")
    assert found["batch"].advice.limit == alone.limit
    assert found["batch"].advice.held == ("1", "4")
    assert found["l2"].advice.held == ()
    assert found["l2"].advice.limit > 10 * alone.limit
    assert not found["batch"].diverged


class Activated(nn.BatchNorm1d):
    def __init__(self, features):
        super().__init__(features)
        self.activation = nn.ReLU()

    def forward(self, input):
        return self.activation(super().forward(input))


def test_converted_layers_keep_the_flag_with_the_statistics():
    model = nn.Sequential(nn.Linear(5, 4), Activated(4).eval(), nn.Linear(4, 3))
    for kind, flag in (("batch", False), ("noisy", False), ("l2", True)):
        norm, activation = convert_in_mode(model, kind, "as_is")[1]
        assert (norm.training, activation.training) == (flag, False)
        assert not convert_in_mode(model, kind, "train")[1][0].training
