from types import SimpleNamespace

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, small_network
from torch import nn

from normscope.errors import InputError, NoClosureError
from normscope.learning_rate.prediction import mean_field_bound
from normscope.learning_rate.update_rule import UpdateRule
from normscope.meanfield.output_curvature import softmax_curvature
from normscope.problem import Problem, whole_loss

SGD = UpdateRule("SGD", momentum=0.5)


@pytest.fixture
def engine(monkeypatch):
    """A stand-in that says what it is asked for."""
    head = SimpleNamespace(second_moment=2.0, second_moment_pair=0.5)
    answer = SimpleNamespace(lambda_max=6.0, regime="head", layers=(head,))
    asked = SimpleNamespace(answer=answer, head=head, calls=[])

    def predict(model, input_shape=None, closure="train", data=None):
        asked.calls.append((input_shape, closure))
        if isinstance(asked.answer, Exception):
            raise asked.answer
        return asked.answer

    monkeypatch.setattr("normscope.meanfield.predict", predict)
    return asked


def found(loss, rule=SGD, **options):
    return mean_field_bound(Problem(small_network(), loss, labelled()), labelled(), rule, **options)


def test_rate_is_the_bound_of_the_predicted_eigenvalue(engine):
    theory = found("squared_error", closure="frozen")
    assert theory.rate == pytest.approx(2 * 1.5 / 6)
    assert theory.reason == "head"
    assert engine.calls == [((5,), "frozen")]


def test_cross_entropy_has_the_hessian_of_the_softmax_at_the_initial_outputs(engine):
    curvature = softmax_curvature(2.0, 0.5, 3)
    assert 0.2 < curvature < 1 / 3
    assert found("cross_entropy").rate == pytest.approx(2 * 1.5 / (6 * curvature))
    assert found(nn.CrossEntropyLoss()).rate == pytest.approx(2 * 1.5 / (6 * curvature))
    engine.head.second_moment = engine.head.second_moment_pair = 0.0
    assert found("cross_entropy").rate == pytest.approx(3 * 2 * 1.5 / 6)  # all equally likely


@pytest.mark.parametrize(
    ("loss", "factor"),
    [
        (nn.functional.cross_entropy, 1.0),
        (nn.CrossEntropyLoss(reduction="sum"), 64.0),
        (nn.CrossEntropyLoss(label_smoothing=0.3), 1.0),  # the Hessian has none of it
        (nn.CrossEntropyLoss(label_smoothing=0.3, reduction="sum"), 64.0),
    ],
)
def test_reduction_of_the_cross_entropy_counts(engine, loss, factor):
    theory = found(loss)
    assert theory.factor == pytest.approx(factor * softmax_curvature(2.0, 0.5, 3))
    assert theory.rate == pytest.approx(2 * 1.5 / (6 * theory.factor))


@pytest.mark.parametrize(
    ("loss", "factor"), [(nn.MSELoss(), 2 / 3), (nn.MSELoss(reduction="sum"), 2.0 * 64)]
)
def test_torch_squared_error_is_scaled_to_half_of_it(engine, loss, factor):
    batch = (labelled()[0], torch.zeros(64, 3))
    theory = mean_field_bound(Problem(small_network(), loss, batch), batch, SGD)
    assert theory.factor == pytest.approx(factor)


def test_probabilities_have_the_theory_of_labels(engine):
    batch = (labelled()[0], torch.full((64, 3), 1 / 3))
    theory = mean_field_bound(Problem(small_network(), "cross_entropy", batch), batch, SGD)
    assert theory.factor == pytest.approx(softmax_curvature(2.0, 0.5, 3))


def test_classes_are_those_of_the_network_not_of_the_batch(engine):
    x, y = labelled()
    every = Problem(small_network(), "cross_entropy", (x, y))
    part = mean_field_bound(every, (x, torch.zeros_like(y)), SGD)
    assert part.rate == mean_field_bound(every, (x, y), SGD).rate


@pytest.mark.parametrize(
    ("loss", "rule", "reason"),
    [
        ("squared_error", UpdateRule("Adam", second_moment=0.9), "not Adam"),
        (lambda f, y: f.sum(), SGD, "squared error and the cross-entropy only"),
        (nn.CrossEntropyLoss(torch.ones(3)), SGD, "without class weights"),
        (nn.CrossEntropyLoss(ignore_index=2), SGD, "or ignored labels"),
        (whole_loss(lambda net, batch: net(batch[0]).sum()), SGD, "loss(output, target)"),
    ],
)
def test_what_the_theory_does_not_cover_has_a_reason(engine, loss, rule, reason):
    theory = found(loss, rule)
    assert theory.rate is None
    assert reason in theory.reason
    assert engine.calls == []


def test_unreadable_model_keeps_the_engines_reason(engine):
    engine.answer = InputError("cannot read 'encoder' (Attention).")
    assert found("squared_error") == found("squared_error")
    assert found("squared_error").reason == "cannot read 'encoder' (Attention)."


def test_unreadable_part_is_named_without_a_way_out_to_where_one_is(engine):
    engine.answer = NoClosureError("encoder: no closure", "max_learning_rate measures instead.")
    assert found("squared_error").reason == "encoder: no closure"


def test_missing_eigenvalue_is_none_with_the_regime(engine):
    engine.answer = SimpleNamespace(lambda_max=None, regime="undetermined")
    assert found("squared_error").rate is None
    assert "undetermined" in found("squared_error").reason


def test_weights_that_are_frozen_are_named_where_the_theory_counts_them(engine):
    model = small_network()
    problem = Problem(model, "squared_error", labelled())
    model[0].bias.requires_grad_(False)  # which the theory does not count
    whole = mean_field_bound(problem, labelled(), SGD)
    assert whole.frozen == ()
    model[0].weight.requires_grad_(False)
    part = mean_field_bound(problem, labelled(), SGD)
    assert part.frozen == ("0.weight",)
    assert part.rate == whole.rate
