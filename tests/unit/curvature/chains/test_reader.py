"""What cannot be read as a chain is declined, and reading leaves no trace in the model."""

import copy
import random

import pytest
import torch
from tests.unit.curvature.chains.examples import CHAINS, chain
from tests.unit.curvature.networks import FusedActivation, Residual, Tied, randomized
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations, spectral_norm

from normscope.curvature.chains import chain_jacobian
from normscope.layers import BatchNorm1d, LpNorm1d, NoisyBatchNorm1d
from normscope.problem import MODES, parameter_layout


def read(model, inputs, mode="train"):
    return chain_jacobian(model, inputs, mode, parameter_layout(model))


def vectors(samples=5):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 3, generator=generator, dtype=torch.float64)


def with_layer(layer):
    return randomized(nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2)))


class Doubled(nn.Linear):
    def forward(self, input):
        return 2 * super().forward(input)


class Written(nn.Module):
    """A forward given as a function of two linear layers and the input."""

    def __init__(self, function):
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def branching(model, x):
    return model.second(x if x.sum() > 0 else model.first(x))


class TwoInputs(Written):
    def forward(self, x, y):
        return self.second(self.first(x))


def without_derivative(model, x):
    with torch.no_grad():
        x = model.first(x)
    return model.second(x)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, gradient):
        return -gradient


WRITTEN = {
    "no derivative of a part": without_derivative,
    "no derivative at all": torch.no_grad()(lambda model, x: model.second(model.first(x))),
    "own derivative": lambda model, x: model.second(Reversed.apply(model.first(x))),
    "residual": lambda model, x: model.second(x + model.first(x)),
    "same module twice": lambda model, x: model.second(model.first(model.first(x))),
    "branch on values": branching,
    "scaled": lambda model, x: model.second(model.first(x)) * 2,
    "unknown function": lambda model, x: torch.cumsum(model.second(model.first(x)), 1),
    "softmax": lambda model, x: functional.softmax(model.second(model.first(x)), 1),
    "parameter by itself": lambda model, x: functional.linear(x, model.first.weight),
    "several outputs": lambda model, x: (model.second(model.first(x)), x),
    "batch merged": lambda model, x: model.second(model.first(x)).view(-1),
    "view to another size": lambda model, x: model.second(model.first(x)).view(x.size(1), -1),
    "dropout": lambda model, x: model.second(functional.dropout(model.first(x))),
    "mean over samples": lambda model, x: model.second(model.first(x)).mean(0, keepdim=True),
    "detached": lambda model, x: model.second(model.first(x).detach()),
    "input ignored": lambda model, x: model.second(torch.ones(5, 3, dtype=x.dtype)),
    "indices": lambda model, x: functional.max_pool1d(
        model.second(model.first(x)), 1, return_indices=True
    )[0],
    "own random numbers": lambda model, x: model.second(model.first(x) + torch.randn(5, 3)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_chain_declines_a_forward_that_is_no_straight_line_of_known_steps(name):
    model = randomized(Written(WRITTEN[name]))
    assert read(model, vectors()) is None


def test_chain_reads_the_straight_line_of_the_same_kind():
    straight = randomized(Written(lambda model, x: model.second(torch.tanh(model.first(x)))))
    assert read(straight, vectors()) is not None  # or the test above could not fail


def test_tracing_does_not_change_the_methods_of_modules_for_other_threads():
    seen = []

    def forward(model, x):
        seen.append((nn.Module.__call__, nn.Module.__getattr__))
        return model.second(torch.tanh(model.first(x)))

    methods = nn.Module.__call__, nn.Module.__getattr__
    assert read(randomized(Written(forward)), vectors()) is not None
    assert set(seen) == {methods}


class Optional(Written):
    def forward(self, x, mask=None):
        return self.second(self.first(x if mask is None else x * mask))


def test_chain_reads_a_forward_with_optional_arguments():
    assert read(randomized(Optional(None)), vectors()) is not None


DECLINED = {
    "tied weights": Tied,
    "residual": Residual,
    "subclass": lambda: nn.Sequential(Doubled(3, 4), nn.Linear(4, 2)),
    "subclass of a norm": lambda: with_layer(FusedActivation(4)),
    "layer norm": lambda: with_layer(nn.LayerNorm(4)),
    "group norm": lambda: with_layer(nn.GroupNorm(2, 4)),
    "l_p norm": lambda: with_layer(LpNorm1d(4)),
    "noise": lambda: with_layer(NoisyBatchNorm1d(4)),
    "dropout": lambda: with_layer(nn.Dropout(0.5)),
    "random activation": lambda: with_layer(nn.RReLU()),
    "activation with a parameter": lambda: with_layer(nn.PReLU()),
    "softmax": lambda: with_layer(nn.Softmax(1)),
    "two inputs": lambda: TwoInputs(None),
    "parametrization": lambda: with_layer(parametrizations.weight_norm(nn.Linear(4, 4))),
    "spectral norm": lambda: with_layer(spectral_norm(nn.Linear(4, 4))),
}


@pytest.mark.parametrize("name", DECLINED)
def test_chain_declines_what_it_does_not_know(name):
    assert read(DECLINED[name]().double(), vectors()) is None


def test_chain_takes_the_statistics_of_its_own_batch_where_processes_share_them():
    shared, own = (with_layer(BatchNorm1d(4, process_group=group)) for group in ("world", None))
    own.load_state_dict(shared.state_dict())
    cotangent = torch.ones(len(vectors()), 2, dtype=torch.float64)
    products = [read(net.double(), vectors()).gram(cotangent)[0] for net in (shared, own)]
    torch.testing.assert_close(*products)


def test_chain_declines_the_same_module_at_two_places():
    layer = nn.Linear(3, 3)
    assert read(nn.Sequential(layer, nn.Tanh(), layer).double(), vectors()) is None
    activation = nn.Tanh()
    model = nn.Sequential(nn.Linear(3, 3), activation, nn.Linear(3, 3), activation).double()
    assert read(model, vectors()) is None


def test_chain_declines_one_tensor_under_two_names():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).double()
    model[1].weight = model[0].weight
    assert read(model, vectors()) is None


@pytest.mark.parametrize(
    "register",
    [
        lambda module: module.register_forward_hook(lambda *_: None),
        lambda module: module.register_forward_pre_hook(lambda *_: None),
        lambda module: module.register_full_backward_hook(lambda *_: None),
        lambda module: module.register_full_backward_pre_hook(lambda *_: None),
        lambda module: nn.modules.module.register_module_forward_hook(lambda *_: None),
    ],
)
@pytest.mark.parametrize("place", ["", "1", "2"])
def test_chain_declines_hooks(register, place):
    model, inputs = chain("batch_norm")
    assert read(model, inputs) is not None
    handle = register(model.get_submodule(place))
    try:
        assert read(model, inputs) is None
    finally:
        handle.remove()
    assert read(model, inputs) is not None


def test_chain_declines_a_forward_set_on_the_module_itself():
    model, inputs = chain("batch_norm")
    model[2].forward = torch.sin
    assert read(model, inputs) is None


@pytest.mark.filterwarnings("ignore:Using padding='same'")
@pytest.mark.parametrize(
    "convolution",
    [
        nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(2, 2, 2, padding="same"),
        nn.ConvTranspose2d(2, 2, 2),
    ],
)
def test_chain_declines_other_convolutions(convolution):
    model = nn.Sequential(convolution, nn.Flatten(), nn.LazyLinear(2)).double()
    inputs = torch.randn(3, 2, 4, 4, dtype=torch.float64)
    model(inputs)
    assert read(model, inputs) is None


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (nn.Linear(3, 2), torch.randn(5, 3, dtype=torch.float64)),
        (nn.Linear(3, 2).double(), torch.randn(5, 3)),
        (nn.Linear(3, 2).bfloat16(), torch.randn(5, 3).bfloat16()),
        (nn.Linear(3, 2), torch.ones(5, 3, dtype=torch.int64)),
        (nn.Linear(3, 2), torch.randn(3)),
        (nn.Linear(3, 2), torch.randn(5, 4)),
        (nn.Conv2d(2, 2, 1), torch.randn(2, 3, 3)),
        (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)), torch.randn(1, 3)),
        (nn.Sequential(nn.Linear(3, 2), nn.Flatten(0)), torch.randn(5, 3)),
        (nn.Linear(3, 2), torch.full((5, 3), torch.nan)),
    ],
)
def test_chain_declines_inputs_that_do_not_fit(model, inputs):
    assert read(model, inputs) is None


