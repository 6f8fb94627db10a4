import json
import math
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.unit.learning_rate.problems import labelled, plateau, quadratic, small_network
from tests.unit.problem.test_isolation import random_states, snapshot
from torch import nn
from torch.optim import SGD, Adam, RMSprop
from torch.utils.data import DataLoader, TensorDataset

import normscope as ns
from normscope.curvature import dense
from normscope.errors import ArgumentTypeError, InputError, StateError
from normscope.learning_rate import advisor, max_learning_rate, prediction, stability
from normscope.learning_rate.around_step import GroupRates, preconditioner_at
from normscope.learning_rate.sample_trials import SampleTrials
from normscope.learning_rate.setup import TrainingSetup
from normscope.learning_rate.stability import ShortRun
from normscope.learning_rate.summary import limit_notes
from normscope.learning_rate.thresholds import EFFORTS
from normscope.learning_rate.update_rule import rule_of
from normscope.learning_rate.verification import Verification
from normscope.problem import Problem


def advised(problem, *arguments, **options):
    return max_learning_rate(problem.model, problem.loss, problem.data, *arguments, **options)


THOROUGH = {"effort": "thorough", "objective": "half_limit"}
ABOVE_BOUND = ("above the curvature bound: the short runs", "above the curvature bound. Prefer")


@pytest.mark.parametrize(
    ("options", "bound"),
    [
        ({}, 2 / 4),
        ({"momentum": 0.9}, 2 * 1.9 / 4),
        ({"momentum": 0.9, "nesterov": True}, 2 * 1.9 / (2.8 * 4)),
        ({"weight_decay": 1.0}, 2 / 5),
    ],
)
def test_quadratic_is_answered_exactly_and_verified(options, bound):
    found = advised(quadratic(), **options, **THOROUGH)
    low, high = found.verified
    assert low / 1.02 <= bound <= 1.1 * high
    assert found.limit == pytest.approx(bound, rel=0.1)
    assert found.bound == pytest.approx(bound, rel=1e-3)
    expected = min(found.bound, found.limit) if high >= found.bound else found.recommended
    assert found.curvature_bound == expected
    assert found.predicted == pytest.approx(bound, rel=0.15)
    assert found.recommended == found.limit / 2
    assert not any(each in found.explanation for each in ABOVE_BOUND)
    assert found.interval[0] <= found.limit <= found.interval[1]


def test_walk_that_breaks_below_the_bound_lowers_the_safe_rate():
    # all of the loss in one direction: the first swing of momentum alone makes it 3 times as large
    found = advised(quadratic(eigenvalues=(4.0,), shares=(1.0,)), 0.9, **THOROUGH)
    assert found.curvature.largest == pytest.approx(4.0)
    assert found.bound == pytest.approx(2 * 1.9 / 4 / 2)  # a few steps at the bound showed it
    assert found.limit == pytest.approx((1 + 3**0.5) / 4, rel=0.05)
    assert found.curvature_bound == found.bound < found.limit
    assert (
        "is stable below 0.95. A few steps at 0.95 were unstable, and the bound is 0.475"
        in found.explanation
    )


def test_safe_is_the_bound_of_the_dense_matrix():
    model, data = small_network(), labelled()
    found = ns.max_learning_rate(model, "cross_entropy", data, momentum=0.5, verify=False)
    matrix = dense(model, "cross_entropy", data, kind="ggn", mode="train").double()
    exact = float(torch.linalg.eigvalsh(matrix).amax())
    assert found.curvature.values == pytest.approx([exact], rel=0.02)
    assert "a quadratic with the largest curvature" in " ".join(found.details().split())
    assert found.curvature_bound == pytest.approx(3 / found.curvature.largest)
    assert found.verified is None
    assert found.limit == found.predicted
    assert "no run has verified it" in found.explanation
    assert "Half of that is recommended" in found.explanation
    lower = "it has no margin, unlike half the limit, which is lower" in found.explanation
    assert lower == (found.recommended < found.curvature_bound)


@pytest.mark.parametrize("verify", [True, False])
def test_recommended_rate_above_the_safe_one_is_explained(verify):
    found = max_learning_rate(small_network(), "cross_entropy", labelled(), verify=verify)
    above = ABOVE_BOUND[0 if verify else 1]
    assert (above in found.explanation) == (found.recommended > found.curvature_bound)
    steep = replace(found.curvature, values=(9 * found.curvature.largest,))
    found = replace(found, curvature=steep)  # the same runs, and a curvature bound far below them
    assert found.recommended > found.curvature_bound
    assert above in found.explanation
    advice = "where the loss must not jump" if verify else "until a run has verified the limit"
    assert f"Prefer the curvature bound {advice}" in found.explanation


