from functools import partial, wraps
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

from normscope.errors import (
    ArgumentTypeError,
    InputError,
    NormscopeError,
    ShapeError,
    StateError,
    UnknownNameError,
)
from normscope.problem import (
    Problem,
    isolated,
    move_batch,
    rows,
    sample_count,
    split_batch,
    whole_loss,
)

X, Y = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 2


class NamedPair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def test_problem_gives_one_batch_list_and_loader_as_pairs():
    for data in ((X, Y), [(X, Y)], DataLoader(TensorDataset(X, Y), batch_size=6)):
        problem = Problem(network(), "cross_entropy", data)
        for _ in range(2):  # can be read again
            ((inputs, targets),) = problem.batches()
            assert torch.equal(inputs, X)
            assert torch.equal(targets, Y)


def test_problem_batches_follow_the_dtype_of_the_model():
    problem = Problem(network().double(), "cross_entropy", (X, Y))
    ((inputs, targets),) = problem.batches()
    assert inputs.dtype == torch.float64
    assert targets.dtype == torch.int64
    assert problem.device == torch.device("cpu")


def test_problem_loss_is_the_loss_of_the_output():
    model = network().eval()
    problem = Problem(model, nn.CrossEntropyLoss(), (X, Y))
    expected = nn.functional.cross_entropy(model(X), Y)
    assert torch.equal(problem.loss_on((X, Y)), expected)
    assert torch.equal(problem.output_on((X, Y)), model(X))
    assert torch.equal(problem.loss_of(model(X), Y), expected)


def test_problem_evaluates_elsewhere_without_touching_the_model():
    model = network()
    problem = Problem(model, "cross_entropy", (X, Y))
    before = {name: t.clone() for name, t in model.state_dict().items()}
    shifted = {name: p.detach() + 0.1 for name, p in model.named_parameters()}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    expected = nn.functional.cross_entropy(functional_call(model, shifted | dict(buffers), X), Y)
    buffers = {name: before[name].clone() for name in buffers}
    with isolated(model, tensors=shifted | buffers):
        assert torch.equal(problem.loss_on((X, Y)), expected)
    with isolated(model, tensors=shifted | {n: before[n].clone() for n in buffers}):
        assert torch.equal(problem.loss_of(problem.output_on((X, Y)), Y), expected)
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


def test_whole_loss_calls_the_model_in_its_own_way_also_elsewhere():
    model = nn.Bilinear(3, 3, 2)
    batch = {"left": X, "right": X + 1, "label": Y, "note": "text stays"}
    loss = whole_loss(
        lambda net, b: nn.functional.cross_entropy(net(b["left"], b["right"]), b["label"])
    )
    problem = Problem(model, loss, batch)
    ((given),) = problem.batches()
    assert given["note"] == "text stays"
    expected = nn.functional.cross_entropy(model(X, X + 1), Y)
    assert torch.equal(problem.loss_on(given), expected)
    zeros = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    with isolated(model, tensors=zeros):
        assert problem.loss_on(given).item() == pytest.approx(torch.log(torch.tensor(2.0)))
    with pytest.raises(StateError, match="whole_loss"):
        problem.output_on(given)
    with pytest.raises(StateError, match="whole_loss"):
        problem.loss_of(X, Y)


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        ((X, Y[:4]), ShapeError, r"\(6, 3\) and \(4,\)"),
        ((X[:0], Y[:0]), InputError, "empty"),
        ([], InputError, "empty"),
        ([(X, Y), (X[:0], Y[:0])], InputError, "empty"),
        (X, ArgumentTypeError, "pair"),
        ([X, Y], ArgumentTypeError, "pair"),
        ((X, Y, Y), ArgumentTypeError, "pair"),
        (((X, Y), (X, Y)), ArgumentTypeError, "in a list"),
        ({"x": X, "y": Y}, ArgumentTypeError, "whole_loss"),
        ((X.numpy(), Y.numpy()), ArgumentTypeError, "pair"),
        ((X, torch.tensor(1)), ShapeError, "row per sample"),
        (((x, y) for x, y in [(X, Y)]), ArgumentTypeError, "read again"),
        (7, ArgumentTypeError, "DataLoader"),
        ((X.to("meta"), Y), InputError, "meta"),
        (DataLoader(TensorDataset(X[:0], Y[:0])), InputError, "empty"),
    ],
)
def test_problem_refuses_bad_data_in_one_sentence(data, error, words):
    with pytest.raises(error, match=words) as caught:
        Problem(network(), "cross_entropy", data)
    assert isinstance(caught.value, NormscopeError)
    assert "\n" not in str(caught.value)


