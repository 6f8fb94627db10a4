import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from normscope.errors import ArgumentTypeError, InputError, UnknownNameError
from normscope.layers import NoisyBatchNorm1d, population_statistics
from normscope.problem import whole_loss
from normscope.training import evaluate

GENERATOR = torch.Generator().manual_seed(1)
X = torch.randn(50, 5, generator=GENERATOR)
Y = torch.randint(3, (50,), generator=GENERATOR)
TRAIN = torch.randn(64, 5, generator=GENERATOR) + 1, torch.randint(3, (64,), generator=GENERATOR)


def network(norm: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    norm = norm or nn.BatchNorm1d(8)
    return nn.Sequential(nn.Linear(5, 8), norm, nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))


def scores(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, float]:
    with torch.no_grad():
        output = model(x)
    loss = nn.functional.cross_entropy(output, y).item()
    return loss, (output.argmax(1) == y).double().mean().item()


@pytest.mark.parametrize("batch_size", [512, 50, 16, 7])
def test_evaluate_by_running_statistics_is_the_eval_mode_whatever_the_pieces(batch_size):
    model = network()
    found = evaluate(model, "cross_entropy", (X, Y), batch_size=batch_size)
    assert found == pytest.approx(scores(copy.deepcopy(model).eval(), X, Y), rel=1e-6)


def test_evaluate_by_population_statistics_measures_them_on_the_training_data():
    model = network()
    expected = copy.deepcopy(model)
    population_statistics(expected, [(x, None) for x in TRAIN[0].split(16)])
    found = evaluate(model, "cross_entropy", (X, Y), "population", train_data=TRAIN, batch_size=16)
    assert found == pytest.approx(scores(expected.eval(), X, Y), rel=1e-6)
    loader = DataLoader(TensorDataset(*TRAIN), batch_size=16)
    again = evaluate(model, "cross_entropy", (X, Y), "population", train_data=loader)
    assert again == pytest.approx(found, rel=1e-6)
    assert found.loss != evaluate(model, "cross_entropy", (X, Y)).loss


def test_evaluate_by_batch_statistics_trains_the_norm_alone():
    model = network()
    expected = copy.deepcopy(model).eval()
    expected[1].train()
    assert evaluate(model, "cross_entropy", (X, Y), "batch") == pytest.approx(
        scores(expected, X, Y), rel=1e-6
    )


def test_evaluate_weights_unequal_batches_by_their_samples():
    model = network()
    whole = evaluate(model, "cross_entropy", (X, Y))
    parts = evaluate(model, "cross_entropy", [(X[:7], Y[:7]), (X[7:], Y[7:])])
    assert parts == pytest.approx(whole, rel=1e-6)


@pytest.mark.parametrize("statistics", ["running", "population", "batch"])
@pytest.mark.parametrize("norm", [nn.BatchNorm1d(8), NoisyBatchNorm1d(8, generator=3)])
@pytest.mark.parametrize("fails", [False, True])
def test_evaluate_changes_nothing_of_the_model(statistics, norm, fails):
    model = network(copy.deepcopy(norm))
    model[0].eval()
    model[0].weight.grad = torch.ones_like(model[0].weight)
    before = copy.deepcopy(model.state_dict())
    flags = [module.training for module in model.modules()]
    own = getattr(model[1], "generator", None)
    own_state = None if own is None else own.get_state()
    random_state = torch.get_rng_state()
    data = [(X, Y), (X[:, :3], Y)] if fails else (X, Y)
    train_data = TRAIN if statistics == "population" else None
    with pytest.raises(RuntimeError, match="does not fit the model") if fails else nullcontext():
        evaluate(model, "cross_entropy", data, statistics, train_data=train_data)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())
    assert [module.training for module in model.modules()] == flags
    assert torch.equal(torch.get_rng_state(), random_state)
    assert own is None or torch.equal(own.get_state(), own_state)
    assert torch.equal(model[0].weight.grad, torch.ones_like(model[0].weight))


class _Counting(nn.Linear):
    """A layer that counts its passes in a buffer, also in eval mode."""

    def __init__(self) -> None:
        super().__init__(X.shape[1], 3)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return super().forward(x)


def test_evaluate_restores_a_buffer_that_a_pass_in_eval_mode_writes_to():
    model = _Counting()
    passes = model.passes
    evaluate(model, "cross_entropy", (X, Y))
    assert model.passes is passes
    assert passes == 0


def test_evaluate_of_a_regression_has_no_accuracy():
    model = nn.Linear(5, 2)
    target = torch.zeros(50, 2)
    found = evaluate(model, "squared_error", (X, target))
    assert found.accuracy is None
    assert found.loss == pytest.approx(0.5 * model(X).square().sum(1).mean().item(), rel=1e-6)


def test_evaluate_counts_labels_also_under_the_squared_error():
    assert evaluate(network(), "squared_error", (X, Y)).accuracy is not None


def test_evaluate_takes_a_whole_loss():
    model = network()
    loss = whole_loss(lambda net, b: nn.functional.cross_entropy(net(b["x"]), b["y"]))
    found = evaluate(model, loss, {"x": X, "y": Y}, batch_size=20)
    assert found.accuracy is None
    assert found.loss == pytest.approx(evaluate(model, "cross_entropy", (X, Y)).loss, rel=1e-6)


def test_evaluate_refuses_bad_arguments():
    with pytest.raises(UnknownNameError, match="did you mean 'running'"):
        evaluate(network(), "cross_entropy", (X, Y), "runing")
    with pytest.raises(InputError, match="without it"):
        evaluate(network(), "cross_entropy", (X, Y), "population")
    with pytest.raises(InputError, match="with it"):
        evaluate(network(), "cross_entropy", (X, Y), train_data=TRAIN)
    with pytest.raises(InputError, match="batch_size"):
        evaluate(network(), "cross_entropy", (X, Y), batch_size=0)
    with pytest.raises(ArgumentTypeError, match="batch_size must be an integer"):
        evaluate(network(), "cross_entropy", (X, Y), batch_size=2.5)


def test_evaluate_by_batch_statistics_takes_an_odd_number_of_samples_in_pairs():
    found = evaluate(network(), "cross_entropy", (X[:3], Y[:3]), "batch", batch_size=2)
    assert found == evaluate(network(), "cross_entropy", (X[:3], Y[:3]), "batch")


def test_lazy_model_is_refused_before_its_first_batch():
    lazy = nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d(), nn.LazyLinear(2))
    data = torch.randn(6, 3), torch.randint(2, (6,))
    with pytest.raises(InputError, match="call the lazy model once"):
        evaluate(lazy, "cross_entropy", data)
