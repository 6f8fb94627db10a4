"""`doctor`: planted faults are found with a smaller number after the fix, nothing is changed."""

from __future__ import annotations

import copy
import json
import math
import os
import signal
import threading
from functools import partial

import pytest
import torch
from tests.zoo.faults import (
    FAULTS,
    HEALTHY,
    build,
    train,
    vectors,
    with_healthy_optimizer,
    zoo_case,
)
from tests.zoo.state import changes, fill_gradients, snapshot
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.diagnosis import CHECKS, Diagnosis, Finding, check
from normscope.errors import InputError, StateError, UnknownNameError

SLOW = {"ResNet-18", "fine-tuning", "InceptionTime"}  # faults like theirs are in other networks
TRAINED = "stale_statistics in convolutional"  # has a test of its own
QUICK = [each for each in FAULTS if each.base not in SLOW and not each.name.startswith(TRAINED)]
LARGER_AFTER = {"saturated_attention", "norm_before_output", "collapsed_outputs"}
LARGER_AFTER |= {"softmax_before_cross_entropy", "vanishing_gradients"}
"""Findings whose number grows by the fix: entropy, response to weights, variance, gradients."""


def examine(case, **options):
    return ns.doctor(case.model, case.loss, case.data, case.optimizer, deep=case.deep, **options)


@pytest.mark.slow
@pytest.mark.parametrize("fault", [each for each in FAULTS if each not in QUICK], ids=str)
def test_planted_fault_in_a_larger_network_is_found(fault):
    test_planted_fault_is_found_at_its_module(fault)


@pytest.mark.slow
@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_network_with_an_optimizer_has_no_finding_above_a_note(name):
    diagnosis = examine(with_healthy_optimizer(HEALTHY[name]()))
    assert diagnosis.is_healthy, str(diagnosis)
    assert not diagnosis.skipped
    assert diagnosis.passes < 20


@pytest.mark.parametrize("fault", QUICK, ids=str)
def test_planted_fault_is_found_at_its_module(fault):
    case = fault.build()
    found = [each for each in examine(case)[fault.finding] if each.module in fault.modules]
    assert found
    for each in found:
        assert all(len(line) <= 80 for line in each.text().splitlines()), each.text()
        if each.fixed_value is not None:
            larger = each.name in LARGER_AFTER
            assert each.fixed_value > each.value if larger else each.fixed_value < each.value


@pytest.mark.parametrize("name", ["MLP", "convolutional", "deep MLP", "Siamese"])
def test_healthy_network_has_no_finding_above_a_note(name):
    diagnosis = examine(build(name))
    assert diagnosis.is_healthy, str(diagnosis)
    assert not diagnosis.skipped
    assert diagnosis.passes < 20


@pytest.mark.parametrize("name", ["ViT", "GPT-2", "VAE", "GNN", "two inputs", "segmentation"])
def test_healthy_network_of_the_zoo_has_no_finding_above_a_note(name):
    diagnosis = examine(zoo_case(name))
    assert diagnosis.is_healthy, str(diagnosis)
    assert diagnosis.passes < 20


@pytest.mark.parametrize("name", ["stale_statistics in MLP", "dead_channels in MLP"])
def test_examination_changes_nothing(name):
    case = next(each for each in FAULTS if each.name.startswith(name)).build()
    case.optimizer = SGD(case.model.parameters(), lr=100.0, momentum=0.9)
    fill_gradients(case.model)
    before = snapshot(case.model)
    examine(case)
    assert not changes(before, snapshot(case.model))
    assert not case.optimizer.state