def test_scale_of_the_weights_before_a_norm_layer_hardly_moves_the_prediction():
    model, data = small_network(), labelled()
    before = max_learning_rate(model, "cross_entropy", data, verify=False)
    with torch.no_grad():
        model[0].weight.mul_(10)
        model[0].bias.mul_(10)
    after = max_learning_rate(model, "cross_entropy", data, verify=False)
    assert before.invariant == after.invariant == ("0.weight",)
    assert after.prediction.standing == pytest.approx(before.prediction.standing, rel=1e-3)


def busy_model():
    """Running statistics, dropout, gradients, uneven flags, and a layer that counts its calls."""

    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, x):
            self.calls += 1
            return x + 0 * np.random.rand() + 0 * random.random()  # noqa: NPY002 - as models may

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 8), nn.BatchNorm1d(8), Counting(), nn.Dropout(0.1), nn.Linear(8, 3)
    )
    model[1].eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


def state_of(model, optimizer):
    tensors = {
        place: {key: value.clone() for key, value in optimizer.state[parameter].items()}
        for place, parameter in enumerate(model.parameters())
    }
    return tensors, [dict(group) for group in optimizer.param_groups]


def assert_same(before, after):
    for name, value in before.items():
        if isinstance(value, list) and value and isinstance(value[0], torch.Tensor):
            assert all(map(torch.equal, value, after[name])), name
    for name in ("identities", "requires_grad", "attributes"):
        assert before[name] == after[name], name


class StoppedError(Exception):
    pass


@pytest.mark.parametrize(
    ("ending", "place"),
    [
        (None, ""),
        (StoppedError, "curvature"),
        (KeyboardInterrupt, "prediction"),
        (StoppedError, "short runs, run 1 at"),
        (KeyboardInterrupt, "short runs, run 2 at"),
        (KeyboardInterrupt, "choice, at"),
    ],
)
def test_nothing_of_the_users_is_touched_however_it_ends(ending, place):
    model, data = busy_model(), labelled()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    loader = DataLoader(TensorDataset(*data), batch_size=16, shuffle=True)
    before, numbers = snapshot(model), random_states()
    moments, groups = state_of(model, optimizer)

    def interrupt(event):
        if ending is not None and str(event).startswith(place):
            raise ending

    def ask():
        max_learning_rate(model, "cross_entropy", loader, optimizer=optimizer, progress=interrupt)

    if ending is None:
        ask()
    else:
        with pytest.raises(ending):
            ask()
    assert_same(before, snapshot(model))
    assert random_states() == numbers
    after, groups_after = state_of(model, optimizer)
    assert groups_after == groups
    assert all(torch.equal(v, after[p][k]) for p, held in moments.items() for k, v in held.items())


def test_interruption_in_the_middle_of_a_step_leaves_the_model_alone(monkeypatch):
    model, data = busy_model(), labelled()
    before, numbers = snapshot(model), random_states()

    class InterruptedLoop(stability.Loop):
        def run(self, steps):
            for step in super().run(steps):
                if step.index == 7:
                    raise KeyboardInterrupt
                yield step

    monkeypatch.setattr(stability, "Loop", InterruptedLoop)
    with pytest.raises(KeyboardInterrupt):
        max_learning_rate(model, "cross_entropy", data)
    assert_same(before, snapshot(model))
    assert random_states() == numbers


@pytest.mark.parametrize("kind", [Adam, RMSprop])
def test_adaptive_optimizers_get_an_estimate_and_the_same_verification(kind):
    model, data = small_network(), labelled()
    found = max_learning_rate(
        model, "cross_entropy", data, optimizer=lambda parameters: kind(parameters, lr=1e-3)
    )
    assert not found.rule.is_exact
    assert f"For {kind.__name__} the curvature bound is an estimate" in found.explanation
    assert "an estimate" in found.details()
    assert 0 < found.verified[0] < found.verified[1]
    assert found.curvature_bound > 0
    assert found.mean_field.rate is None


@pytest.fixture(scope="module")
def answer():
    return max_learning_rate(small_network(), "cross_entropy", labelled(), batch_size=16, seed=3)


def test_same_seed_gives_the_same_answer(answer):
    again = max_learning_rate(small_network(), "cross_entropy", labelled(), batch_size=16, seed=3)
    assert {**answer.to_dict(), "seconds": 0} == {**again.to_dict(), "seconds": 0}


def test_answer_is_plain_data_and_a_table(answer):
    plain = json.loads(json.dumps(answer.to_dict()))
    assert plain["curvature_bound"] == answer.curvature_bound
    assert plain["verification_steps"] == answer.verification.steps <= 600
    assert sum(plain["shares"].values()) == pytest.approx(1.0)
    text = answer.details()
    for name in ("recommended", "limit", "curvature bound", "predicted", "theory", "verified"):
        assert f"\n{name}" in text
    assert answer.explanation in " ".join(text.split())
    for word in ("batch", "normalization", "Depth"):
        assert word in answer.explanation
    assert "<table>" in answer._repr_html_()
    assert len(answer.to_xarray()["rate"]) == len(answer.verification.all_runs)


