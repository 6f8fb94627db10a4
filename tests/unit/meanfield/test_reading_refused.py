"""What a forward pass may do besides calling layers: read, or refused by name, never a crash."""

import pickle
import threading

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.errors import InputError, NoClosureError, NormscopeError
from normscope.meanfield import predict
from normscope.meanfield.reading import read


class Net(nn.Module):
    """Layers, and tensors of every kind beside them; ``how`` is the forward pass."""

    def __init__(self, how):
        super().__init__()
        self.first, self.norm = nn.Linear(20, 64), nn.LayerNorm(64)
        self.second, self.head = nn.Linear(64, 64), nn.Linear(64, 5)
        self.position, self.scale = nn.Parameter(torch.zeros(20)), nn.Parameter(torch.ones(64))
        self.register_buffer("mean", torch.zeros(20))
        self.inner = nn.Module()
        self.inner.deep = nn.Module()
        self.inner.deep.shift = nn.Parameter(torch.zeros(64))
        self.shifts = nn.ParameterList([nn.Parameter(torch.zeros(64)) for _ in range(2)])
        self.named = nn.ParameterDict({"shift": nn.Parameter(torch.zeros(64))})
        self.constant = torch.zeros(64)
        self.how = how

    def features(self, x):
        return torch.relu(self.norm(self.first(x)))

    def forward(self, x):
        return self.how(self, x)


def squares_of(net):
    return sum(each.square().sum() for each in net.parameters())


@pytest.mark.parametrize(
    ("how", "name", "what"),
    [
        (lambda net, x: net.head(net.features(x + net.position)), "position", "parameter.*in add"),
        (lambda net, x: net.head(net.features(net.position + x)), "position", "parameter.*in add"),
        (lambda net, x: net.head(net.features(x + net.mean)), "mean", "a buffer"),
        (lambda net, x: net.head(net.features(x) - net.inner.deep.shift), "inner.deep.shift", ""),
        (lambda net, x: net.head(net.features(x) - net.shifts[1]), "shifts.1", "a parameter"),
        (lambda net, x: net.head(net.features(x) - net.named["shift"]), "named.shift", ""),
        (lambda net, x: net.head(net.features(x) - net.constant), "constant", "a tensor"),
        (lambda net, x: net.features(x) + net.head(net.scale), "scale", "in head"),
        (lambda net, x: net.head(net.features(x) + torch.zeros(64)), "add in Net", "makes itself"),
        (lambda net, x: net.head(net.features(x) + torch.randn(64)), "add in Net", "makes itself"),
        (
            lambda net, x: net.head(net.features(x)) + torch.tensor(1.0),
            "add in Net",
            "makes itself",
        ),
        (lambda net, x: net.head(net.features(x)) + squares_of(net), "add in Net", "makes itself"),
    ],
)
def test_tensor_that_no_layer_gave_is_named(how, name, what):
    with pytest.raises(InputError, match=f"^{name}: .* no closure here for .*{what}") as caught:
        predict(Net(how))
    assert "Supported are Linear" in str(caught.value)


class AnyInputs(Net):
    def forward(self, *inputs, **others):
        return self.how(self, *inputs, **others)


class Pair(Net):
    def forward(self, pair):
        first, second = pair
        return self.head(self.features(first) + self.second(second))


class Default(Net):
    def forward(self, x, shift=torch.zeros(64)):  # noqa: B008
        return self.head(self.features(x) + shift)


class NoInput(Net):
    def forward(self):
        return self.head(self.scale)


def held(value):
    """A net with an attribute that cannot be copied."""
    net = Net(lambda net, x: net.head(net.features(x)))
    net.held = value
    return net


def of_width_zero():
    layer = nn.Linear(20, 5)  # at once with width 0, torch would warn
    layer.out_features, layer.weight = 0, nn.Parameter(torch.empty(0, 20))
    return layer


def without_gradients(net, x):
    with torch.no_grad():
        x = torch.relu(net.first(x))
    return net.head(x)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


