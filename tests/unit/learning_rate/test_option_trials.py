"""Warm-up lengths and weight decays that are tried at the recommended rate."""

import copy
import math
from functools import partial

import pytest
import torch
from tests.unit.learning_rate.problems import labelled, small_network

from normscope.errors import ArgumentTypeError, InputError
from normscope.learning_rate import max_learning_rate, option_trials
from normscope.learning_rate.setup import TrainingSetup, _set_decay
from normscope.learning_rate.stability import ShortRun
from normscope.problem import Problem


def setup_of(**options):
    factory = partial(torch.optim.SGD, lr=0.1, **options)
    return TrainingSetup(Problem(small_network(), "cross_entropy", labelled()), factory, 16, 0)


def plain_loss(rate, steps, warmup=0, decay=0.0):
    """The mean loss of the last quarter of a plain training loop."""
    net = copy.deepcopy(small_network()).train()
    x, y = labelled()
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, weight_decay=decay)
    generator, losses = torch.Generator().manual_seed(0), []
    while len(losses) < steps:
        for rows in torch.randperm(64, generator=generator).split(16):
            optimizer.param_groups[0]["lr"] = rate * min(1, (len(losses) + 1) / (warmup or 1))
            loss = torch.nn.functional.cross_entropy(net(x[rows]), y[rows])
            losses.append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    last = losses[:steps][-round(steps / 4) :]
    return sum(last) / len(last)


def test_trials_are_plain_trainings_with_warm_up_and_weight_decay():
    found = option_trials.try_options(setup_of(), 0.3, 40, [5, 30], [0.01])
    shown = [(each.option, each.value, each.steps) for each in found]
    assert shown == [
        *(("warmup", value, 60) for value in (0, 5, 30)),  # twice the longest warm-up
        *(("weight_decay", value, 60) for value in (0.0, 0.01)),
    ]
    for each in found:
        options = {each.option.replace("weight_", ""): each.value}
        assert each.loss == pytest.approx(plain_loss(0.3, 60, **options), rel=1e-4)
    for option in ("warmup", "weight_decay"):
        assert sum(each.chosen for each in found if each.option == option) == 1


def compared(*outcomes, noise=0.0):
    """Return the value that is chosen among losses by value; infinite ones fail."""

    def run(value):
        loss = dict(outcomes)[value]
        losses = tuple(loss + noise * value * (-1) ** step for step in range(40))
        return ShortRun(0.1, 0, math.isinf(loss), 40, 1.0, losses=losses)

    found = option_trials._compare("warmup", [value for value, _ in outcomes], run, 40)
    return next(each.value for each in found if each.chosen)


def test_usual_value_stays_unless_another_is_clearly_better():
    assert compared((0, 1.0), (5, 0.9), (9, 0.95)) == 5
    assert compared((0, 1.0), (5, 0.999), noise=0.1) == 0
    assert compared((0, 1.0), (5, 1.2)) == 0
    assert compared((0, math.inf), (5, 1.2)) == 5


def test_answer_names_what_was_chosen():
    options = {"batch_size": 16, "warmups": [5], "weight_decays": [0.01, 0.0]}
    advice = max_learning_rate(small_network(), "cross_entropy", labelled(), **options)
    choice = advice.choice
    assert choice.warmup in (0, 5)
    assert choice.weight_decay in (0.0, 0.01)
    assert f"warm-up {choice.warmup}, weight decay {choice.weight_decay:g}" in str(advice)
    assert all(len(line) <= 80 for line in str(advice).splitlines())
    assert "weight decay 0.01" in advice.details()
    plain = choice.to_dict()
    assert [each["value"] for each in plain["options"]] == [0, 5, 0.0, 0.01]
    assert (plain["warmup"], plain["weight_decay"]) == (choice.warmup, choice.weight_decay)


def test_nothing_is_tried_unless_it_is_given():
    advice = max_learning_rate(small_network(), "cross_entropy", labelled())
    assert advice.choice.options == ()
    assert (advice.choice.warmup, advice.choice.weight_decay) == (None, None)


def test_groups_without_weight_decay_keep_none():
    model = small_network()
    weights, biases = [model[0].weight], [model[0].bias]
    groups = [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    _set_decay(optimizer, 0.5)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]


def test_no_warm_up_may_be_named():
    setup = setup_of()
    option_trials.check_options(setup, [0, 4], [], "fastest")
    named, usual = (option_trials.try_options(setup, 0.1, 8, each) for each in ([0, 4], [4]))
    assert [each.value for each in named] == [0, 4]
    assert named == usual


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"warmups": [-1]}, InputError, "0 for none; got -1"),
        ({"warmups": 5}, ArgumentTypeError, "warmups must be a list of numbers, got 5"),
        ({"warmups": "10"}, ArgumentTypeError, "must be a list of numbers, got '10'"),
        ({"weight_decays": 0.1}, ArgumentTypeError, "weight_decays must be a list of numbers"),
        ({"weight_decays": ["a"]}, ArgumentTypeError, "a weight decay must be a number, got 'a'"),
        ({"weight_decays": [True]}, InputError, "got True"),
        ({"warmups": [2.5]}, ArgumentTypeError, "integer"),
        ({"weight_decays": [-1.0]}, InputError, "not negative, got -1"),
        ({"warmups": [5], "objective": "half_limit"}, InputError, "use that objective"),
        ({"weight_decays": [0.1], "verify": False}, InputError, "use that objective"),
        (
            {
                "warmups": [5],
                "scheduler": partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=lambda step: 1.0),
            },
            InputError,
            "make the warm-up a schedule",
        ),
        (
            {"weight_decays": [0.1], "optimizer": lambda p: torch.optim.Rprop(p)},
            InputError,
            "no weight decay to try",
        ),
    ],
)
def test_options_that_cannot_be_tried_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        max_learning_rate(small_network(), "cross_entropy", labelled(), **options)