def test_theory_of_a_net_with_a_frozen_layer_is_that_of_the_whole(answer):
    model = small_network()
    model[0].requires_grad_(False)
    options = {"batch_size": 16, "seed": 3, "verify": False}
    found = max_learning_rate(model, "cross_entropy", labelled(), **options)
    assert found.theory == answer.theory
    assert (found.mean_field.frozen, answer.mean_field.frozen) == (("0.weight",), ())


def test_plot_draws_every_run(answer, tmp_path):
    axes = answer.plot()
    labels = {text.get_text() for text in axes.get_legend().get_texts()}
    assert {"stable run", "unstable run"} <= labels
    names = " ".join(each.get_text() for each in axes.texts)
    assert all(name in names for name in ("curvature bound", "recommended", "limit"))
    drawn = sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() in ("o", "x"))
    assert drawn == len(answer.verification.all_runs) - answer.verification.ramps
    axes.figure.savefig(tmp_path / "rates.png")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"momentum": 1.0}, InputError, "momentum must be from 0 up to 1"),
        ({"nesterov": True}, InputError, "needs a momentum"),
        ({"momentum": 0.9, "optimizer": lambda p: SGD(p, lr=1.0)}, InputError, "leave them out"),
        ({"nesterov": True, "optimizer": lambda p: SGD(p, lr=1.0)}, InputError, "leave them out"),
        (
            {"weight_decay": 0.1, "optimizer": lambda p: SGD(p, lr=1.0)},
            InputError,
            "leave them out",
        ),
        ({"optimizer": 3}, ArgumentTypeError, "must be a torch Optimizer"),
        ({"optimizer": torch.optim.LBFGS}, ArgumentTypeError, "LBFGS evaluates the loss itself"),
        ({"optimizer": "adamw"}, ArgumentTypeError, r"partial\(torch.optim.AdamW, .*got 'adamw'"),
        ({"batch_size": 1000}, InputError, "64 samples"),
        ({"effort": ["quick"]}, InputError, "unknown effort"),
        ({"clip_norm": "1"}, ArgumentTypeError, "clip_norm must be a number, got '1'"),
        ({"clip_norm": True}, InputError, "clip_norm must be a positive number.*got True"),
    ],
)
def test_errors_are_one_sentence(options, error, message):
    with pytest.raises(error, match=message) as caught:
        max_learning_rate(small_network(), "cross_entropy", labelled(), **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("surroundings", [torch.no_grad, torch.inference_mode])
def test_answer_is_the_same_where_gradients_are_off(surroundings):
    expected = max_learning_rate(small_network(), "cross_entropy", labelled())
    with surroundings():
        found = max_learning_rate(small_network(), "cross_entropy", labelled())
        assert not torch.is_grad_enabled()
    assert {**found.to_dict(), "seconds": 0} == {**expected.to_dict(), "seconds": 0}


def test_flat_loss_is_refused():
    with pytest.raises(StateError, match="no positive curvature"):
        max_learning_rate(small_network(), lambda f, y: 1 + 0 * f.sum(), labelled())


def test_whole_loss_is_answered_by_its_hessian():
    loss = ns.whole_loss(lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1]))
    found = max_learning_rate(small_network(), loss, labelled())
    assert found.curvature.kind == "hessian"
    assert found.prediction.layer is None
    assert math.isfinite(found.limit)


@pytest.mark.parametrize("shift", [-10.0, 0.0])
def test_loss_that_is_not_above_zero_is_refused(shift):
    model = small_network()

    def loss(output, target):
        return nn.functional.cross_entropy(output, target) * (shift == -10.0) + shift

    with pytest.raises(InputError, match=r"first batch is .*must be above zero: add a constant"):
        ns.max_learning_rate(model, loss, labelled())


def test_a_batch_size_of_zero_is_refused():
    data = torch.randn(8, 2), torch.zeros(8, 1)
    with pytest.raises(InputError, match="batch_size must be from 1 to the 8 samples"):
        max_learning_rate(nn.Linear(2, 1), "squared_error", data, batch_size=0)


def asked(model, data=None, **options):
    data = labelled() if data is None else data
    return max_learning_rate(model, "cross_entropy", data, verify=False, **options)


