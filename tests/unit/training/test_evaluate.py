import copy
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from normscope.errors import ArgumentTypeError, InputError, NormscopeWarning, UnknownNameError
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


IGNORED = Y.clone()
IGNORED[:20] = -100


@pytest.mark.parametrize("batch_size", [50, 25, 7, 1])
@pytest.mark.parametrize("loss", [nn.CrossEntropyLoss(), nn.functional.cross_entropy])
def test_evaluate_leaves_ignored_labels_out_of_loss_and_accuracy(loss, batch_size):
    model = network().eval()
    found = evaluate(model, loss, (X, IGNORED), batch_size=batch_size)
    assert found == pytest.approx(scores(model, X[20:], Y[20:]), rel=1e-5)


def test_evaluate_leaves_a_class_that_is_ignored_out_of_the_accuracy():
    model = network().eval()
    found = evaluate(model, nn.CrossEntropyLoss(ignore_index=2), (X, Y), batch_size=9)
    assert found == pytest.approx(scores(model, X[Y != 2], Y[Y != 2]), rel=1e-5)


@pytest.mark.parametrize("batch_size", [50, 25, 7])
def test_evaluate_divides_by_the_weights_of_the_labels(batch_size):
    model = network().eval()
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 20.0, 0.1]))
    expected = loss(model(X), Y).item()
    found = evaluate(model, loss, (X, Y), batch_size=batch_size)
    assert found.loss == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("batch_size", [50, 25, 7, 1])
def test_evaluate_adds_up_a_sum_also_of_a_custom_loss(batch_size):
    model, target = network().eval(), torch.ones(50, 3)
    expected = (model(X) - 1).square().sum().item()
    for loss in (nn.MSELoss(reduction="sum"), lambda f, y: (f - y).square().sum()):
        found = evaluate(model, loss, (X, target), batch_size=batch_size)
        assert found.loss == pytest.approx(expected, rel=1e-5)


def ignoring(output, target):
    return nn.functional.cross_entropy(output, target, ignore_index=-100)


def test_evaluate_warns_of_a_custom_loss_that_is_neither_a_mean_nor_a_sum():
    model = network().eval()
    whole = evaluate(model, ignoring, (X, IGNORED))  # one batch: no warning
    assert whole == pytest.approx(scores(model, X[20:], Y[20:]), rel=1e-6)
    with pytest.warns(NormscopeWarning, match="depends on the batch size") as caught:
        found = evaluate(model, ignoring, (X, IGNORED), batch_size=25)
    assert caught[0].filename == __file__
    halves = [ignoring(model(x), y).item() for x, y in zip(X.split(25), IGNORED.split(25))]  # noqa: B905
    assert found.loss == pytest.approx(sum(halves) / 2, rel=1e-6)
    assert found.accuracy == whole.accuracy


def test_evaluate_takes_batches_of_other_shapes():
    data = [(torch.ones(2, 3, 4), torch.ones(2, 3, 4)), (torch.ones(1, 3, 2), torch.zeros(1, 3, 2))]
    assert evaluate(nn.Identity(), nn.MSELoss(), data).loss == pytest.approx(6 / 30)
    custom = evaluate(nn.Identity(), lambda f, y: (f - y).square().mean(), data)
    assert custom.loss == pytest.approx(1 / 3)  # weighted by samples


def test_evaluate_refuses_a_mean_over_no_label():
    with pytest.raises(InputError, match="ignores every label"):
        evaluate(network(), nn.CrossEntropyLoss(), (X, torch.full_like(Y, -100)))
    nothing = evaluate(network(), nn.CrossEntropyLoss(reduction="sum"), (X, 0 * Y - 100))
    assert nothing == (0.0, None)


def test_evaluate_does_not_overwrite_the_data():
    x, y = X.clone(), torch.ones(50, 3)
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(5, 3))
    evaluate(model, lambda f, y: y.sub_(f).square().mean(), (x, y), batch_size=16)
    assert torch.equal(x, X)
    assert torch.equal(y, torch.ones(50, 3))


class _RunningScale(nn.Module):
    """A loss that divides by its mean value so far, and so depends on its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, output, target):
        self.calls += 1
        return (output - target).square().mean() * self.calls


def test_evaluate_calls_a_loss_with_state_as_if_batches_were_not_tried_together():
    loss, target = _RunningScale(), torch.ones(50, 3)
    model = network().eval()
    with pytest.warns(NormscopeWarning, match="neither"):
        found = evaluate(model, loss, (X, target), batch_size=25).loss
    each = [(model(x) - 1).square().mean().item() for x in X.split(25)]
    assert found == pytest.approx((each[0] + 2 * each[1]) / 2, rel=1e-6)
    assert loss.calls == 0
