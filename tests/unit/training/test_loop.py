import gc

import pytest
import torch
from tests.references.textbook_loop import textbook_step
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from normscope.errors import InputError, StateError
from normscope.problem import Problem, whole_loss
from normscope.training import fit, sgd, train

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(50, 5, generator=GENERATOR)
Y = torch.randint(3, (50,), generator=GENERATOR)


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)]
    return nn.Sequential(*layers).to(dtype)


def problem_of(model: nn.Module | None = None, data: object = (X, Y)) -> Problem:
    return Problem(model or network(), "cross_entropy", data)


@pytest.mark.parametrize(
    ("recipe", "torch_options"),
    [
        (sgd(0.3), {"lr": 0.3}),
        (sgd(0.3, momentum=0.9), {"lr": 0.3, "momentum": 0.9}),
        (
            sgd(0.1, momentum=0.8, nesterov=True, weight_decay=1e-2),
            {"lr": 0.1, "momentum": 0.8, "nesterov": True, "weight_decay": 1e-2},
        ),
    ],
)
def test_train_equals_the_textbook_loop_on_the_same_batches(recipe, torch_options):
    ours, theirs = network(torch.float64), network(torch.float64)
    optimizer = torch.optim.SGD(theirs.parameters(), **torch_options)
    for step in train(problem_of(ours), recipe, steps=30, batch_size=16):
        expected = textbook_step(theirs, nn.functional.cross_entropy, optimizer, *step.batch)
        assert step.loss == pytest.approx(expected, rel=1e-12)
    for mine, other in zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-11, atol=1e-13)


def test_step_shows_the_gradient_before_the_update():
    problem = problem_of()
    previous = None
    for step in train(problem, sgd(0.5), steps=4, batch_size=10, seed=3):
        weight = step.model[3].weight
        if previous is not None:
            old_weight, old_gradient = previous
            torch.testing.assert_close(weight, old_weight - 0.5 * old_gradient)
        inputs, targets = step.batch
        value = nn.functional.cross_entropy(problem.model(inputs), targets)  # batch statistics
        assert step.loss == pytest.approx(value.item(), rel=1e-6)
        (gradient,) = torch.autograd.grad(value, weight)
        torch.testing.assert_close(weight.grad, gradient)
        assert step.learning_rate == 0.5
        previous = weight.detach().clone(), weight.grad.clone()
    torch.testing.assert_close(problem.model[3].weight, previous[0] - 0.5 * previous[1])


def test_train_takes_a_learning_rate_set_at_the_step():
    rates = []
    for step in train(problem_of(), sgd(0.5), steps=3):
        rates.append(step.learning_rate)
        step.optimizer.param_groups[0]["lr"] = 0.5 / (step.index + 2)
    assert rates == [0.5, 0.25, 0.5 / 3]


def test_train_abandoned_after_a_step_has_not_taken_its_update_and_restores_flags():
    model = network().eval()
    model[0].train()
    for step in train(problem_of(model), sgd(0.5), steps=10):
        assert all(module.training for module in model.modules())
        weight = model[3].weight.detach().clone()
        if step.index == 2:
            break
    gc.collect()
    assert torch.equal(model[3].weight, weight)
    assert [m.training for m in model.modules()] == [False, True, False, False, False]


def batches_of(seed: int, steps: int = 8, **options: object) -> list[torch.Tensor]:
    data = (torch.arange(50.0).reshape(-1, 1).repeat(1, 5), Y)
    running = train(problem_of(data=data), sgd(0.01), steps, 16, seed, **options)
    return [step.batch[0][:, 0].long() for step in running]


def test_train_draws_each_sample_once_an_epoch_by_seed():
    first, again, other = batches_of(0), batches_of(0), batches_of(1)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], other[0])
    epoch = torch.cat(first[:3])
    assert len(epoch.unique()) == 48
    assert not torch.equal(torch.cat(first[3:6]), epoch)


def test_train_keeps_the_short_batch_on_demand():
    sizes = [len(batch) for batch in batches_of(0, drop_last=False)]
    assert sizes == [16, 16, 16, 2, 16, 16, 16, 2]
    assert len(torch.cat(batches_of(0, drop_last=False)[:4]).unique()) == 50


def test_train_does_not_touch_the_global_generator():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    problem = problem_of()
    torch.set_rng_state(before)
    list(train(problem, sgd(0.1), steps=7, batch_size=16))
    assert torch.equal(torch.get_rng_state(), before)


def test_train_without_batch_size_sees_all_of_the_data_as_it_is():
    for step in train(problem_of(), sgd(0.1), steps=2):
        assert step.batch[0].data_ptr() == X.data_ptr()


def test_train_goes_through_a_list_in_seeded_order():
    data = [(torch.full((4, 5), float(i)), Y[:4]) for i in range(5)]
    seen = [int(step.batch[0][0, 0]) for step in train(problem_of(data=data), sgd(0.0), 10, seed=2)]
    assert sorted(seen[:5]) == sorted(seen[5:]) == [0, 1, 2, 3, 4]
    assert seen[:5] != seen[5:]


def test_train_goes_through_a_loader_in_its_own_order_again_and_again():
    loader = DataLoader(TensorDataset(X, Y), batch_size=20)
    seen = [step.batch[0] for step in train(problem_of(data=loader), sgd(0.1), steps=5)]
    expected = [X[:20], X[20:40], X[40:], X[:20], X[20:40]]
    assert all(torch.equal(a, b) for a, b in zip(seen, expected, strict=True))


