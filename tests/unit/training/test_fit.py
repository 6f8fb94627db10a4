import os
import signal
import threading

import numpy as np
import pytest
import torch
from torch import nn

from normscope.errors import ArgumentTypeError, InputError
from normscope.problem import Problem
from normscope.training import Outcome, fit, sgd, train

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(40, 5, generator=GENERATOR)
Y = torch.randint(3, (40,), generator=GENERATOR)


def problem_of() -> Problem:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    return Problem(model, "cross_entropy", (X, Y))


def test_fit_runs_the_loop_of_train():
    by_fit, by_train = problem_of(), problem_of()
    run = fit(by_fit, sgd(0.3, momentum=0.9), steps=25, batch_size=8, seed=4)
    steps = list(train(by_train, sgd(0.3, momentum=0.9), steps=25, batch_size=8, seed=4))
    assert run.outcome is Outcome.FINISHED
    assert run.advice == Outcome.FINISHED.value
    assert run.steps == 25
    assert run.losses.tolist() == [step.loss for step in steps]
    for a, b in zip(by_fit.model.parameters(), by_train.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_fit_reports_divergence_as_a_result():
    run = fit(problem_of(), sgd(1e6), steps=100, divergence_factor=10.0)
    assert run.outcome is Outcome.DIVERGED
    assert "learning rate" in run.advice
    assert len(run.losses) == run.steps + 1
    assert run.losses[-1] > 10 * run.losses[0] or not np.isfinite(run.losses[-1])
    assert str(run).startswith(f"diverged after {run.steps} steps")


@pytest.mark.parametrize("broken", ["data", "weights"])
def test_advice_for_a_first_loss_that_is_not_finite_is_not_about_the_learning_rate(broken):
    problem = problem_of()
    if broken == "weights":
        nn.init.constant_(problem.model[-1].weight, float("nan"))
    else:
        problem = Problem(problem.model, "cross_entropy", (X * float("nan"), Y))
    run = fit(problem, sgd(0.1), steps=5, batch_size=8)
    assert run.outcome is Outcome.DIVERGED
    assert run.steps == 0
    assert "before any update" in run.advice
    assert "look at the data and the weights" in run.advice
    assert "learning rate" not in run.advice
    assert "before any update" in run._repr_html_()


def test_fit_stops_after_the_update_of_the_step_at_which_the_callback_says_so():
    stopped, finished = problem_of(), problem_of()
    run = fit(stopped, sgd(0.3), steps=50, callback=lambda step: step.index == 4)
    assert run.outcome is Outcome.STOPPED
    assert run.steps == len(run.losses) == 5
    fit(finished, sgd(0.3), steps=5)
    assert torch.equal(stopped.model[3].weight, finished.model[3].weight)


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (np.bool_(True), Outcome.STOPPED),
        (np.bool_(False), Outcome.FINISHED),
        ({"a": "result"}, Outcome.FINISHED),
    ],
)
def test_fit_takes_only_true_as_a_reason_to_stop(answer, outcome):
    run = fit(problem_of(), sgd(0.3), steps=3, callback=lambda step: answer)
    assert run.outcome is outcome


def test_fit_restores_flags_when_the_callback_raises():
    problem = problem_of()
    problem.model.eval()

    def fails(step: object) -> None:
        raise LookupError("from the callback")

    with pytest.raises(LookupError, match="from the callback") as caught:
        fit(problem, sgd(0.3), steps=3, callback=fails)
    assert caught.value.__traceback__ is not None  # which keeps the frames alive
    assert not any(module.training for module in problem.model.modules())


def test_fit_of_no_steps_changes_nothing():
    problem = problem_of()
    before = problem.model[0].weight.clone()
    run = fit(problem, sgd(0.3), steps=0)
    assert (run.outcome, run.steps, len(run.losses)) == (Outcome.FINISHED, 0, 0)
    assert torch.equal(problem.model[0].weight, before)
    assert str(run).startswith("finished after 0 steps")


