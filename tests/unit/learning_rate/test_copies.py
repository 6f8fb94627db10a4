import pytest
import torch
from tests.unit.learning_rate.problems import labelled, small_network
from torch.optim import SGD, Adam
from torch.utils.data import DataLoader, TensorDataset

from normscope.curvature.problem import Problem
from normscope.errors import InputError, StateError
from normscope.learning_rate.copies import Workbench, checked_optimizer
from normscope.training import sgd, train


def test_copied_optimizer_has_the_state_of_the_users():
    model, data = small_network(), labelled()
    optimizer = Adam(model.parameters(), lr=0.1)
    for _ in train(Problem(model, "cross_entropy", data), optimizer, 3):
        pass
    with Workbench(Problem(model, "cross_entropy", data), optimizer, None, 0).rehearsal(0.5) as (
        copied,
        own,
    ):
        weight = copied.model[0].weight
        assert weight is not model[0].weight
        assert own.param_groups[0]["params"][0] is weight
        assert torch.equal(
            own.state[weight]["exp_avg"], optimizer.state[model[0].weight]["exp_avg"]
        )
        assert own.param_groups[0]["lr"] == 0.5
        assert weight.grad is None
    assert optimizer.param_groups[0]["lr"] == 0.1


def test_batches_are_those_that_training_sees():
    problem = Problem(small_network(), "cross_entropy", labelled())
    bench = Workbench(problem, sgd(0.0), 16, 5)
    seen = [step.batch for step in train(problem, sgd(0.0), 3, 16, 5)]
    for (inputs, _), (expected, _) in zip(bench.batches(3), seen, strict=True):
        assert torch.equal(inputs, expected)


@pytest.mark.parametrize(
    ("size", "asked", "held"), [(None, 3, 1), (16, 3, 3), (32, 3, 2), (64, 3, 1)]
)
def test_no_batch_comes_twice(size, asked, held):
    problem = Problem(small_network(), "cross_entropy", labelled())
    assert len(Workbench(problem, sgd(0.0), size, 0).batches(asked)) == held


def test_shuffled_loader_leaves_the_random_state_alone():
    loader = DataLoader(TensorDataset(*labelled()), batch_size=16, shuffle=True)
    problem = Problem(small_network(), "cross_entropy", loader)
    before = torch.get_rng_state()
    first, again = (Workbench(problem, sgd(0.0), None, 3).batches(2) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(first[0][0], again[0][0])
    assert not torch.equal(first[0][0], first[1][0])


def test_model_that_cannot_be_copied_is_named():
    model = small_network()
    model.held = model[0](torch.ones(2, 5))  # a result with its graph
    bench = Workbench(Problem(model, "cross_entropy", labelled()), sgd(0.1), None, 0)
    with pytest.raises(StateError, match="ask with verify=False"), bench.rehearsal():
        pass


def test_optimizer_that_leaves_parameters_out_is_refused():
    model = small_network()
    with pytest.raises(InputError, match=r"leaves out '0.weight' and 3 more"):
        checked_optimizer(SGD(model[3].parameters(), lr=0.1), model)