def test_interrupted_examination_changes_nothing():
    case = build("convolutional")
    before = snapshot(case.model)

    def interrupt(event):
        if event.done == 6:
            os.kill(os.getpid(), signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    with pytest.raises(KeyboardInterrupt):
        examine(case, progress=interrupt)
    assert not changes(before, snapshot(case.model))


def test_same_seed_gives_the_same_numbers():
    case = next(each for each in FAULTS if each.name.startswith("dead_channels in MLP")).build()
    one, other = examine(case), examine(case)
    assert [each.to_dict() for each in one] == [each.to_dict() for each in other]


def test_healthy_optimizer_has_no_finding():
    case = build("MLP")
    matrices = [p for p in case.model.parameters() if p.dim() > 1]
    others = [p for p in case.model.parameters() if p.dim() <= 1]
    groups = [{"params": matrices, "weight_decay": 1e-2}, {"params": others, "weight_decay": 0.0}]
    case.optimizer = SGD(groups, lr=0.05)
    diagnosis = examine(case)
    assert len(diagnosis) == 0
    assert diagnosis.passes < 20


def test_cancelled_bias_has_no_effect_by_autograd():
    case = next(each for each in FAULTS if each.name.startswith("bias_before_norm in MLP")).build()
    found = examine(case)["bias_before_norm"][0]
    layer = case.model.get_submodule(found.module)
    inputs, labels = case.data[0]
    cross_entropy(case.model(inputs), labels).backward()
    ratio = float(layer.bias.grad.norm() / layer.weight.grad.norm())
    assert found.value == pytest.approx(ratio, abs=1e-6)


def test_share_of_epsilon_is_that_of_the_layers_input():
    case = next(each for each in FAULTS if each.name.startswith("large_eps in conv")).build()
    inputs = case.model[:4](case.data[0][0]).detach()
    variance = inputs.var(dim=(0, 2, 3), correction=0)
    expected = float((1 / (variance + 1)).median())
    assert examine(case)["large_eps"][0].value == pytest.approx(expected, rel=1e-4)


def test_noise_of_batch_companions_is_that_of_exchanged_halves():
    case = next(each for each in FAULTS if each.name.startswith("few_samples in MLP")).build()
    (first, one), (second, other) = case.data
    case.data = [(torch.cat([first, second]), torch.cat([one, other]))]  # one batch of six
    with torch.no_grad():
        whole = case.model(case.data[0][0])
        halves = [case.model(case.data[0][0][start::2]) for start in (0, 1)]
    mixed = torch.stack([halves[at % 2][at // 2] for at in range(6)])
    noise = (mixed - whole).square().mean() / whole.var(dim=0, correction=0).mean()
    found = examine(case)["few_samples"]
    if noise.sqrt() > 0.5:
        assert found[0].value == pytest.approx(float(noise.sqrt()), rel=1e-4)
    else:
        assert not found


def test_micro_batches_of_an_accumulated_gradient_are_judged_by_their_own_size():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(20, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    inputs = torch.randn(20, 16, 2, 20)  # steps of 16 micro-batches of 2 samples
    for step in inputs:
        optimizer.zero_grad()
        for x in step:
            (nn.functional.cross_entropy(model(x), x[:, :4].argmax(1)) / len(step)).backward()
        optimizer.step()
    micro = [(x, x[:, :4].argmax(1)) for x in inputs[-1]]
    whole = [torch.cat(parts) for parts in zip(*micro, strict=True)]
    chosen = ["few_samples", "stale_statistics"]
    found = ns.doctor(model, "cross_entropy", micro, checks=chosen)
    assert [each.name for each in found] == ["few_samples"]
    assert found["few_samples"][0].fixed_value < 1e-3
    assert not list(ns.doctor(model, "cross_entropy", tuple(whole), checks=chosen))


def test_population_statistics_remove_what_stale_statistics_cost():
    case = next(each for each in FAULTS if each.name.startswith("stale_statistics in conv")).build()
    found = examine(case)["stale_statistics"][0]
    inputs, _ = case.data[0]
    with torch.no_grad():
        running = case.model.eval()(inputs)
        ns.layers.population_statistics(case.model, case.data)
        fitted, by_batch = case.model(inputs), case.model.train()(inputs)
    off = [float((each - by_batch).norm() / by_batch.norm()) for each in (running, fitted)]
    assert found.value == pytest.approx(off[0], rel=1e-3)
    assert found.fixed_value == pytest.approx(off[1], rel=1e-3)


@pytest.mark.parametrize(
    ("factor", "severity"), [(1.0, None), (1.5, None), (2.0, "note"), (4.0, "warning")]
)
def test_stale_statistics_are_judged_by_what_they_cost(factor, severity):
    case = build("MLP")
    train(case)
    case.model.norms[1].running_var *= factor
    found = examine(case, checks="stale_statistics")["stale_statistics"]
    assert [each.severity for each in found] == ([] if severity is None else [severity])
    for each in found:
        assert "norms.1" in each.modules
        assert each.fixed_value < each.value


def test_layer_whose_channels_are_all_dead_is_found_and_not_the_layers_behind():
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Linear(20, 16), nn.BatchNorm1d(16), nn.ReLU()),
        *(nn.Linear(16, 16, bias=False), nn.BatchNorm1d(16), nn.ReLU()),
        nn.Linear(16, 4),
    )
    with torch.no_grad():
        model[1].bias.fill_(-20.0)
    (found,) = ns.doctor(model, "cross_entropy", vectors(0), checks="dead_channels")
    assert found.severity == "warning"
    assert found.modules[0] == "1"
    assert (found.value, found.fixed_value) == (1.0, 0.0)


def test_trial_run_is_that_of_the_optimizer():
    fault = next(each for each in FAULTS if "huge_adam_rate" in each.plant.__name__)
    case = fault.build()
    found = examine(case)["learning_rate_too_high"][0]
    optimizer, batch = case.optimizer(case.model.parameters()), case.data[0]
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = case.model(**batch).loss
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
    assert found.value == pytest.approx(max(losses), rel=1e-3)
    assert found.severity == "warning"  # with Adam it may come back
    case = fault.build()
    case.deep = True
    assert examine(case)["learning_rate_too_high"][0].severity == "error"


def test_loss_that_comes_back_under_adam_is_stable_in_a_deep_examination():
    case = build("MLP")
    case.optimizer, case.deep = partial(Adam, lr=0.3), True
    model, (x, y) = copy.deepcopy(case.model), case.data[0]
    optimizer, losses = Adam(model.parameters(), lr=0.3), []
    for _ in range(31):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        losses.append(float(loss.detach()))
        loss.backward()
        optimizer.step()
    assert max(losses) > 1.5 * losses[0] > losses[-1]
    assert examine(case).is_healthy


def test_results_render_themselves():
    case = next(each for each in FAULTS if each.name.startswith("large_eps in conv")).build()
    diagnosis = examine(case)
    assert str(diagnosis).startswith("Diagnosis: 1 warning (")
    assert json.loads(json.dumps(diagnosis.to_dict()))["findings"][0]["module"] == "4"
    assert list(diagnosis.to_dataframe()["name"]) == ["large_eps"]
    assert "large_eps" in diagnosis._repr_html_()
    assert str(Diagnosis((), ("large_eps",))).startswith("Diagnosis: no finding (1 check, 0 passes")


def test_sarif_has_a_rule_for_each_result():
    case = next(each for each in FAULTS if each.name.startswith("large_eps in conv")).build()
    run = examine(case).to_sarif()["runs"][0]
    rules = [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    result = run["results"][0]
    assert rules[result["ruleIndex"]] == result["ruleId"] == "large_eps"
    assert result["level"] == "warning"
    assert result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "4"


def test_only_chosen_checks_are_made():
    diagnosis = examine(build("MLP"), checks=["large_eps"])
    assert diagnosis.checks == ("large_eps",)
    assert diagnosis.passes == 1
    with pytest.raises(UnknownNameError, match="large_eps"):
        examine(build("MLP"), checks=["large_epsilon"])


def test_check_that_fails_is_named_with_its_reason():
    class TrainOnly(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(20, 4)

        def forward(self, x):
            if not self.training:
                raise RuntimeError("only for training")
            return self.layer(x)

    case = build("MLP")
    case.model = TrainOnly()
    diagnosis = examine(case)
    assert diagnosis.skipped["sum_reduction"] == (
        "since the model raised RuntimeError: only for training"
    )
    assert "Not checked" in str(diagnosis)


def test_model_that_raises_in_its_own_mode_is_an_error():
    class Broken(nn.Linear):
        def forward(self, x):
            raise KeyError("mask")

    case = build("MLP")
    case.model = Broken(20, 4)
    with pytest.raises(StateError, match="the model raised KeyError: 'mask'"):
        examine(case)


def test_batch_size_draws_from_one_batch():
    x, y = build("MLP").data[0]
    assert ns.doctor(build("MLP").model, "cross_entropy", (x, y), batch_size=8).passes > 0
    with pytest.raises(InputError, match="from 1 to the 32 samples"):
        ns.doctor(build("MLP").model, "cross_entropy", (x, y), batch_size=64)
    with pytest.raises(InputError, match="batches of its own"):
        ns.doctor(build("MLP").model, "cross_entropy", [(x, y)], batch_size=8)


def test_model_that_cannot_run_raises():
    case = build("MLP")
    case.data = [(x[:, :3], y) for x, y in case.data]
    with pytest.raises((InputError, StateError)):
        examine(case)


class Checkpointed(nn.Module):
    """A network whose activations are computed again in the backward pass."""

    def __init__(self):
        super().__init__()
        self.network = build("MLP").model

    def forward(self, x):
        return torch.utils.checkpoint.checkpoint(self.network, x, use_reentrant=False)


def _as_loader(case):
    x, y = case.data[0]
    case.data = DataLoader(TensorDataset(x, y), batch_size=16, shuffle=True)


def _as_whole_loss(case):
    case.loss = ns.whole_loss(lambda model, batch: cross_entropy(model(batch[0]), batch[1]))


def _as_checkpointed(case):
    case.model = Checkpointed()


def _in_double(case):
    case.model.double()


@pytest.mark.parametrize("form", [_as_loader, _as_whole_loss, _as_checkpointed, _in_double])
def test_every_form_of_model_loss_and_data_is_examined(form):
    case = build("MLP")
    form(case)
    diagnosis = examine(case)
    assert diagnosis.is_healthy, str(diagnosis)
    assert not diagnosis.skipped


@pytest.mark.parametrize(
    "context", [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16)]
)
def test_contexts_of_the_caller_do_not_matter(context):
    with context():
        diagnosis = examine(build("MLP"))
    assert diagnosis.is_healthy, str(diagnosis)
    assert not diagnosis.skipped


def test_batches_of_one_are_too_few():
    case = build("convolutional")
    case.data = [(x[:1], y[:1]) for x, y in case.data]
    found = examine(case)["few_samples"][0]
    assert "1 sample," in found.what
    assert found.fixed_value < 1e-3 < 0.5 < found.value


def test_model_in_eval_mode_is_judged_by_its_running_statistics():
    case = build("MLP")
    case.model.eval()
    assert [each.name for each in examine(case)] == ["stale_statistics"]


def test_registered_check_takes_part(monkeypatch):
    monkeypatch.setattr(CHECKS, "_items", dict(CHECKS._items))

    @check()
    def many_layers(exam):
        """More than two weight layers."""
        count = len(exam.observed.weight_layers())
        if count > 2:
            yield Finding("note", ("",), "Many layers.", f"{count} layers.", count, "-", "-")

    assert examine(build("MLP"), checks=["many_layers"])["many_layers"][0].value == 4


class Shared(nn.Module):
    """One batch norm layer on two inputs of different scale; on as many as a batch asks for."""

    def __init__(self, uses=lambda x: 2):
        super().__init__()
        self.norm, self.last, self.uses = nn.BatchNorm1d(20), nn.Linear(20, 4), uses

    def forward(self, x):
        return self.last(sum(self.norm(x * 10**k) for k in range(self.uses(x))))


def test_shared_statistics_of_one_batch_are_judged_on_its_halves():
    x, y = build("MLP").data[0]
    found = ns.doctor(Shared(), "cross_entropy", (x, y))["shared_statistics"][0]
    own, other = (
        [(h.mean(0), h.var(0, correction=0)) for h in (half, 10 * half)] for half in x.split(16)
    )
    shift, scale = (
        max(f(*use, *two) for use, two in zip(own, other, strict=True))
        for f in (
            lambda m, v, m2, v2: float(((m - m2).square() / v2).mean().sqrt()),
            lambda m, v, m2, v2: float((v / v2).log().abs().mean()),
        )
    )
    assert found.fixed_value == pytest.approx(shift + scale, rel=1e-3)
    assert found.fixed_value > 0
    few = ns.doctor(Shared(), "cross_entropy", (x[:3], y[:3]))
    assert "second batch" in few.skipped["shared_statistics"]


def test_shared_layer_may_be_used_more_often_in_another_batch():
    data = build("MLP").data
    longer = float(data[1][0][0, 0])
    model = Shared(lambda x: 3 if float(x[0, 0].detach()) == longer else 2)
    diagnosis = ns.doctor(model, "cross_entropy", data)
    assert "2 times" in diagnosis["shared_statistics"][0].what
    assert "shared_statistics" not in diagnosis.skipped


def _one_hot():
    return nn.functional.one_hot(torch.arange(32) % 60, 100).float(), nn.Linear(100, 4)


def _blank_borders():
    images = torch.zeros(32, 784)
    images[:, 200:584] = torch.rand(32, 384, generator=torch.Generator().manual_seed(0))
    return images, nn.Linear(784, 4)


def _padded_signals():
    signals = torch.zeros(32, 3, 100)
    signals[:, :, :40] = torch.randn(32, 3, 40, generator=torch.Generator().manual_seed(0))
    layers = (nn.Conv1d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten())
    return signals, nn.Sequential(*layers, nn.Linear(8, 4))


@pytest.mark.parametrize(
    ("make", "names"),
    [(_one_hot, ["constant_inputs"]), (_blank_borders, ["constant_inputs"]), (_padded_signals, [])],
)
def test_constant_features_of_healthy_data_are_a_note_at_most(make, names):
    inputs, model = make()
    diagnosis = ns.doctor(model, "cross_entropy", (inputs, torch.arange(32) % 4))
    assert diagnosis.is_healthy, str(diagnosis)
    assert [each.name for each in diagnosis if each.name == "constant_inputs"] == names


def test_one_sample_alone_is_too_few():
    case = build("convolutional")
    x, y = case.data[0]
    found = ns.doctor(case.model, "cross_entropy", (x[:1], y[:1]))["few_samples"][0]
    assert found.severity == "warning"
    values = []
    for module in case.model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_pre_hook(lambda module, args: values.append(args[0]))
    case.model(x[:1])
    assert found.value == min(each[0, 0].numel() for each in values)


@pytest.mark.parametrize("lr", [10.0, 1e5])
def test_proposed_rate_lowers_the_loss_in_the_trial(lr):
    case = next(each for each in FAULTS if "huge_adam_rate" in each.plant.__name__).build()
    case.optimizer = partial(Adam, lr=lr)
    found = examine(case, checks="learning_rate_too_high")["learning_rate_too_high"][0]
    first = float(case.model(**case.data[0]).loss.detach())
    if found.fixed_value is None:
        assert "no rate that was tried lowers the loss" in found.effect
        assert "group['lr']" not in found.fix
    else:
        assert found.fixed_value < first
    assert (found.fixed_value is None) == (lr == 1e5)


@pytest.mark.parametrize("logits", [True, False])
def test_softmax_before_a_cross_entropy_of_the_callers_own_is_found(logits):
    case = build("MLP")
    model = case.model if logits else nn.Sequential(case.model, nn.Softmax(1))
    diagnosis = ns.doctor(model, lambda out, target: cross_entropy(out, target), case.data)
    assert len(diagnosis["softmax_before_cross_entropy"]) == (0 if logits else 1)
    likelihood = ns.doctor(
        model,
        lambda out, target: nn.functional.nll_loss(out.clamp(min=1e-6).log(), target),
        case.data,
    )
    assert not likelihood["softmax_before_cross_entropy"]


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("where", [0, 1])
def test_data_that_is_not_finite_is_named(count, where):
    generator = torch.Generator().manual_seed(0)
    data = [torch.randn(16, 3, generator=generator) for _ in range(2)]
    data[where].view(-1)[:count] = float("nan")
    found = ns.doctor(nn.Linear(3, 3), "squared_error", tuple(data))["non_finite"][0]
    assert found.what == "The data has values that are not finite."
    said = "1 value of the first batch is" if count == 1 else "3 values of the first batch are"
    assert said in found.evidence
    assert found.module == "the data"
    assert found.fixed_value < 100


def test_sarif_has_no_number_that_json_has_not():
    finding = Finding("error", ("",), "", "", math.nan, "", "", math.inf, "non_finite")
    log = Diagnosis((finding,), ("non_finite",)).to_sarif()
    properties = json.loads(json.dumps(log, allow_nan=False))["runs"][0]["results"][0]["properties"]
    assert properties["value"] is properties["fixedValue"] is None


def test_one_check_may_be_named_alone():
    assert examine(build("MLP"), checks="few_samples").checks == ("few_samples",)