def test_fit_saves_at_ctrl_c_after_completing_the_step(tmp_path):
    def press(step):
        if step.index == 6:
            os.kill(os.getpid(), signal.SIGINT)

    interrupted, whole = problem_of(), problem_of()
    path = tmp_path / "run.pt"
    with pytest.raises(KeyboardInterrupt):
        fit(interrupted, sgd(0.3, 0.9), steps=20, batch_size=8, callback=press, checkpoint=path)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resumed = problem_of()
    run = fit(resumed, sgd(0.3, 0.9), steps=20, batch_size=8, checkpoint=path)
    expected = fit(whole, sgd(0.3, 0.9), steps=20, batch_size=8)
    assert run.losses.tolist() == expected.losses.tolist()
    assert torch.equal(resumed.model[0].weight, whole.model[0].weight)
    assert [found.name for found in tmp_path.iterdir()] == ["run.pt"]


def test_fit_does_not_wait_at_the_second_ctrl_c(tmp_path):
    def press(step):
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("the second one should have raised")

    with pytest.raises(KeyboardInterrupt):
        fit(problem_of(), sgd(0.3), steps=20, callback=press, checkpoint=tmp_path / "run.pt")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert not list(tmp_path.iterdir())


def test_fit_without_checkpoint_leaves_ctrl_c_to_python():
    def press(step):
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("should have raised at once")

    with pytest.raises(KeyboardInterrupt):
        fit(problem_of(), sgd(0.3), steps=20, callback=press)


def test_fit_with_checkpoint_runs_outside_the_main_thread(tmp_path):
    runs = []
    arguments = {"steps": 3, "checkpoint": tmp_path / "run.pt"}
    thread = threading.Thread(target=lambda: runs.append(fit(problem_of(), sgd(0.3), **arguments)))
    thread.start()
    thread.join()
    assert runs[0].outcome is Outcome.FINISHED


def test_fit_refuses_an_interval_below_one(tmp_path):
    with pytest.raises(InputError, match="checkpoint_every"):
        fit(problem_of(), sgd(0.3), 3, checkpoint=tmp_path / "run.pt", checkpoint_every=0)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"batch_size": 12.5}, ArgumentTypeError, "batch_size must be an integer, got 12.5"),
        ({"seed": 0.5}, ArgumentTypeError, "seed must be an integer, got 0.5"),
        ({"seed": 2**70}, InputError, "seed must be from"),
        ({"seed": -(2**64)}, InputError, "seed must be from"),
        ({"steps": 2.5}, ArgumentTypeError, "steps must be an integer, got 2.5"),
        ({"steps": "2"}, ArgumentTypeError, "steps must be an integer, got '2'"),
    ],
)
def test_fit_refuses_numbers_it_cannot_count_with(arguments, error, words):
    with pytest.raises(error, match=words):
        fit(problem_of(), sgd(0.1), **({"steps": 2, "batch_size": 8} | arguments))


def test_fit_takes_whole_numbers_of_numpy_and_the_largest_seed():
    run = fit(problem_of(), sgd(0.1), np.int64(2), batch_size=np.int32(8), seed=2**64 - 1)
    assert run.steps == 2


def test_weights_under_an_autocast_around_the_call_are_trained():
    """torch's autocast keeps the cast weights of the first step as long as it is entered."""
    data = torch.randn(16, 6), torch.randint(3, (16,))

    def network():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    trained, expected = network(), network()
    with torch.autocast("cpu", torch.bfloat16):
        fit(Problem(trained, "cross_entropy", data), sgd(0.5), steps=5)
    for _ in range(5):
        expected.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(expected(data[0]), data[1])
        loss.backward()
        with torch.no_grad():
            for parameter in expected.parameters():
                parameter -= 0.5 * parameter.grad
    for one, other in zip(trained.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(one, other)