def test_problem_refuses_a_loader_that_gives_nothing():
    class Nothing:
        def __iter__(self):
            return iter(())

    with pytest.raises(InputError, match="no batch"):
        list(Problem(network(), "cross_entropy", Nothing()).batches())


def test_problem_refuses_what_is_not_a_model_or_a_loss():
    with pytest.raises(ArgumentTypeError, match=r"nn\.Module, got function"):
        Problem(lambda x: x, "cross_entropy", (X, Y))
    with pytest.raises(ArgumentTypeError, match="got int"):
        Problem(network(), 3, (X, Y))
    with pytest.raises(UnknownNameError, match="did you mean 'cross_entropy'"):
        Problem(network(), "crossentropy", (X, Y))


def of_the_output(output):
    return output.mean()


class OfTheOutput(nn.Module):
    def forward(self, output):
        return output.mean()


class Callable:
    def __call__(self, output):
        return output.mean()


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        (of_the_output, r"\(output, target\), but of_the_output takes \(output\)"),
        (OfTheOutput(), r"\(output, target\), but OfTheOutput takes \(output\)"),
        (Callable(), r"\(output, target\), but Callable takes \(output\)"),
        (lambda output, target, weights: output, r"takes \(output, target, weights\)"),
        (
            whole_loss(lambda model: model(X).mean()),
            r"\(model, batch\), but <lambda> takes \(model\)",
        ),
    ],
)
def test_problem_refuses_a_loss_that_cannot_be_called_as_it_will_be(loss, words):
    with pytest.raises(ArgumentTypeError, match=words) as caught:
        Problem(network(), loss, (X, Y))
    assert "\n" not in str(caught.value)


@wraps(of_the_output)
def decorated(output, target):
    return of_the_output(output)


hooked = OfTheOutput()
hooked.register_forward_pre_hook(lambda module, arguments: arguments[:1])


def fails_inside(output, target):
    return of_the_output(output, target)


@pytest.mark.parametrize(
    "loss",
    [
        nn.functional.cross_entropy,
        nn.CrossEntropyLoss(),
        partial(nn.functional.cross_entropy, label_smoothing=0.1),
        lambda *both: nn.functional.cross_entropy(*both),
        lambda output, target, smoothing=0.1: nn.functional.cross_entropy(output, target),
        decorated,
        hooked,
        torch.nn.functional.pairwise_distance,  # of C, without a signature
    ],
)
def test_problem_takes_every_loss_of_two_arguments(loss):
    Problem(network(), loss, (X, Y))


def test_error_inside_a_loss_is_left_as_it_is():
    problem = Problem(network(), fails_inside, (X, Y))
    with pytest.raises(TypeError, match="of_the_output") as caught:
        problem.loss_on((X, Y))
    assert not isinstance(caught.value, NormscopeError)


def test_problem_refuses_models_without_one_device():
    with pytest.raises(InputError, match="meta device"):
        Problem(network().to("meta"), "cross_entropy", (X, Y))
    spread = network()
    spread[0].to("meta")
    with pytest.raises(InputError, match="devices cpu, meta"):
        Problem(spread, "cross_entropy", (X, Y))


def test_problem_refuses_a_loss_that_is_not_a_scalar_tensor():
    problem = Problem(network(), nn.CrossEntropyLoss(reduction="none"), (X, Y))
    with pytest.raises(ShapeError, match=r"\(6,\).*reduction"):
        problem.loss_on((X, Y))
    with pytest.raises(ArgumentTypeError, match="got float"):
        Problem(network(), lambda output, target: 1.0, (X, Y)).loss_on((X, Y))


def test_batch_rows_and_pieces_keep_samples_together():
    batch = {"x": X, "pair": (X * 2, Y)}
    chosen = rows(batch, torch.tensor([4, 1]))
    assert torch.equal(chosen["x"], X[[4, 1]])
    assert torch.equal(chosen["pair"][1], Y[[4, 1]])
    cut = split_batch((X, Y), 4)
    assert [sample_count(piece) for piece in cut] == [3, 3]
    assert torch.equal(torch.cat([piece[0] for piece in cut]), X)
    assert cut[0][0].data_ptr() == X.data_ptr()


def test_batch_sample_count_refuses_unequal_lengths_and_no_tensor():
    with pytest.raises(ShapeError, match="as many in each"):
        sample_count((X, Y[:2]))
    with pytest.raises(ArgumentTypeError, match="holds tensors"):
        sample_count({"text": "abc"})


def test_batch_moved_casts_floating_point_only():
    x, y = move_batch((X, Y), torch.device("cpu"), torch.bfloat16)
    assert (x.dtype, y.dtype) == (torch.bfloat16, torch.int64)


