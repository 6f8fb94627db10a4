import pytest
import torch
from tests.unit.learning_rate.problems import labelled, small_network
from tests.unit.problem.test_isolation import snapshot
from torch import nn

from normscope.learning_rate.last_layer import last_layer
from normscope.problem import Evaluator, Problem, parameter_layout, whole_loss


def evaluator_of(model, data, loss="cross_entropy"):
    return Evaluator(Problem(model, loss, data), parameter_layout(model), "train", 0)


def test_features_are_what_the_last_layer_is_given_in_train_mode():
    model, data = small_network(), labelled()
    batches = [(data[0][:32], data[1][:32]), (data[0][32:], data[1][32:])]
    before = snapshot(model)
    found = last_layer(evaluator_of(model, batches))
    after = snapshot(model)
    assert before["identities"] == after["identities"]
    assert found.name == "3"
    for (inputs, targets), features, held in zip(
        batches, found.features, found.targets, strict=True
    ):
        assert torch.equal(features, model[:3](inputs))
        assert torch.equal(held, targets)
    assert torch.equal(found.weight, model[3].weight)


def test_moved_parameters_move_the_features():
    model, data = small_network(), labelled()
    moved = {"0.weight": model[0].weight.detach().flip(0)}
    found = last_layer(evaluator_of(model, data), moved)
    with torch.no_grad():
        model[0].weight.copy_(moved["0.weight"])
        assert torch.equal(found.features[0], model[:3](data[0]))


def test_hooks_are_gone_also_after_an_error():
    model = small_network()
    with pytest.raises(Exception, match="shape"):
        last_layer(evaluator_of(model, (torch.ones(4, 9), torch.zeros(4, dtype=torch.long))))
    assert not any(module._forward_hooks for module in model.modules())


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Linear(5, 3), nn.LogSoftmax(dim=1)),
        nn.Sequential(nn.Linear(5, 3), nn.Tanh()),
        nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 3, 1), nn.Flatten()),
    ],
)
def test_model_that_does_not_end_in_a_linear_layer_has_none(model):
    assert last_layer(evaluator_of(model, labelled())) is None


class Tailed(nn.Module):
    """A linear layer whose output, or input, another operation may overwrite."""

    def __init__(self, tail):
        super().__init__()
        self.layer, self.tail = nn.Linear(5, 3), tail

    def forward(self, x):
        return self.tail(self.layer(x), x)


@pytest.mark.parametrize(
    ("tail", "kept"),
    [
        (lambda made, given: made.view(-1, 3), True),
        (lambda made, given: made.div_(10), False),
        (lambda made, given: nn.functional.relu(made, inplace=True), False),
        (lambda made, given: (made[:, :1].zero_(), made)[1], False),
        (lambda made, given: (given.zero_(), made)[1], False),
    ],
)
def test_layer_that_is_overwritten_is_not_the_last(tail, kept):
    assert (last_layer(evaluator_of(Tailed(tail), labelled())) is not None) == kept


def with_bias(kind):
    model = small_network()
    if kind == "frozen":
        model[3].bias.requires_grad_(False)
    elif kind == "buffer":
        held = model[3].bias.detach()
        del model[3].bias
        model[3].register_buffer("bias", held)
    elif kind == "tied":
        model[1].bias = nn.Parameter(torch.ones(8))
        model[0] = nn.Linear(5, 3)
        model[1], model[3] = nn.BatchNorm1d(3), nn.Linear(3, 3)
        model[3].bias = model[0].bias
    elif kind == "absent":
        model[3].bias = None
    return model


@pytest.mark.parametrize("kind", ["trained", "frozen", "buffer", "tied", "absent"])
def test_bias_that_is_not_trained_with_the_layer_stands_still(kind):
    model = with_bias(kind)
    found = last_layer(evaluator_of(model, labelled()))
    assert (found.bias is not None) == (kind == "trained")
    assert (found.offset is not None) == (kind in ("frozen", "buffer", "tied"))
    if kind != "absent":
        held = found.bias if found.offset is None else found.offset
        assert torch.equal(held, model[3].bias)
        assert not held.requires_grad or kind == "trained"


def test_frozen_last_layer_does_not_count():
    model = small_network()
    model[3].requires_grad_(False)
    assert last_layer(evaluator_of(model, labelled())) is None


class Tied(nn.Module):
    """Words that are read by the weights that they are told by."""

    def __init__(self, order):
        super().__init__()
        parts = {"head": nn.Linear(6, 10, bias=False), "words": nn.Embedding(10, 6)}
        for name in order:
            self.add_module(name, parts[name])
        self.words.weight = self.head.weight

    def forward(self, inputs):
        return self.head(self.words(inputs))


@pytest.mark.parametrize("order", [("head", "words"), ("words", "head")])
def test_layer_whose_weights_are_used_elsewhere_does_not_count(order):
    data = torch.arange(8), torch.arange(8)
    assert last_layer(evaluator_of(Tied(order), data)) is None


def test_layer_by_two_names_is_one():
    model = small_network()
    model.add_module("head", nn.Identity())
    model.head.alias = model[3]
    assert last_layer(evaluator_of(model, labelled())).name == "3"


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = small_network(norm=False)

    def forward(self, inputs):
        with torch.autocast("cpu", torch.bfloat16):
            return self.net(inputs)


def test_features_of_autocast_have_the_dtype_of_the_weights():
    model, data = Half(), labelled()
    found = last_layer(evaluator_of(model, data))
    with torch.autocast("cpu", torch.bfloat16):
        given = model.net[:3](data[0])
    assert given.dtype == torch.bfloat16
    assert found.features[0].dtype == torch.float32
    assert torch.equal(found.features[0], given.float())


def test_whole_loss_shows_no_last_layer():
    model = small_network()
    loss = whole_loss(lambda net, batch: net(batch[0]).square().mean())
    assert last_layer(evaluator_of(model, labelled(), loss)) is None


def test_layer_that_is_called_twice_counts_by_its_last_call():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(5, 5)

        def forward(self, x):
            return self.layer(torch.tanh(self.layer(x)))

    model, (inputs, targets) = Twice(), labelled()
    found = last_layer(evaluator_of(model, (inputs, targets)))
    assert found.name == "layer"
    assert torch.equal(found.features[0], torch.tanh(model.layer(inputs)))


class Transposed(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.head = nn.Linear(size, size)

    def forward(self, x):
        return self.head(x).transpose(1, 2)


def test_transposed_output_is_not_the_layers_own_though_it_has_its_shape():
    data = torch.randn(4, 3, 3), torch.randint(3, (4, 3))
    assert last_layer(evaluator_of(Transposed(3), data)) is None
