import pytest
import torch
from tests.unit.learning_rate.problems import labelled, small_network
from torch import nn
from torch.optim import SGD, Adam
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    TensorDataset,
)

from normscope.errors import InputError, StateError
from normscope.learning_rate.setup import TrainingSetup, bind_all_parameters
from normscope.learning_rate.verification import verify_limit
from normscope.problem import Problem
from normscope.training import sgd, train


def test_runs_start_from_a_copy_of_the_users_optimizer():
    model, data = small_network(), labelled()
    optimizer = Adam(model.parameters(), lr=0.1)
    problem = Problem(model, "cross_entropy", data)
    for _ in train(problem, optimizer, 3):
        pass
    weight = model[0].weight
    moment = optimizer.state[weight]["exp_avg"].clone()
    with TrainingSetup(problem, optimizer, None, 0).training(0.5) as own:
        assert own.param_groups[0]["params"][0] is weight
        assert own.param_groups[0]["lr"] == 0.5
        assert torch.equal(own.state[weight]["exp_avg"], moment)
        assert weight.grad is None
        for _ in train(problem, own, 2):
            pass
        assert not torch.equal(own.state[weight]["exp_avg"], moment)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert torch.equal(optimizer.state[weight]["exp_avg"], moment)


class Remembering(nn.Module):
    """A loss that keeps a mean of its values in a buffer and their number in an attribute."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(()))
        self.calls = 0

    def forward(self, output, target):
        value = nn.functional.cross_entropy(output, target) + self.mean
        self.mean.mul_(0.5).add_(0.5 * value.detach())
        self.calls += 1
        return value


@pytest.mark.parametrize("wrapped", [False, True])
def test_each_run_begins_with_the_users_loss_as_it_is(wrapped):
    memory = Remembering()
    loss = (lambda output, target: memory(output, target)) if wrapped else memory
    problem = Problem(small_network(), loss, labelled())
    bench = TrainingSetup(problem, sgd(0.1), None, 0)
    buffer, trained = memory.mean, []
    for _ in range(2):
        with bench.training(0.1) as optimizer:
            trained.append([step.loss for step in train(problem, optimizer, 3)])
            assert memory.calls == 3
        assert memory.calls == 0
        assert memory.mean is buffer
        assert buffer == 0
    assert trained[0] == trained[1]


def test_loss_is_untouched_by_a_measurement():
    memory = Remembering()
    model, (inputs, targets) = small_network(), labelled()
    with TrainingSetup(Problem(model, memory, (inputs, targets)), sgd(0.1), None, 0).isolated():
        memory(model(inputs), targets)
        assert memory.mean > 0
    assert (memory.mean, memory.calls) == (0, 0)


def test_batches_are_those_that_training_sees():
    problem = Problem(small_network(), "cross_entropy", labelled())
    bench = TrainingSetup(problem, sgd(0.0), 16, 5)
    seen = [step.batch for step in train(problem, sgd(0.0), 3, 16, 5)]
    for (inputs, _), (expected, _) in zip(bench.batches(3), seen, strict=True):
        assert torch.equal(inputs, expected)


@pytest.mark.parametrize(
    ("size", "asked", "held"), [(None, 3, 1), (16, 3, 3), (32, 3, 2), (64, 3, 1)]
)
def test_no_batch_comes_twice(size, asked, held):
    problem = Problem(small_network(), "cross_entropy", labelled())
    assert len(TrainingSetup(problem, sgd(0.0), size, 0).batches(asked)) == held


def test_shuffled_loader_leaves_the_random_state_alone():
    loader = DataLoader(TensorDataset(*labelled()), batch_size=16, shuffle=True)
    problem = Problem(small_network(), "cross_entropy", loader)
    before = torch.get_rng_state()
    first, again = (TrainingSetup(problem, sgd(0.0), None, 3).batches(2) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first[0][0], again[0][0])
    assert not torch.equal(first[0][0], first[1][0])


def loader_setup(generator=None, seed=3, **options):
    options = {"batch_size": 16} | options
    loader = DataLoader(TensorDataset(*labelled()), generator=generator, **options)
    return TrainingSetup(Problem(small_network(), "cross_entropy", loader), sgd(0.1), None, seed)


def first_batches(setup, order, count=4):
    with setup.training(0.1, order=order) as optimizer:
        return torch.cat([each.batch[0] for each in train(setup.problem, optimizer, count)])


@pytest.mark.parametrize("own", [False, True])
def test_order_of_a_shuffled_loader_is_another_permutation_of_the_same_samples(own):
    generator = torch.Generator().manual_seed(7) if own else None
    setup = loader_setup(generator, shuffle=True)
    before = torch.get_rng_state(), None if generator is None else generator.get_state()
    assert setup.orders_differ
    zero, one = first_batches(setup, 0), first_batches(setup, 1)
    assert torch.equal(first_batches(setup, 0), zero)
    assert torch.equal(zero, torch.cat([inputs for inputs, _ in setup.batches(4)]))
    assert not torch.equal(zero, one)
    assert torch.equal(zero.sort(0).values, one.sort(0).values)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert generator is None or torch.equal(generator.get_state(), before[1])


def test_orders_of_rows_and_of_sequential_loaders_have_the_same_random_numbers():
    rows = TrainingSetup(Problem(small_network(), "cross_entropy", labelled()), sgd(0.1), 16, 3)
    for setup in (rows, loader_setup()):
        drawn = []
        for order in (0, 1):
            with setup.training(0.1, order=order):
                drawn.append(torch.rand(3))
        assert torch.equal(*drawn)


DATA = TensorDataset(*labelled())


@pytest.mark.parametrize(
    ("options", "differ"),
    [
        ({}, False),
        ({"shuffle": True}, True),
        ({"shuffle": True, "batch_size": 64}, False),  # all samples in each batch
        ({"shuffle": True, "batch_size": 63, "drop_last": True}, True),
        ({"sampler": RandomSampler(DATA, num_samples=32), "batch_size": 32}, True),
        ({"sampler": RandomSampler(DATA, replacement=True), "batch_size": 64}, True),
        ({"batch_size": 1, "batch_sampler": BatchSampler(range(64), 16, False)}, True),
        (
            {"batch_size": 1, "batch_sampler": BatchSampler(SequentialSampler(DATA), 16, False)},
            False,
        ),
        ({"batch_size": 1, "batch_sampler": BatchSampler(RandomSampler(DATA), 16, False)}, True),
        ({"batch_size": None, "shuffle": True}, True),
    ],
)
def test_orders_of_a_loader_differ_if_it_shuffles(options, differ):
    assert loader_setup(**options).orders_differ == differ


def test_limit_of_a_shuffled_loader_is_judged_on_several_orders():
    setup = loader_setup(shuffle=True)
    ramp, *runs = verify_limit(setup, 1.0).runs
    first = {order: {run.losses[0] for run in runs if run.order == order} for order in (3, 4)}
    assert len(first[3]) == len(first[4]) == 1  # all runs on one order begin with one batch
    assert first[3] != first[4]
    assert ramp.losses[0] in first[3]


def test_model_that_deepcopy_refuses_is_trained_and_restored():
    model = small_network()
    model.held = held = model[0](torch.ones(2, 5))  # a result with its graph
    problem = Problem(model, "cross_entropy", labelled())
    with TrainingSetup(problem, sgd(0.1), None, 0).training(0.1) as optimizer:
        losses = [step.loss for step in train(problem, optimizer, 3)]
    assert losses[2] < losses[0]
    assert model.held is held


def test_optimizer_that_cannot_be_copied_is_named():
    model = small_network()
    optimizer = SGD(model.parameters(), lr=0.1)
    optimizer.stream = (number for number in range(3))
    bench = TrainingSetup(Problem(model, "cross_entropy", labelled()), optimizer, None, 0)
    expected = pytest.raises(StateError, match=r"'stream'.*use verify=False or a factory")
    with expected, bench.training(0.1):
        pass


def test_optimizer_that_leaves_parameters_out_is_refused():
    model = small_network()
    with pytest.raises(InputError, match=r"leaves out '0.weight' and 3 more"):
        bind_all_parameters(SGD(model[3].parameters(), lr=0.1), model)
