"""From modules to graphs: what is read, what is measured, what is refused and how."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from normscope.errors import ArgumentTypeError, InputError, NoClosureError, ShapeError
from normscope.layers import BatchNorm1d, NoisyBatchNorm1d
from normscope.meanfield import (
    convolutional_specification,
    fully_connected_specification,
    predict,
)
from normscope.meanfield.norms import BatchNorm
from normscope.meanfield.reading import read
from normscope.meanfield.weighted import Linear
from normscope.models import build


def terms(prediction):
    return [row.term for row in prediction.layers]


def test_fully_connected_model_is_the_specification():
    model = build("fully_connected", norm_options={"eps": 0.0})
    read_off = predict(model, (1, 28, 28), "frozen", weight_variance=2.0, bias_variance=0.5)
    assert terms(read_off) == pytest.approx(
        terms(predict(fully_connected_specification(), closure="frozen"))
    )


@pytest.mark.parametrize("padding", [0, 1])
def test_conv_net_is_the_specification(padding):
    model = build("conv_net", padding=padding, norm_options={"eps": 0.0})
    given = {"weight_variance": 2.0, "bias_variance": 0.5}
    for closure in ("train", "frozen", "printed"):
        read_off = predict(model, (3, 32, 32), closure, **given)
        expected = predict(convolutional_specification(padding=padding), closure=closure)
        assert terms(read_off) == pytest.approx(terms(expected), abs=1e-9)


def test_variances_scale_and_shift_are_measured():
    linear, norm = nn.Linear(50, 40), nn.BatchNorm1d(40, eps=0.1)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-2, 2, 40))
        norm.bias.copy_(torch.linspace(0, 1, 40))
    first, second = (
        n.operation for n in read(nn.Sequential(linear, norm, nn.Linear(40, 3))).nodes[:2]
    )
    assert isinstance(first, Linear)
    assert first.weight_variance == pytest.approx(
        50 * float(linear.weight.detach().square().mean())
    )
    assert first.bias_variance == pytest.approx(float(linear.bias.detach().square().mean()))
    assert isinstance(second, BatchNorm)
    assert second.gamma == pytest.approx(float(norm.weight.detach().square().mean()) ** 0.5)
    assert second.beta == pytest.approx(0.5)
    assert second.beta_variance == pytest.approx(float(norm.bias.detach().var(unbiased=False)))
    assert second.eps == 0.1


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm, self.drop, self.head = nn.BatchNorm2d(8), nn.Dropout(0.0), nn.Linear(8 * 16, 5)

    def forward(self, x, scale=None):
        x = functional.relu(self.norm(self.conv1(x)))
        x = functional.avg_pool2d(x, 2)
        x = functional.dropout(self.conv2(x).tanh(), 0.5, self.training) + x
        x = self.drop(x)
        return self.head(x.view(x.size(0), -1))


def test_forward_functions_are_followed():
    names = [type(node.operation).__name__ for node in read(Functional(), (3, 8, 8)).nodes]
    assert names == [
        "Convolution",
        "BatchNorm",
        "Nonlinearity",
        "AveragePool",
        "Convolution",
        "Nonlinearity",
        "Dropout",
        "Addition",
        "Flatten",
        "Linear",
    ]
    assert predict(Functional(), (3, 8, 8)).lambda_max > 0


class MeanHead(nn.Module):
    def __init__(self, pool):
        super().__init__()
        self.conv, self.pool, self.head = nn.Conv2d(3, 16, 3), pool, nn.Linear(16, 5)

    def forward(self, x):
        x = torch.relu(self.conv(x))
        return self.head(x.mean((2, 3)) if self.pool is None else self.pool(x).flatten(1))


def test_mean_over_positions_is_global_pooling():
    torch.manual_seed(0)
    first = MeanHead(None)
    second = MeanHead(nn.AdaptiveAvgPool2d(1))
    second.load_state_dict(first.state_dict())
    shape = (3, 6, 6)
    assert terms(predict(first, shape)) == pytest.approx(terms(predict(second, shape)))


def test_our_layers_and_look_alikes_are_batch_norm():
    models = [
        nn.Sequential(nn.Linear(9, 50), kind(50), nn.ReLU(), nn.Linear(50, 2))
        for kind in (nn.BatchNorm1d, BatchNorm1d, nn.SyncBatchNorm)
    ]
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())
    found = [predict(model).lambda_max for model in models]
    assert found == pytest.approx([found[0]] * 3)


class OwnBlock(nn.Module):
    def forward(self, x):
        return torch.cumsum(x, 1)


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (NoisyBatchNorm1d(8), "features.1: .* the module NoisyBatchNorm1d"),
        (nn.Softmax(1), "features.1: .* the module Softmax"),
        (OwnBlock(), "cumsum"),
        (nn.GroupNorm(8, 8), "features.1: .* the module GroupNorm"),
        (nn.InstanceNorm1d(8), "features.1: .* InstanceNorm1d"),
    ],
)
def test_what_has_no_closure_is_named_with_a_way_out(module, said):
    model = nn.Sequential()
    model.add_module("features", nn.Sequential(nn.Linear(4, 8), module))
    model.add_module("head", nn.Linear(8, 2))
    with pytest.raises(InputError, match=said) as caught:
        predict(model)
    assert "Supported are Linear" in str(caught.value)
    assert "max_learning_rate measures instead" in str(caught.value)


class Branching(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else x


class Counting(Branching):
    def forward(self, x):
        return self.linear(x) + torch.zeros(4).expand(len(x), -1)


class TwoInputs(Branching):
    def forward(self, x, mask=None, other=1.0):
        return self.linear(x) + other


class Twice(Branching):
    def forward(self, x):
        return self.linear(torch.relu(self.linear(x)))


class Dependent(Branching):
    def forward(self, x):
        x = self.linear(x)
        return self.linear2(x + torch.relu(x))

    def __init__(self):
        super().__init__()
        self.linear2 = nn.Linear(4, 2)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Branching(), r"of Branching cannot be traced \(it branches on the values of a tensor\)"),
        (
            nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.ReLU(), Branching())),
            r"of 1\.1 \(Branching\) cannot be traced \(it branches on the values",
        ),
        (nn.Sequential(Counting()), r"of 0 \(Counting\) cannot be traced \(it calls len\(\)"),
        (Twice(), "called twice"),
        (Dependent(), "no linear or convolution layer between"),
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4, 2)), "needs input_shape"),
        (nn.Sequential(nn.ReLU()), "needs input_shape"),
    ],
)
def test_networks_beyond_the_theory_are_refused(model, said):
    with pytest.raises(InputError, match=said):
        predict(model)


class ChannelsLast(nn.Module):
    """A convolution of images whose channels come last."""

    def __init__(self):
        super().__init__()
        self.convolution, self.head = nn.Conv2d(3, 8, 3), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.convolution(x.permute(0, 3, 1, 2)).mean((2, 3)))


def test_wrong_shapes_name_the_layer():
    with pytest.raises(ShapeError, match=r"layer '0' \(Linear\) expects 4 features, got an input"):
        predict(nn.Sequential(nn.Linear(4, 2)), (5,))
    with pytest.raises(ShapeError, match=r"input_shape of \(3, 8, 8\) .* 'convolution' \(Conv2d\)"):
        predict(ChannelsLast(), (3, 8, 8))  # once had a prediction
    with pytest.raises(ShapeError, match="vector of outputs"):
        predict(nn.Sequential(nn.Conv2d(3, 4, 3)), (3, 5, 5))
    with pytest.raises(ArgumentTypeError, match=r"expects an nn\.Module"):
        predict("vgg")


def test_own_activation_is_taken_by_type():
    model = nn.Sequential(nn.Linear(9, 50), nn.Softplus(), nn.Linear(50, 2))
    with pytest.raises(InputError, match="Softplus"):
        predict(model)
    import numpy as np

    found = predict(model, activations={nn.Softplus: lambda z: np.logaddexp(0, z)})
    assert found.lambda_max > 0


def test_max_pooling_goes_before_the_activation():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 2)
    )
    names = [type(node.operation).__name__ for node in read(model, (3, 6, 6)).nodes]
    assert names[1:3] == ["MaxPool", "Nonlinearity"]
    model[1] = nn.GELU()  # not increasing
    with pytest.raises(InputError, match="max pooling after"):
        predict(model, (3, 6, 6))


@pytest.mark.parametrize("name", ["vgg", "vgg16", "preact_resnet18", "conv_net", "fully_connected"])
@pytest.mark.parametrize("norm", ["batch", "none", "layer"])
def test_our_models_can_be_read(name, norm):
    options = {} if name in ("conv_net", "fully_connected") else {"width": 0.25}
    found = predict(
        build(name, norm=norm, input_shape=(3, 16, 16), padding=1, **options)
        if name == "conv_net"
        else build(name, norm=norm, input_shape=(3, 16, 16), **options),
        (3, 16, 16),
    )
    assert found.lambda_max > 0
    assert found.regime in ("head", "bound", "explosive")


def test_reading_leaves_the_model_alone():
    model = build("preact_resnet18", width=0.1, input_shape=(3, 8, 8))
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    predict(model, (3, 8, 8))
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class ByFunction(nn.Module):
    """A net with the GELU as a function."""

    def __init__(self, approximate):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(30, 40), nn.Linear(40, 5)
        self.approximate = approximate

    def forward(self, x):
        return self.last(functional.gelu(self.first(x), approximate=self.approximate))


def test_gelu_as_a_function_is_the_one_that_it_names():
    found = {}
    for approximate in ("none", "tanh"):
        function = ByFunction(approximate)
        module = nn.Sequential(function.first, nn.GELU(approximate), function.last)
        found[approximate] = predict(function, (30,)).lambda_max
        assert found[approximate] == pytest.approx(predict(module, (30,)).lambda_max, rel=1e-12)
    assert found["none"] != pytest.approx(found["tanh"], rel=1e-9)


class ByType(nn.Module):
    """Applies another activation while it is traced."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(30, 40), nn.Linear(40, 5)

    def forward(self, x):
        x = self.first(x)
        return self.last(torch.tanh(x) if type(x) is torch.Tensor else torch.relu(x))


def test_forward_pass_that_differs_from_its_trace_is_refused():
    with pytest.raises(NoClosureError, match="may branch on the type of a tensor"):
        predict(ByType(), (30,))
