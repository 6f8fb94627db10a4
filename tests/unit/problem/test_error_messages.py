"""Data that does not fit: one sentence from every function that calls a user's model."""

import pytest
import torch
from torch import nn

import normscope as ns
from normscope.errors import InputError, MisfitError, ShapeError, StateError
from normscope.problem import FitCheck, misfit_error
from normscope.problem.error_messages import is_finite


def fully_connected():
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))


def raised(model, x):
    with pytest.raises(ShapeError) as caught, FitCheck(model, x):
        model(x)
    assert isinstance(caught.value, RuntimeError)  # which is what torch raises
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None
    return str(caught.value)


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (nn.Linear(3, 2), (4, 5), "the Linear expects 3 features, got an input of shape (4, 5)"),
        (
            nn.Conv2d(3, 2, 3),
            (4, 1, 8, 8),
            "expects 3 channels, got an input of shape (4, 1, 8, 8)",
        ),
        (nn.BatchNorm1d(3), (4, 5), "expects 3 channels, got an input of shape (4, 5)"),
        (
            nn.BatchNorm2d(3),
            (4, 3),
            "expects 4 dimensions (samples, channels, height, width), got an input of shape (4, 3)",
        ),
        (nn.Conv1d(3, 2, 3), (4, 5), "expects 3 dimensions (samples, channels, width), got"),
        (nn.Conv2d(1, 2, 3), (4, 3, 8, 8), "expects 1 channel, got"),
        (nn.Conv2d(1, 2, 9), (4, 1, 8, 8), "rejects its input"),
        (nn.LayerNorm(3), (4, 5), "normalized_shape"),
        (nn.MaxPool2d(2), (4, 1, 1, 1), "rejects its input"),
        (nn.Unflatten(1, (2, 3)), (4, 5), "rejects its input"),
    ],
)
def test_sentence_says_what_the_layer_expects_and_got(layer, shape, expected):
    assert expected in raised(layer, torch.zeros(shape))


def test_sentence_names_the_layer_and_the_batch():
    message = raised(fully_connected(), torch.zeros(4, 2, 2, 2))
    assert "layer '1' (Linear) expects 12 features, got an input of shape (4, 8)" in message
    assert "from a batch of shape (4, 2, 2, 2)" in message


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 2, 3), (4, 3, 8, 8)),
        (nn.Conv2d(3, 2, 3, bias=False), (4, 3, 8, 8)),
        (nn.BatchNorm2d(3), (4, 3, 8, 8)),
        (nn.Linear(3, 2), (4, 3)),
        (nn.Linear(3, 2, bias=False), (4, 3)),
        (nn.LayerNorm(3), (4, 3)),
        (nn.GroupNorm(1, 3), (4, 3)),
    ],
)
@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
def test_integer_inputs_are_to_be_converted(layer, shape, dtype):
    message = raised(nn.Sequential(layer), torch.ones(shape, dtype=dtype))
    name = type(layer).__name__
    assert f"layer '0' ({name}) got integer inputs ({dtype})" in message
    assert message.endswith("convert them with .float().")


def test_embedding_is_not_told_to_take_other_numbers():
    """It takes integers; torch's own message says what it rejects."""
    model, x = nn.Sequential(nn.Embedding(5, 2)), torch.ones(3, 1)
    with pytest.raises(RuntimeError, match="indices") as caught, FitCheck(model, x):
        model(x)
    assert not isinstance(caught.value, MisfitError)


def test_other_errors_are_left_alone():
    with pytest.raises(RuntimeError, match="no grad"), FitCheck(nn.Identity(), None):
        raise RuntimeError("element 0 of tensors does not require grad; no grad")
    assert misfit_error(RuntimeError("out of memory"), nn.Identity(), torch.zeros(1)) is None
    with pytest.raises(KeyboardInterrupt), FitCheck(nn.Identity(), None):
        raise KeyboardInterrupt
    with pytest.raises(InputError, match="size mismatch of ours"), FitCheck(nn.Identity(), None):
        raise InputError("size mismatch of ours")


def wrong():
    return torch.zeros(16, 5), torch.zeros(16, dtype=torch.long)