@pytest.mark.parametrize("as_data", [lambda pair: pair, lambda pair: [pair]], ids=["one", "list"])
def test_problem_refuses_a_regression_under_the_cross_entropy(as_data):
    with pytest.raises(InputError, match="use squared_error"):
        Problem(network(), "cross_entropy", as_data((X, X[:, :2])))
    Problem(network(), "cross_entropy", as_data((X, X[:, :2].softmax(dim=1))))
    Problem(network(), "squared_error", as_data((X, X[:, :2])))
    Problem(network(), nn.CrossEntropyLoss(), as_data((X, X[:, :2])))  # the user's own


def test_problem_refuses_a_regression_from_a_loader_when_it_is_read():
    loader = DataLoader(TensorDataset(X, X[:, :2]), batch_size=3)
    with pytest.raises(InputError, match="use squared_error"):
        next(Problem(network(), "cross_entropy", loader).batches())


def test_problem_looks_at_the_values_in_memory_only_once(monkeypatch):
    problem = Problem(network(), "cross_entropy", (X, X[:, :2].softmax(dim=1)))
    monkeypatch.setattr("normscope.problem.problem.check_probabilities", lambda target: 1 / 0)
    list(problem.batches())


def test_batch_keeps_named_tuples_and_their_names():
    pair = NamedPair(X, Y)
    for made in (
        move_batch(pair, torch.device("cpu"), torch.float64),
        rows(pair, torch.tensor([2, 0])),
        split_batch(pair, 4)[0],
        rows({"inner": pair}, torch.tensor([1]))["inner"],
    ):
        assert type(made) is NamedPair
        assert len(made.x) == len(made.y)
    loss = whole_loss(lambda model, b: nn.functional.cross_entropy(model(b.x), b.y))
    problem = Problem(network(), loss, pair)
    assert [problem.loss_on(batch).dim() for batch in problem.batches()] == [0]


@pytest.mark.parametrize("samples", range(1, 12))
@pytest.mark.parametrize("size", range(1, 13))
def test_batch_pieces_leave_no_sample_alone(samples, size):
    sizes = [len(piece) for piece in split_batch(torch.zeros(samples, 1), size)]
    assert sum(sizes) == samples
    assert max(sizes) - min(sizes) <= 1
    assert min(sizes) >= min(2, size, samples)
    assert max(sizes) <= (3 if size == 2 else size)


def test_tensors_of_inference_mode_can_be_differentiated_through():
    with torch.inference_mode():
        data = torch.randn(4, 2), torch.randn(4, 1)
    problem = Problem(nn.Linear(2, 1), "squared_error", data)
    (batch,) = problem.batches()
    problem.loss_on(batch).backward()
    assert torch.equal(batch[0], data[0])
    assert problem.model.weight.grad is not None


def test_one_batch_that_is_a_list_is_told_how_to_become_one():
    model, (x, y) = nn.Linear(2, 2), (torch.randn(4, 2), torch.zeros(4, dtype=torch.long))
    with pytest.raises(ArgumentTypeError, match=r"tuple\(batch\)"):
        list(Problem(model, "cross_entropy", [x, y]).batches())


@pytest.mark.parametrize(
    ("loss", "target", "said"),
    [
        (nn.CrossEntropyLoss(), Y.int(), "target of shape (6,) and torch.int32 (expected target"),
        (nn.CrossEntropyLoss(), Y + 5, "torch.int64 (Target 5 is out of bounds)"),
        (nn.BCEWithLogitsLoss(), Y.float(), "BCEWithLogitsLoss does not take an output of shape"),
        (nn.CrossEntropyLoss(torch.ones(3)), Y, "for all 2 classes"),
    ],
)
def test_targets_that_a_loss_of_torch_does_not_take_are_told_with_their_shape(loss, target, said):
    problem = Problem(network(), loss, (X, target))
    for refused in (problem.loss_on, lambda batch: problem.loss_of(torch.zeros(6, 2), batch[1])):
        with pytest.raises(InputError) as caught:
            refused((X, target))
        assert said in str(caught.value)
        assert str(caught.value).endswith("; give the targets that it expects.")


def test_what_a_loss_of_the_users_own_raises_is_not_touched():
    def loss(output, target):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match=r"^mine$"):
        Problem(network(), loss, (X, Y)).loss_on((X, Y))


def test_problem_rejects_data_that_can_be_read_only_once():
    with pytest.raises(ArgumentTypeError, match="which can be read again, got list_iterator"):
        Problem(network(), "cross_entropy", iter([(X, Y)]))


def test_whole_loss_takes_batches_that_are_not_pairs():
    loss = whole_loss(lambda model, batch: model(batch["x"]).square().mean())
    problem = Problem(network(), loss, {"x": X})
    assert problem.loss_on(next(problem.batches())) > 0
    with pytest.raises(NormscopeError):
        Problem(network(), "cross_entropy", {"x": X})