REFUSED = {
    "zeros of a size": Net(lambda net, x: net.head(net.features(x) + torch.zeros(x.shape[0], 64))),
    "pooled by a size": Net(
        lambda net, x: net.head(functional.avg_pool1d(net.first(x), x.shape[1]))
    ),
    "filled with a value": Net(lambda net, x: net.first(x) + torch.full((64,), x.mean())),
    "own autograd function": Net(lambda net, x: net.head(Doubled.apply(net.first(x)))),
    "product with itself": Net(lambda net, x: net.head((z := net.features(x)) * z)),
    "product with the input": Net(lambda net, x: net.first(x) * x.sum()),
    "without gradients": Net(without_gradients),
    "difference": Net(lambda net, x: net.head(net.features(x - net.mean))),
    "weights": Net(lambda net, x: functional.linear(net.features(x), net.head.weight)),
    "transposed weights": Net(lambda net, x: net.features(x) @ net.head.weight.T),
    "size added": Net(lambda net, x: net.head(net.features(x) + x.shape[1])),
    "computed dimension": Net(lambda net, x: net.head(net.features(x)).mean(x.dim() - 1)),
    "dimension in a tensor": Net(lambda net, x: net.head(net.features(x)).mean(torch.tensor(1))),
    "size as slope": Net(
        lambda net, x: net.head(functional.leaky_relu(net.first(x), 1 / x.shape[1]))
    ),
    "parameter as slope": Net(
        lambda net, x: net.head(functional.leaky_relu(net.first(x), net.scale[0]))
    ),
    "new zeros": Net(lambda net, x: net.head(net.features(x) + x.new_zeros(64))),
    "noise": Net(lambda net, x: net.head(net.features(x + torch.randn_like(x)))),
    "item set": Net(lambda net, x: x.__setitem__(0, 1.0) or net.head(net.features(x))),
    "rows": Net(lambda net, x: net.head(torch.stack([net.first(row) for row in x]))),
    "input as output": Net(lambda net, x: x),
    "parameter as output": Net(lambda net, x: net.position),
    "size as output": Net(lambda net, x: x.shape),
    "no output": Net(lambda net, x: None),
    "dictionary": Net(lambda net, x: {"logits": net.head(net.features(x))}),
    "two outputs": Net(lambda net, x: (net.head(net.features(x)), x)),
    "any inputs": AnyInputs(lambda net, *inputs, **others: net.head(net.features(inputs[0]))),
    "keyword": AnyInputs(lambda net, *inputs, **others: net.head(net.features(others["x"]))),
    "pair": Pair(None),
    "tensor by default": Default(None),
    "no input": NoInput(None),
    "identity": nn.Identity(),
    "empty": nn.Sequential(),
    "lazy": nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 2)),
    "meta": nn.Sequential(nn.Linear(20, 8, device="meta"), nn.ReLU(), nn.Linear(8, 2)),
    "width 0": nn.Sequential(of_width_zero(), nn.Linear(20, 5)),
    "lock": held(threading.Lock()),
    "embedding": nn.Sequential(nn.Embedding(30, 16), nn.Flatten(), nn.Linear(320, 5)),
    "recurrent": nn.Sequential(nn.LSTM(20, 8), nn.Linear(8, 5)),
    "bilinear": nn.Sequential(nn.Bilinear(20, 20, 5)),
}


@pytest.mark.parametrize("closure", ["train", "printed"])
@pytest.mark.parametrize("name", REFUSED)
def test_model_beyond_the_theory_is_refused_and_nothing_else(name, closure):
    with pytest.raises(NormscopeError):
        predict(REFUSED[name], (20,), closure)


def test_kept_result_with_a_graph_does_not_change_the_prediction():
    kept = held(torch.ones(3, requires_grad=True) * 2)
    plain = held(None)
    plain.load_state_dict(kept.state_dict())
    assert predict(kept, (20,)).lambda_max == predict(plain, (20,)).lambda_max
    assert kept.held.requires_grad