def step_of_a_scope(model, data):
    with ns.Scope(model, "cross_entropy", learning_rate=0.1, probes="economy") as scope:
        scope.step(*data)


CALLS = {
    "fit": lambda model, data: ns.fit(
        ns.Problem(model, "cross_entropy", data), ns.sgd(0.1), steps=2, batch_size=8
    ),
    "train": lambda model, data: next(
        ns.train(ns.Problem(model, "cross_entropy", data), ns.sgd(0.1), steps=2)
    ),
    "evaluate": lambda model, data: ns.training.evaluate(model, "cross_entropy", data),
    "max_learning_rate": lambda model, data: ns.max_learning_rate(
        model, "cross_entropy", data, batch_size=8
    ),
    "compare": lambda model, data: ns.compare(
        model, "cross_entropy", data, norms=["none", "batch"], batch_size=8
    ),
    "top_eigenvalue": lambda model, data: ns.curvature.top_eigenvalue(model, "cross_entropy", data),
    "spectrum": lambda model, data: ns.curvature.spectrum(model, "cross_entropy", data),
    "trace": lambda model, data: ns.curvature.trace(model, "cross_entropy", data),
    "population_statistics": ns.layers.population_statistics,
    "check_layer": lambda model, data: ns.theorems.check_layer(
        model, "cross_entropy", data, layer="2"
    ),
    "scope": step_of_a_scope,
}


@pytest.mark.parametrize("name", CALLS)
def test_every_function_says_it_in_one_sentence(name):
    with pytest.raises(MisfitError, match=r"layer '1' \(Linear\) expects 12 features, got"):
        CALLS[name](fully_connected(), wrong())


def test_loss_that_does_not_fit_is_told_apart_from_the_model():
    data = torch.zeros(16, 12), torch.zeros(16, 7)
    problem = ns.Problem(fully_connected(), nn.functional.mse_loss, data)
    with (
        pytest.warns(UserWarning, match="target size"),
        pytest.raises(ShapeError, match="the loss does not fit the model's output"),
    ):
        ns.fit(problem, ns.sgd(0.1), steps=1)


def test_checkpoint_of_another_model_names_the_tensor(tmp_path):
    data = torch.zeros(16, 12), torch.zeros(16, dtype=torch.long)
    file = tmp_path / "run.pt"

    def run(model):
        problem = ns.Problem(model, "cross_entropy", data)
        return ns.fit(problem, ns.sgd(0.1), steps=1, checkpoint=file)

    run(nn.Linear(12, 3))
    with pytest.raises(RuntimeError, match=r"weight of shape \(3, 12\) there and .*\(4, 12\) here"):
        run(nn.Linear(12, 4))
    with pytest.raises(RuntimeError, match=r"bias of shape \(3,\) there and missing here"):
        run(nn.Linear(12, 3, bias=False))


def test_modules_nested_too_deeply_are_refused_in_one_sentence():
    model, batch = nn.Linear(2, 2), (torch.ones(4, 2), torch.arange(4) % 2)
    for _ in range(400):
        model = nn.Sequential(model)
    problem = ns.Problem(model, "cross_entropy", batch)
    for call in (
        lambda: ns.curvature.top_eigenvalue(model, "cross_entropy", batch),
        lambda: ns.training.evaluate(model, "cross_entropy", batch),
        lambda: ns.fit(problem, ns.sgd(0.1), 1),
    ):
        with pytest.raises(StateError, match=r"raise it by sys\.setrecursionlimit"):
            call()


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, complex(0, torch.nan)])
def test_one_bad_value_is_not_finite(bad):
    values = torch.ones(3, dtype=torch.complex64 if isinstance(bad, complex) else torch.float32)
    assert is_finite(values)
    values[1] = bad
    assert not is_finite(values)


def test_opposite_infinities_are_not_finite():
    assert not is_finite(torch.tensor([torch.inf, -torch.inf]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_values_whose_sum_overflows_are_finite(dtype):
    assert is_finite(torch.full((4,), torch.finfo(dtype).max, dtype=dtype))


def test_empty_integers_and_flags_are_finite():
    empty = torch.empty(0)
    assert all(map(is_finite, (empty, torch.tensor([2**62, 2**62]), torch.tensor([True]))))