def test_train_serves_a_whole_loss_on_dictionaries():
    batch = {"x": X, "y": Y}
    loss = whole_loss(lambda net, b: nn.functional.cross_entropy(net(b["x"]), b["y"]))
    steps = list(train(Problem(network(), loss, batch), sgd(0.3), 20, batch_size=25))
    assert steps[-1].batch["x"].shape == (25, 5)
    pairs = list(train(problem_of(), sgd(0.3), 20, batch_size=25))
    assert [s.loss for s in steps] == [s.loss for s in pairs]


@pytest.mark.parametrize("factory", [torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_train_takes_any_factory_or_a_bound_optimizer(factory):
    by_factory = [s.loss for s in train(problem_of(), lambda p: factory(p, lr=0.01), 10)]
    model = network()
    bound = factory(model.parameters(), lr=0.01)
    assert [s.loss for s in train(problem_of(model), bound, 10)] == by_factory
    assert by_factory[-1] < by_factory[0]


def test_train_leaves_frozen_parameters_alone():
    model = network()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    list(train(problem_of(model), sgd(0.5, weight_decay=0.1), 3))
    assert torch.equal(model[0].weight, before)
    assert model[0].weight.grad is None


def test_train_works_where_gradients_are_off():
    with torch.no_grad():
        losses = [step.loss for step in train(problem_of(), sgd(0.3), 5)]
    assert losses[-1] < losses[0]


def test_train_ends_with_the_step_that_diverged():
    steps = list(train(problem_of(), sgd(1e30), steps=50))
    assert [s.diverged for s in steps] == [False] * (len(steps) - 1) + [True]
    assert len(steps) < 50


@pytest.mark.parametrize(
    ("values", "factor", "steps"),
    [
        ([1.0, 4.9, 5.1, 1.0], 5.0, 3),
        ([1.0, 4.9, 5.1, 1.0], None, 4),
        ([1.0, float("inf"), 1.0], None, 2),
        ([float("nan"), 1.0], 5.0, 1),
        ([-1.0, 3.0, 8.0, 2.0], 5.0, 4),
        ([0.0, 3.0, 8.0, 2.0], 5.0, 4),
    ],
)
def test_train_diverges_beyond_the_stated_multiple_of_the_first_loss(values, factor, steps):
    remaining = iter(values)
    loss = whole_loss(lambda net, b: 0 * net(b).sum() + next(remaining))
    problem = Problem(nn.Linear(5, 1), loss, X)
    taken = list(train(problem, sgd(0.1), len(values), divergence_factor=factor))
    assert len(taken) == steps
    assert taken[-1].diverged == (steps < len(values))


def test_train_does_not_take_the_update_of_a_diverged_step():
    line = nn.Linear(5, 1)
    problem = Problem(line, "squared_error", (X, X[:, :1]))
    diverged, has_gradient = [], []
    for step in train(problem, sgd(10.0, momentum=0.9), steps=50, divergence_factor=10.0):
        weight = line.weight.detach().clone()
        diverged.append(step.diverged)
        has_gradient.append(line.weight.grad is not None)
    assert diverged[-1]
    assert torch.equal(line.weight, weight)
    assert has_gradient == [not each for each in diverged]  # nobody would descend the last one


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"batch_size": 51}, "from 1 to the 50 samples"),
        ({"batch_size": 0}, "from 1 to the 50 samples"),
        ({"steps": -1}, "steps must not be negative"),
        ({"divergence_factor": 0.5}, "divergence_factor"),
    ],
)
def test_train_refuses_bad_arguments_at_the_call(arguments, words):
    with pytest.raises(InputError, match=words):
        train(problem_of(), sgd(0.1), **({"steps": 3} | arguments))


def test_train_refuses_a_batch_size_for_batches_that_have_their_own():
    with pytest.raises(InputError, match="leave batch_size out"):
        train(problem_of(data=[(X, Y)]), sgd(0.1), 3, batch_size=4)


def test_train_refuses_a_loss_without_parameters():
    loss = whole_loss(lambda net, b: b.sum())
    with pytest.raises(StateError, match="requires_grad"):
        list(train(Problem(nn.Linear(5, 1), loss, X), sgd(0.1), 3))


class Frozen(nn.Sequential):
    def train(self, mode=True):
        super().train(mode)
        self[1].eval()
        return self


def normalized(kind=nn.Sequential):
    torch.manual_seed(0)
    return kind(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))


def flags_in_training(model):
    data = torch.randn(8, 3), torch.randn(8, 1)
    problem, found = Problem(model, "squared_error", data), []
    fit(
        problem,
        sgd(0.01),
        2,
        callback=lambda step: found.append([m.training for m in step.model]) and None,
    )
    assert found[0] == found[1]
    return found[0]


def test_modules_frozen_by_their_flag_stay_frozen():
    model = normalized().train()
    model[1].eval()
    before = model[1].running_mean.clone()
    assert flags_in_training(model) == [True, False, True, True]
    assert torch.equal(model[1].running_mean, before)
    assert [module.training for module in model] == [True, False, True, True]


def test_override_of_train_is_honoured():
    model = normalized(Frozen)  # in train mode since it was made: train() was never called
    assert flags_in_training(model) == [True, False, True, True]
    assert model[1].training


def test_model_in_eval_mode_is_trained_in_train_mode():
    model = normalized().eval()
    assert flags_in_training(model) == [True] * 4
    assert not any(module.training for module in model.modules())