def test_chain_declines_under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert read(nn.Linear(3, 2), torch.randn(5, 3)) is None


def test_chain_declines_when_its_output_is_not_the_models(monkeypatch):
    model, inputs = chain("batch_norm")
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: self.weight.sum() * x[:, :1])
    assert read(model, inputs) is None


def bits(tensor):
    return tensor.detach().clone(), tensor._version


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [*CHAINS, "declined"])
def test_chain_leaves_the_model_as_it_is(name, mode, training):
    model, inputs = chain("straight" if name == "declined" else name)
    if name == "declined":
        model.second.register_forward_hook(lambda *_: None)
    model.train(training)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers()), "x": inputs}
    before = {key: bits(tensor) for key, tensor in tensors.items()}
    attributes = {key: copy.copy(module.__dict__) for key, module in model.named_modules()}
    lists = {key: list(value) for key, value in vars(model).items() if isinstance(value, list)}
    states = torch.get_rng_state(), random.getstate()
    jacobian = read(model, inputs, mode)
    assert (jacobian is None) == (name == "declined")
    if jacobian is not None:
        jacobian.gram(torch.ones(jacobian.output_shape, dtype=torch.float64))
    for key, tensor in tensors.items():
        assert torch.equal(tensor, before[key][0])
        assert tensor._version == before[key][1]
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
    for key, module in model.named_modules():
        assert module.__dict__.keys() == attributes[key].keys()
        assert all(module.__dict__[name] is value for name, value in attributes[key].items())
    assert all(vars(model)[key] == value for key, value in lists.items())
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]


class Scribbling(nn.Module):
    """A chain whose passes leave traces in plain attributes, in place."""

    def __init__(self):
        super().__init__()
        self.line = nn.Linear(3, 2).double()
        self.calls, self.seen = torch.zeros(()), {"deep": [[]]}
        self.drawn = [torch.Generator().manual_seed(0)]

    def forward(self, inputs):
        self.calls += 1
        self.seen["deep"][0].append(1)
        torch.rand(1, generator=self.drawn[0])
        return self.line(inputs)


@pytest.mark.parametrize("mode", MODES)
def test_passes_that_read_a_chain_leave_no_trace_in_plain_attributes(mode):
    model = Scribbling()
    state = model.drawn[0].get_state()
    read(model, vectors(), mode)
    assert model.calls == 0
    assert model.seen == {"deep": [[]]}
    assert torch.equal(model.drawn[0].get_state(), state)