@pytest.mark.parametrize(("batch_size", "curved", "seen"), [(40, 3, 12), (160, 3, 4), (None, 1, 1)])
def test_three_batches_are_curved_and_features_of_512_samples_seen(batch_size, curved, seen):
    found = asked(small_network(), labelled(640), batch_size=batch_size)
    assert len(found.curvature.values) == curved
    assert f"the features of {seen} batch" in found.prediction.reason


def test_batch_size_is_that_of_the_largest_batch():
    inputs, targets = labelled()
    uneven = [(inputs[:8], targets[:8]), (inputs[8:40], targets[8:40]), (inputs[40:], targets[40:])]
    assert asked(small_network(), uneven).batch_size == 32


def test_kinds_of_normalization_are_named_once():
    layers = [nn.Linear(5, 8), nn.LayerNorm(8), nn.BatchNorm1d(8), nn.BatchNorm1d(8)]
    found = asked(nn.Sequential(*layers, nn.Linear(8, 3)))
    assert found.norms == ("batch", "layer")
    assert asked(small_network(norm=False)).norms == ()


def test_divisor_is_that_of_the_gradients_of_all_batches_in_training():
    model, (inputs, targets) = small_network().double(), labelled()
    model[1].running_mean.fill_(5.0)  # evaluation mode would show
    halves = list(zip(inputs.double().split(32), targets.split(32), strict=True))
    optimizer = Adam(model.parameters(), eps=1e-8)
    problem = Problem(model, "cross_entropy", halves)
    setup = TrainingSetup(problem, optimizer, None, 0)
    rates = GroupRates.of(setup, optimizer)
    found = preconditioner_at(setup, halves, optimizer, rule_of(optimizer), rates)
    squares = torch.zeros_like(found.scale)
    for features, labels in halves:
        loss = nn.functional.cross_entropy(model.train()(features), labels)
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        squares += torch.cat([each.flatten() for each in gradients]).square() / 2
    expected = squares.sqrt() + 1e-8
    assert torch.allclose(found.scale, expected.clamp(min=1e-6 * float(expected.max())))


def test_prediction_knows_the_divisor(monkeypatch):
    real, given = advisor.predict_limit, []

    def noting(*arguments):
        given.extend(arguments)
        return real(*arguments)

    monkeypatch.setattr(advisor, "predict_limit", noting)
    asked(small_network(), optimizer=Adam)
    scale = next(each.scale for each in given if hasattr(each, "scale"))
    assert scale.shape == (sum(p.numel() for p in small_network().parameters()),)


def test_prediction_knows_the_bound_that_the_curvature_allows(monkeypatch):
    monkeypatch.setattr(
        prediction, "run_sample_trials", lambda *_: SampleTrials(0.0, math.inf, 32, 0, False)
    )
    found = asked(small_network(norm=False))
    assert found.predicted == found.bound


def test_prediction_leads_the_net_off_its_plateau():
    problem = plateau(0.15)
    found = max_learning_rate(problem.model, problem.loss, problem.data, verify=False)
    assert found.curvature.starts_on_plateau
    assert "once its loss decreases" in found.prediction.reason
    assert 0.14 / 1.3 < found.predicted < 0.16 * 1.3  # held in 100 steps; broke after 41


@pytest.mark.parametrize(
    ("high", "effort", "steps", "told"),
    [
        (math.inf, "default", 70, 'than 70. Training may break later; effort="thorough"'),
        (math.inf, "default", 100, None),
        (0.3, "default", 70, None),
        (0.3, "quick", 30, 'than 30. Training may break later; effort="default"'),
    ],
)
def test_limit_that_no_full_run_supports_is_said_to_be_unverified(high, effort, steps, told):
    found = Verification(0.2, high, (ShortRun(0.2, 0, False, steps, 1.0),), 0)
    notes = limit_notes(found, EFFORTS[effort])
    assert len(notes) == (told is not None)
    assert not notes or told in notes[0]


def test_weight_decay_that_drives_the_network_to_zero_does_not_lower_the_limit():
    data = ns.data.load("digits").train
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    found = max_learning_rate(
        model, "cross_entropy", data, weight_decay=1.0, batch_size=64, objective="half_limit"
    )
    assert not found.verification.collapsed_first
    assert found.limit == found.verification.onset > 1.0
    assert "penalty on the weights drove them to zero" in found.notes[0]


@pytest.mark.parametrize(("momentum", "factor"), [(0.0, 1.5), (0.5, 4.0), (0.9, 4.0)])
def test_quick_interval_is_wider_below_with_momentum(momentum, factor):
    found = max_learning_rate(
        *(small_network(), "cross_entropy", labelled()),
        momentum=momentum,
        effort="quick",
    ).verification
    assert max(run.steps for run in found.runs) < 100
    assert found.margin == 1.0  # the data is one batch
    assert found.interval[0] == pytest.approx(found.ends[0] / factor)
