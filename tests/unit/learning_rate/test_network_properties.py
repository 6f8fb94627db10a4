import pytest
import torch
from tests.unit.learning_rate.problems import labelled, small_network
from torch import nn

import normscope as ns
from normscope.learning_rate.network_properties import (
    layer_scaled_by_gamma,
    scale_invariant_weights,
)
from normscope.problem import Problem, whole_loss


def found_in(model, data, loss="cross_entropy"):
    return scale_invariant_weights(Problem(model, loss, data), data)


def test_weights_before_a_norm_layer_are_found():
    assert found_in(small_network(), labelled()) == ("0.weight",)


def test_without_normalization_there_are_none():
    assert found_in(small_network(norm=False), labelled()) == ()


def test_residual_stream_is_not_invariant_layer_by_layer():
    model = ns.models.build("preact_resnet18", width=0.05, input_shape=(1, 8, 8))
    data = (torch.randn(16, 1, 8, 8), torch.zeros(16, dtype=torch.long))
    found = found_in(model, data)
    assert "stages.0.0.conv1.weight" in found  # feeds norm2 alone
    assert "stages.0.0.conv2.weight" not in found  # adds to the stream
    assert "head.weight" not in found


def test_whole_loss_is_judged_by_its_value():
    loss = whole_loss(lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1]))
    assert found_in(small_network(), labelled(), loss) == ("0.weight",)


def test_model_is_left_as_it_is():
    model = small_network()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found_in(model, labelled())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_weight_that_is_zero_or_has_no_influence_is_none():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    model.register_module("unused", nn.Linear(2, 2))
    model.forward = lambda inputs: model[2](model[1](model[0](inputs)))
    nn.init.zeros_(model[2].weight)
    assert found_in(model, labelled()) == ()


def test_weight_before_a_norm_layer_whose_scale_is_zero_is_none():
    model = small_network()
    nn.init.zeros_(model[1].weight)
    assert found_in(model, labelled()) == ()


class Residual(nn.Module):
    """Norm layers inside the branches only, as in examples/my_model.py."""

    def __init__(self):
        super().__init__()
        self.branch = nn.Sequential(nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x + self.branch(x))


@pytest.mark.parametrize(
    ("model", "layer"),
    [
        (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)), "3"),
        (nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 3)), "2"),
        (nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3)), None),
        (nn.Sequential(nn.BatchNorm1d(8, affine=False), nn.Linear(8, 3)), None),
        (nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)), None),
        (Residual(), None),
    ],
)
def test_gamma_scales_the_last_layer_if_nothing_but_relu_is_between(model, layer):
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(16, 8, generator=generator), torch.arange(16) % 3
    assert layer_scaled_by_gamma(Problem(model, "cross_entropy", data), data) == layer