@pytest.mark.filterwarnings("ignore:.*jit:DeprecationWarning")
def test_compiled_model_is_refused():
    with pytest.raises(InputError, match="cannot be traced"):
        predict(torch.jit.script(nn.Sequential(nn.Linear(20, 5))))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda net, x: x, "the output: .* the model's input"),
        (
            lambda net, x: (net.head(net.features(x)), x),
            "the output: .* but a single tensor",
        ),
        (lambda net, x: net.head(net.features(x) + x.shape[1]), "add in Net: .* a number"),
        (lambda net, x: net.first(x).mean(x.dim() - 1, keepdim=True), "Net: .* the method mean"),
    ],
)
def test_refusal_says_what_it_is_about(how, said):
    with pytest.raises(InputError, match=said):
        predict(Net(how), (20,))


class Optional(Net):
    def forward(self, x, *more, mask=None, **others):
        return self.head(self.features(x))


@pytest.mark.parametrize(
    "model",
    [
        Optional(None),
        Net(lambda net, x: net.head(input=net.features(x).flatten(start_dim=1))),
        Net(lambda net, x: net.head(net.features(x).view(x.size(0), -1))),
        Net(lambda net, x: net.head(net.features(torch.as_tensor(x)))),
        Net(lambda net, x: net.head(nn.ReLU()(net.norm(net.first(x))))),
    ],
)
def test_unused_tensors_and_inputs_do_not_matter(model):
    layers = ["Linear", "SampleNorm", "Nonlinearity", "Linear"]
    found = [type(node.operation).__name__ for node in read(model).nodes]
    assert [each for each in found if each != "Flatten"] == layers


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (
            nn.Sequential(nn.LSTM(20, 8), nn.Linear(8, 5)),
            "0: mean-field theory has no closure here for the module LSTM",
        ),
        (
            Net(lambda net, x: net.head(torch.stack([net.first(row) for row in x]))),
            "the forward pass of Net cannot be traced (it may branch on values, or take several "
            "inputs)",
        ),
        (
            Net(lambda net, x: net.head((z := net.first(x)) + torch.relu(z))),
            "add in Net adds branches with no linear or convolution layer between their fork and "
            "their sum, for which there is no closure",
        ),
    ],
)
def test_refusal_carries_what_it_is_about_apart_from_the_way_out(model, what):
    with pytest.raises(NoClosureError) as caught:
        predict(model)
    error = caught.value
    assert error.what == what
    assert str(error).startswith(f"{what}. ")
    assert str(error).endswith("normscope.max_learning_rate measures instead.")
    again = pickle.loads(pickle.dumps(error))  # as it comes from another process
    assert (again.what, str(again)) == (what, str(error))


def test_input_is_a_tensor_while_it_is_traced():
    taken = Net(lambda net, x: net.head(net.first(x)) if isinstance(x, torch.Tensor) else x)
    either = Net(lambda net, x: x if isinstance(x, (tuple, nn.Parameter)) else net.first(x))
    assert [node.name for node in read(taken).nodes] == ["first", "head"]
    assert [node.name for node in read(either).nodes] == ["first"]


def test_other_models_can_be_called_while_one_is_traced():
    other, seen = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU()), []

    def traced(net, x):
        thread = threading.Thread(target=lambda: seen.append(other(torch.ones(2, 3))))
        thread.start()
        thread.join()
        seen.append(other(torch.ones(2, 3)))
        return net.head(net.features(x))

    read(Net(traced))
    assert len(seen) >= 2
    assert {tuple(each.shape) for each in seen} == {(2, 4)}


def test_model_that_keeps_a_tensor_with_its_graph_is_read():
    model = held(None)
    expected = predict(model).lambda_max
    model.held = torch.ones(3, requires_grad=True) * 2
    assert predict(model).lambda_max == expected
